"""Checks the padding of packed rows that store their lengths without it."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.errors import InputError
from ...schemas.ragged import ranges
from ...schemas.rows import IGNORE_INDEX, UNPADDED
from ...stages.arrays import view
from .open import Finished


def check_padding(batch: pa.RecordBatch, alignment: Alignment, pad_id: int) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first packed row that breaks each invariant; nothing for rows without the column.

    The invariants: no piece has more tokens than its place in the row, or none; a piece's padding is what the
    configuration asks for; it has no labels, and only the padding token.

    Args:
        alignment: the dataset's.
        pad_id: the token of the padding.
    """
    if UNPADDED not in batch.schema.names:
        return
    lengths, unpadded = (view(batch.column(name).flatten()) for name in ("seq_lengths", UNPADDED))
    rows, own = (_offsets(batch.column(name)) for name in ("seq_lengths", UNPADDED))
    if not np.array_equal(rows, own):
        yield int(np.argmax(np.diff(rows) != np.diff(own))), f"{UNPADDED} has another length than seq_lengths"
        return
    piece_rows = np.repeat(np.arange(batch.num_rows), np.diff(rows))
    over = (unpadded > lengths) | (unpadded < 1)
    yield from first_token(over, piece_rows, f"{UNPADDED} is not between 1 and the piece's seq_lengths")
    ids, labels = (view(batch.column(name).flatten()) for name in ("input_ids", "labels"))
    if over.any() or (np.diff(rows) < 1).any() or len(ids) != int(lengths.sum(dtype=np.int64)):
        return  # what is below needs pieces within the row
    uneven = alignment.padded(unpadded, rows) != lengths
    yield from first_token(uneven, piece_rows, "a piece is padded to another length than the configuration asks for")
    padding = ranges(0, lengths) >= np.repeat(unpadded, lengths)
    owners = np.repeat(piece_rows, lengths)
    yield from first_token(padding & (labels != IGNORE_INDEX), owners, "padding has a label")
    yield from first_token(padding & (ids != pad_id), owners, f"padding is not the token {pad_id}")


def padding_token(dataset: Finished) -> int:
    """The token that a dataset's rows are padded with; 0 if its tokenizer has none.

    Raises:
        InputError: the manifest names something that is no token.
    """
    tokenizer = dataset.manifest.plan.get("tokenizer")
    pad_id = tokenizer.get("pad_id") if isinstance(tokenizer, dict) else None
    if pad_id is not None and not (type(pad_id) is int and 0 <= pad_id < 2**31):
        said = f"its manifest has the padding token {str(pad_id)[:80]!r}, which is not an id"
        raise InputError(f"{dataset.store.url}: {said}")
    return pad_id or 0


def _offsets(column: pa.ListArray) -> NDArray[np.int64]:
    offsets = view(column.offsets).astype(np.int64)
    offsets -= offsets[0]
    return offsets


def first_token(bad: NDArray[np.bool_], rows: NDArray[np.int64], what: str) -> Iterator[tuple[int, str]]:
    """Yield the row of the first token or piece that is wrong, with what is wrong; nothing if none is."""
    if bad.any():
        yield int(rows[np.argmax(bad)]), what
