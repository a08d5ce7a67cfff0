"""From packed rows to what a model takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..schemas.rows import IGNORE_INDEX
from .rows import PackedRow


def flatten(rows: Sequence[PackedRow], *, seq_idx: bool = False) -> dict[str, Any]:
    """Rows one after another as one sequence, documents told apart by `cu_seq_lens`.

    Returns:
        `input_ids`, `labels`, `position_ids`: int64 (1, T); `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (D + 1,);
        `max_length_q`, `max_length_k`: ints, because a tensor would cost a device synchronisation in every layer;
        `use_cache`: False, because the cache's mask lets documents see each other; with `seq_idx`, int32 (1, T),
        the number of each token's document, for convolution and state-space layers. Never an attention mask.
    """
    lengths = np.concatenate([row.seq_lengths for row in rows])
    bounds = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=bounds[1:])
    cu_seq_lens = torch.from_numpy(bounds)
    longest = int(lengths.max(initial=0))
    batch: dict[str, Any] = {
        "input_ids": _joined([row.input_ids for row in rows]),
        "labels": _joined([row.labels for row in rows]),
        "position_ids": _joined([row.position_ids for row in rows]),
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
    if seq_idx:
        numbers = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        batch["seq_idx"] = torch.from_numpy(numbers).unsqueeze(0)
    return batch


def unpack(rows: Sequence[PackedRow], pad_id: int = 0) -> dict[str, Any]:
    """Every document a row of its own, padded to the longest: for models that cannot keep packed documents apart.

    Returns:
        `input_ids`, `labels`, `position_ids`, `attention_mask`: int64 (D, L), L the longest document; and
        `use_cache` False. It undoes packing: the share of padding is what packing would have saved.
    """
    pieces = [
        (row, begin, begin + length)
        for row in rows
        for begin, length in zip(
            (np.cumsum(row.seq_lengths) - row.seq_lengths).tolist(), row.seq_lengths.tolist(), strict=True
        )
    ]
    width = max((end - begin for _, begin, end in pieces), default=0)
    shape = (len(pieces), width)
    ids = np.full(shape, pad_id, dtype=np.int64)
    labels = np.full(shape, IGNORE_INDEX, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    for index, (row, begin, end) in enumerate(pieces):
        ids[index, : end - begin] = row.input_ids[begin:end]
        labels[index, : end - begin] = row.labels[begin:end]
        mask[index, : end - begin] = 1
    positions = np.broadcast_to(np.arange(width, dtype=np.int64), shape).copy()
    return {
        "input_ids": torch.from_numpy(ids),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
        "attention_mask": torch.from_numpy(mask),
        "use_cache": False,
    }


def _joined(arrays: Sequence[np.ndarray[Any, np.dtype[np.int32]]]) -> torch.Tensor:
    """(1, T) int64. The copy and the conversion are one pass over memory."""
    out = np.empty(sum(map(len, arrays)), dtype=np.int64)
    begin = 0
    for array in arrays:
        out[begin : begin + len(array)] = array
        begin += len(array)
    return torch.from_numpy(out).unsqueeze(0)
