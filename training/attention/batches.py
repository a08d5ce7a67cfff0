"""Checks that a batch is what packed attention needs, before it goes to the device; takes microseconds."""

from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import BatchError


def check_batch(batch: Mapping[str, Any]) -> None:
    """Raise an error if a batch would let documents see each other, or leave tokens out.

    Tensors on a device are not read, because that would wait for it: check batches as they come from the loader. Bounds
    may repeat, because batches of a fixed shape contain empty documents.

    Args:
        batch: `input_ids` (1, T) (or `inputs_embeds`), `cu_seq_lens_q` and `_k` int32 (D + 1,), `max_length_q` and
            `_k` ints, `position_ids` (1, T), `use_cache` False; no `attention_mask`.

    Raises:
        BatchError: a key is missing or wrong; the message says which, and what it should be.
    """
    if batch.get("attention_mask") is not None:
        raise BatchError(
            "the batch has an attention_mask: a mask of ones lets every document see all before it. Leave it out: "
            "the bounds in cu_seq_lens_q are enough (do not pass PackedLoader's batches through a collator or a "
            "tokenizer's pad())"
        )
    if batch.get("use_cache") is not False:
        raise BatchError(
            f"use_cache is {batch.get('use_cache')!r}: a cache lets documents see each other, and most models make "
            "one by default. Put use_cache=False into the batch"
        )
    tokens = _tokens(batch)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        _check_bounds(name, batch.get(name), batch.get(name.replace("cu_seq_lens", "max_length")), tokens)
    positions = batch.get("position_ids")
    if positions is None:
        raise BatchError(
            "the batch has no position_ids: the model would number the whole row as one document. Add them"
        )
    if positions.shape[-1] != tokens:
        raise BatchError(
            f"position_ids has {positions.shape[-1]:,} entries for {tokens:,} tokens; give one position for each token"
        )
    bounds = batch["cu_seq_lens_q"]
    if positions.device.type == "cpu" and bounds.device.type == "cpu" and positions.ndim == 2:
        _check_positions(positions[0], bounds)


def _tokens(batch: Mapping[str, Any]) -> int:
    given = batch.get("input_ids")
    given = batch.get("inputs_embeds") if given is None else given
    if given is None:
        raise BatchError("the batch has no input_ids; add them")
    if given.shape[0] != 1:
        raise BatchError(f"input_ids have {given.shape[0]:,} rows; packed batches are flattened to one")
    return int(given.shape[1])


def _check_bounds(name: str, bounds: Any, longest: Any, tokens: int) -> None:
    if not isinstance(bounds, torch.Tensor):
        raise BatchError(f"the batch has no {name}: attention would not know where documents end. Add it")
    if bounds.dtype != torch.int32 or bounds.ndim != 1 or len(bounds) < 2:
        raise BatchError(f"{name} is {bounds.dtype} {list(bounds.shape)}; it should be int32 [documents + 1]")
    other = name.replace("cu_seq_lens", "max_length")
    if not isinstance(longest, int):
        raise BatchError(f"{other} is {longest!r}; it should be an int, the length of the longest document in tokens")
    if bounds.device.type != "cpu":
        return
    lengths = bounds.diff()
    first, last, least, most = int(bounds[0]), int(bounds[-1]), int(lengths.min()), int(lengths.max())
    if first != 0 or last != tokens:
        raise BatchError(f"{name} goes from {first:,} to {last:,}, but the tokens from 0 to {tokens:,}")
    if least < 0:
        at = int((lengths < 0).nonzero()[0])
        raise BatchError(f"{name} falls from {int(bounds[at]):,} to {int(bounds[at + 1]):,} at entry {at + 1:,}")
    if most > longest:
        raise BatchError(f"{other} is {longest:,}, but a document has {most:,} tokens: kernels would leave some out")


def _check_positions(positions: torch.Tensor, bounds: torch.Tensor) -> None:
    """Check that positions increase by one within a document, because for models that drop the bounds these are derived
    from positions.
    """
    breaks = positions.diff() != 1
    starts = bounds[1:-1]
    starts = starts[(starts > 0) & (starts < len(positions))].long() - 1
    within = breaks.clone()
    within[starts] = False
    if bool(within.any()):
        at = int(within.nonzero()[0]) + 1
        raise BatchError(
            f"position_ids jump at token {at:,}, but no document begins there according to cu_seq_lens_q; give both "
            "for the same documents"
        )
