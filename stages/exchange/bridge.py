"""The packed Parquet of Megatron-Bridge.

Rules: `src/megatron/bridge/data/packing/` of Megatron-Bridge at commit 067f987 (22 August 2026). A row has
`input_ids`, `seq_start_id` (where each document begins, from 0) and `loss_mask`, in which a place stands for the token
that is predicted there, the next one. The reader drops the last token of every document from the inputs, so a document
of L stored tokens has L - 1 places at run time, and these must be a multiple of `pad_seq_to_mult`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges, starts_of, sums_of
from ..arrays import lists
from .exchange_rows import ExchangeRows, MisfitError

_INT32 = pa.list_(pa.field("item", pa.int32(), nullable=False))
_INT8 = pa.list_(pa.field("item", pa.int8(), nullable=False))
SCHEMA = pa.schema([("input_ids", _INT32), ("loss_mask", _INT8), ("seq_start_id", _INT32)])
GROUP_ROWS = 500
"""Rows of a row group, as its own writer makes them; the reader keeps one in memory."""


@dataclass(frozen=True, slots=True)
class BridgeRows:
    """Rows for Megatron-Bridge."""

    batch: pa.RecordBatch
    padding: int
    """Tokens that were added after documents."""
    longest: int
    """Tokens of the longest document."""
    shortest_row: int
    """Tokens of the shortest row."""
    most_documents: int
    """Most documents in a row."""


def bridge_rows(rows: ExchangeRows, multiple: int, pad_id: int, max_length: int) -> BridgeRows:
    """Turn rows into Megatron-Bridge's; there must be at least one.

    Args:
        multiple: `pad_seq_to_mult`. Each document is padded until its run-time length is a multiple of it.
        max_length: the most tokens of a row at run time.

    Raises:
        MisfitError: a row gets longer than `max_length` by padding.
    """
    stored = -(-(rows.lengths - 1) // multiple) * multiple + 1
    sizes = sums_of(stored, rows.row_pieces)
    at_run_time = sizes - np.diff(rows.row_pieces)
    if (at_run_time > max_length).any():
        row = int(np.argmax(at_run_time > max_length))
        raise MisfitError(
            row,
            f"with documents padded to multiples of {multiple} for pad_seq_to_mult, it would have "
            f"{int(at_run_time[row]):,} tokens, more than max_length ({max_length:,}); "
            f"pack with pack.align: {multiple}",
        )
    ids, mask = rows.ids, _shifted(rows)
    if (padding := int(stored.sum() - rows.lengths.sum())) > 0:
        places = ranges(starts_of(stored), rows.lengths)
        ids, mask = _spread(ids, places, stored, pad_id), _spread(mask, places, stored, 0)
    offsets = offsets_of(sizes)
    begins = starts_of(stored) - np.repeat(offsets[:-1], np.diff(rows.row_pieces))
    columns = [
        lists(offsets, ids, _INT32),
        lists(offsets, mask, _INT8),
        lists(rows.row_pieces, begins.astype(np.int32), _INT32),
    ]
    return BridgeRows(
        pa.RecordBatch.from_arrays(columns, schema=SCHEMA),
        padding,
        int(stored.max()),
        int(sizes.min()),
        int(np.diff(rows.row_pieces).max()),
    )


def packing_metadata(
    rows: int, documents: int, tokens: int, longest: int, most_documents: int, shortest_row: int, max_length: int
) -> dict[str, float]:
    """What the reader wants to know of a split for CUDA graphs; its metadata file is a list of these."""
    return {
        "dataset_max_seqlen": longest,
        "max_samples_per_bin": most_documents,
        "packing_factor": round(documents / rows, 2),
        "packing_efficiency": round(100 * tokens / (rows * max_length), 2),
        "pack_size": max_length,
        "min_packed_seqlen": shortest_row,
    }


def _shifted(rows: ExchangeRows) -> NDArray[np.int8]:
    """(T,) whether the next token is trained. The first token of a piece never is, so no piece reaches into another."""
    mask = np.zeros(len(rows.ids), np.int8)
    mask[:-1] = rows.trained[1:]
    return mask


def _spread(
    values: NDArray[Any], places: NDArray[np.int64], stored: NDArray[np.integer[Any]], filler: int
) -> NDArray[Any]:
    out = np.full(int(stored.sum()), filler, values.dtype)
    out[places] = values
    return out
