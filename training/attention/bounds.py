"""Where documents begin and end in a packed row, as attention is told it.

First choice: `cu_seq_lens_q`, which the loader makes and most models hand on to every layer. Some drop it on the way
(StableLM, Nemotron); then the bounds are derived from `position_ids`. Where neither arrived nothing can be known, and
an error is raised: to attend over the whole row would be the silent fault that all this is for.

Legend: T tokens, D documents. Bounds are int32 (D + 1,), from 0 to T. Equal neighbours are documents of no tokens,
which batches of a fixed shape hold (`batch.fix_shape`).
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import AttentionError


@dataclass(frozen=True, slots=True)
class Bounds:
    """The documents of a row, or of several rows one after another."""

    cu: torch.Tensor
    """int32 (D + 1,), on the device of the queries."""
    longest: int
    """Tokens of the longest document, or more: what kernels launch for. Too few would leave tokens out."""


def find_bounds(kwargs: Mapping[str, Any], rows: int, length: int, who: str) -> Bounds:
    """Of what a layer was called with.

    Args:
        kwargs: of the attention function: `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `position_ids`.
        rows, length: of the queries. Bounds of several rows run on from row to row.
        who: the model's name, for errors.

    Raises:
        AttentionError: neither bounds nor positions arrived; or they are for another number of tokens.
    """
    cu, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if cu is not None:
        if rows != 1:
            raise AttentionError(
                f"{who}: cu_seq_lens_q came with {rows:,} rows; packed batches are flattened to one: take the "
                "batches of PackedLoader, or of collate"
            )
        if cu_k is not None and cu_k is not cu and cu_k.shape != cu.shape:
            raise AttentionError(
                f"{who}: cu_seq_lens_q has {len(cu):,} entries and cu_seq_lens_k {len(cu_k):,}; in training, queries "
                "and keys are the same documents"
            )
        longest = kwargs.get("max_length_q")
        if longest is None:
            longest = int((cu[1:] - cu[:-1]).max())
        elif not isinstance(
            longest, int
        ):  # a tensor, which costs a wait; what is an int stays symbolic in compiled code
            longest = int(longest)
        return Bounds(cu, longest)
    positions = kwargs.get("position_ids")
    if positions is not None:
        if positions.ndim == 3:  # several kinds of positions, as in models of images; the first kind is of text
            positions = positions[0]
        if positions.shape[-1] == length:
            return _of_positions(positions, rows)
        raise AttentionError(
            f"{who}: position_ids are for {positions.shape[-1]:,} tokens, but attention is over {length:,}; a cache? "
            "Pass use_cache=False"
        )
    raise AttentionError(
        f"{who}: neither cu_seq_lens_q nor position_ids arrived at attention, so nobody knows where documents end. "
        "Pass both to the model, as PackedLoader's batches do; if they were passed, this model drops them: set "
        "batching: padded, or use a model that hands them on"
    )


def _of_positions(positions: torch.Tensor, rows: int) -> Bounds:
    """Bounds wherever positions do not go on by one: that holds for pieces that begin in mid-document, too."""
    if torch.compiler.is_compiling():
        return _derive(positions, rows)
    known = _LAST.get("key")
    if known is not None and known[0]() is positions and known[1:] == (positions._version, rows):
        bounds: Bounds = _LAST["bounds"]
        return bounds
    bounds = _derive(positions, rows)
    _LAST.update(key=(weakref.ref(positions), positions._version, rows), bounds=bounds)
    return bounds


_LAST: dict[str, Any] = {}
"""The bounds that were derived last: every layer asks for the same, and each time would be a device synchronisation."""


def _derive(positions: torch.Tensor, rows: int) -> Bounds:
    positions = positions.expand(rows, -1)
    first = torch.ones_like(positions[:, :1], dtype=torch.bool)
    begins = torch.cat((first, positions[:, 1:] != positions[:, :-1] + 1), dim=1).reshape(-1)
    starts = begins.nonzero().reshape(-1)
    end = torch.tensor([begins.numel()], device=starts.device)
    cu = torch.cat((starts, end)).to(torch.int32)
    return Bounds(cu, int((cu[1:] - cu[:-1]).max()))


def in_chunks(bounds: Bounds, tokens: int, chunk: int) -> Bounds:
    """Documents cut every `chunk` tokens: chunked attention (Llama 4) is attention over these.

    Of a size that depends on shapes alone, filled up with documents of no tokens, so that no device is waited for.
    """
    if bounds.longest <= chunk:
        return bounds
    here = torch.arange(tokens, device=bounds.cu.device, dtype=torch.int32)
    document = torch.searchsorted(bounds.cu, here, right=True) - 1
    begins = (here - bounds.cu[document]) % chunk == 0
    room = min(tokens, len(bounds.cu) - 1 + tokens // chunk)  # each document adds at most one short chunk
    starts = torch.where(begins, here, tokens).sort().values[:room]
    return Bounds(torch.nn.functional.pad(starts, (0, 1), value=tokens).to(torch.int32), chunk)
