"""Finds where documents begin and end in a packed row, from the arguments of an attention layer.

First choice: `cu_seq_lens_q`, which the loader makes and most models pass to every layer. Some models drop it
(StableLM, Nemotron); then the bounds are derived from `position_ids`. Without either, an error is raised, because
attention over the whole row would silently mix documents.

Legend: T tokens, D documents. Bounds are int32 (D + 1,), from 0 to T. Batches of a fixed shape (`collate.FixedShape`)
contain empty documents, whose two bounds are equal.
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
    """int32 (D + 1,), where documents begin, then T; on the device of the queries."""
    longest: int
    """Tokens of the longest document, or more. Kernels cover this many tokens; too small a number would leave tokens
    out.
    """


def find_bounds(kwargs: Mapping[str, Any], rows: int, length: int, who: str) -> Bounds:
    """Find the bounds in the arguments of a layer.

    Args:
        kwargs: arguments of the attention function: `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `position_ids`.
        rows, length: shape of the queries. Bounds of several rows are counted through all rows.
        who: the model's name, for errors.

    Raises:
        AttentionError: there are neither bounds nor positions, or they do not match the number of tokens.
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
                "and keys belong to the same documents"
            )
        longest = kwargs.get("max_length_q")
        if longest is None:
            longest = int((cu[1:] - cu[:-1]).max())
        elif not isinstance(longest, int):  # reading a tensor waits; an int stays symbolic in compiled code
            longest = int(longest)
        if not torch.compiler.is_compiling():
            _refuse_others(cu, longest, length, who)
        return Bounds(cu, longest)
    positions = kwargs.get("position_ids")
    if positions is not None:
        if positions.ndim == 3:  # several kinds of positions, as in image models; the first is for text
            positions = positions[0]
        if positions.shape[-1] == length:
            return _of_positions(positions, rows)
        raise AttentionError(
            f"{who}: position_ids are for {positions.shape[-1]:,} tokens, but attention is over {length:,}; if there "
            "is a cache, pass use_cache=False"
        )
    raise AttentionError(
        f"{who}: attention got neither cu_seq_lens_q nor position_ids, so it cannot find where documents end. Pass "
        "both to the model, as PackedLoader's batches do. If you did, this model drops them: pad documents with "
        "PackedLoader(unpacked=True), or use a model that passes them to its layers"
    )


def _refuse_others(cu: torch.Tensor, longest: int, length: int, who: str) -> None:
    """Refuse bounds of another sequence, as far as that can be seen without waiting for a device."""
    whole = int(cu[-1]) if cu.device.type == "cpu" else None
    if longest > length or whole not in (None, length):
        end = f"cu_seq_lens_q ends at {whole:,}" if whole is not None else f"max_length_q is {longest:,}"
        raise AttentionError(
            f"{who}: {end}, but there are {length:,} tokens. If this is a device's part of a batch (cp_size), it needs "
            "attention that exchanges keys with the other devices; this one does not"
        )


def _of_positions(positions: torch.Tensor, rows: int) -> Bounds:
    """Derive bounds from positions: a document begins wherever positions do not increase by one. This also works for
    pieces of documents.
    """
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
"""Keep the bounds derived last, because every layer asks for the same ones, and deriving them waits for the device."""


def _derive(positions: torch.Tensor, rows: int) -> Bounds:
    positions = positions.expand(rows, -1)
    first = torch.ones_like(positions[:, :1], dtype=torch.bool)
    begins = torch.cat((first, positions[:, 1:] != positions[:, :-1] + 1), dim=1).reshape(-1)
    starts = begins.nonzero().reshape(-1)
    end = torch.tensor([begins.numel()], device=starts.device)
    cu = torch.cat((starts, end)).to(torch.int32)
    return Bounds(cu, int((cu[1:] - cu[:-1]).max()))


def in_chunks(bounds: Bounds, tokens: int, chunk: int) -> Bounds:
    """Cut documents every `chunk` tokens: chunked attention (Llama 4) is attention within these chunks.

    The result is filled up with empty documents to a size that depends only on shapes, so that nothing waits for the
    device.
    """
    if bounds.longest <= chunk:
        return bounds
    here = torch.arange(tokens, device=bounds.cu.device, dtype=torch.int32)
    document = torch.searchsorted(bounds.cu, here, right=True) - 1
    begins = (here - bounds.cu[document]) % chunk == 0
    room = min(tokens, len(bounds.cu) - 1 + tokens // chunk)  # each document adds at most one short chunk
    starts = torch.where(begins, here, tokens).sort().values[:room]
    return Bounds(torch.nn.functional.pad(starts, (0, 1), value=tokens).to(torch.int32), chunk)
