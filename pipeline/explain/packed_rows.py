"""Finds a document in the packed rows, by the run's layout or by searching the shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.rows import UNPADDED, WEIGHTS
from ...stages.arrays import view
from ..dataset.open import Finished


@dataclass(frozen=True, slots=True)
class Standing:
    """One piece of a document in a packed row, read from the shard."""

    split: str
    row: int
    """Row of the split, counted from 0."""
    shard: str
    shard_row: int
    """Row of the shard, counted from 0."""
    number: int
    """Number of the piece in the row, counted from 0."""
    at: int
    """Position of the piece's first token in the row."""
    start: int
    """Position of the piece's first token in the document."""
    ids: list[int]
    """Tokens of the piece, without alignment padding."""
    labels: list[int]
    repeated: int | None
    """How many of the piece's first tokens an earlier piece also has; None if the layout is gone."""
    weights: list[float] | None = None
    """The loss weights of the labels; None if all are 1."""


def find_standings(dataset: Finished, doc_id: int, tokens: int) -> tuple[list[Standing], bool]:
    """Return all pieces of a document in token order, and whether the layout was used to find them.

    Args:
        tokens: the document's full length; anything beyond it in a piece is padding.

    Raises:
        IntegrityError: a shard is missing or damaged.
    """
    layout = list(_by_layout(dataset, doc_id))
    if None not in layout:
        found = [_read(dataset, *one) for one in layout if one is not None]
        if all(one is not None for one in found):
            return sorted((one for one in found if one is not None), key=_place), True
    return sorted(_by_shards(dataset, doc_id, tokens), key=_place), False


def _place(standing: Standing) -> tuple[int, str, int]:
    return standing.start, standing.split, standing.row


def find_pair(dataset: Finished, doc_id: int) -> tuple[str, int]:
    """Return (split, row) of a preference pair.

    Raises:
        IntegrityError: a shard is missing or damaged, or no shard has the pair.
    """
    for split, record in dataset.manifest.splits.items():
        row = 0
        for shard in record.shards:
            for batch in dataset.batches(shard):
                here = np.flatnonzero(view(batch.column("doc_ids").values) == doc_id)
                if len(here):
                    return split, row + int(here[0])
                row += batch.num_rows
    raise IntegrityError(
        f"document {doc_id:,} is listed, but no shard of {dataset.store.url} contains it; run packtrain verify"
    )


_Piece = tuple[str, int, int, int, int, int, int]
"""(split, row, number in the row, doc id, start, length, repeated)"""


def _by_layout(dataset: Finished, doc_id: int) -> Iterator[_Piece | None]:
    """Return the pieces from the layout files; the list contains None if the files do not match the manifest."""
    for split, record in dataset.manifest.splits.items():
        base = 0
        for window, certificate in enumerate(record.windows):
            name = f"_run/layout/{split}-{window:05d}"
            try:
                doc_ids, *columns = _pieces(dataset, f"{name}-pieces.arrow")
                offsets = view(_mapped(dataset, f"{name}-rows.arrow").column(0))
                here = np.flatnonzero(doc_ids == doc_id).tolist()
            except (OSError, pa.ArrowException, KeyError):
                yield None
                return
            if len(offsets) - 1 != certificate.rows:
                yield None
                return
            for piece in here:
                row = int(np.searchsorted(offsets, piece, side="right")) - 1
                start, length, repeated = (int(column[piece]) for column in columns)
                yield split, base + row, piece - int(offsets[row]), doc_id, start, length, repeated
            base += certificate.rows


def _pieces(dataset: Finished, name: str) -> list[NDArray[Any]]:
    """Doc ids, starts, lengths and repeated tokens of a layout's pieces."""
    with pa.memory_map(str(dataset.store.local(name))) as source:
        table = pa.ipc.open_file(source).read_all()
    columns = [table.column(key).chunks for key in ("doc_id", "start", "length", "repeated")]
    return [np.concatenate([view(chunk) for chunk in chunks]) for chunks in columns]


def _mapped(dataset: Finished, name: str) -> pa.RecordBatch:
    with pa.memory_map(str(dataset.store.local(name))) as source:
        return pa.ipc.open_file(source).get_batch(0)


def _read(
    dataset: Finished, split: str, row: int, number: int, doc_id: int, start: int, length: int, repeated: int
) -> Standing | None:
    """Read a piece from its shard; None if the shard has another piece there."""
    columns = dataset.row(row, split).to_pylist()[0]
    sizes, starts, doc_ids = (columns[key] for key in ("seq_lengths", "doc_starts", "doc_ids"))
    if number >= len(sizes) or (doc_ids[number], starts[number]) != (doc_id, start) or sizes[number] < length:
        return None
    at = sum(sizes[:number])
    shard, shard_row = _shard_of(dataset, split, row)
    ids, labels = (columns[key][at : at + length] for key in ("input_ids", "labels"))
    weights = columns[WEIGHTS][at : at + length] if WEIGHTS in columns else None
    return Standing(split, row, shard, shard_row, number, at, start, ids, labels, repeated, weights)


def _shard_of(dataset: Finished, split: str, row: int) -> tuple[str, int]:
    for shard in dataset.manifest.splits[split].shards:
        if row < shard.rows:
            return shard.name, row
        row -= shard.rows
    raise AssertionError("the row was read before")


def _by_shards(dataset: Finished, doc_id: int, tokens: int) -> Iterator[Standing]:
    for split, record in dataset.manifest.splits.items():
        base = 0
        for shard in record.shards:
            first = 0
            for batch in dataset.batches(shard):
                column = batch.column("doc_ids")
                places = np.flatnonzero(view(column.values) == doc_id)
                rows = np.unique(np.searchsorted(view(column.offsets), places, side="right") - 1).tolist()
                for row in rows:
                    columns = batch.slice(row, 1).to_pylist()[0]
                    at = 0
                    for number, size in enumerate(columns["seq_lengths"]):
                        start = columns["doc_starts"][number]
                        if columns["doc_ids"][number] == doc_id:
                            end = at + min(columns.get(UNPADDED, columns["seq_lengths"])[number], tokens - start)
                            ids, labels = (columns[key][at:end] for key in ("input_ids", "labels"))
                            place = base + first + row
                            weights = columns[WEIGHTS][at:end] if WEIGHTS in columns else None
                            found = place, shard.name, first + row, number, at, start, ids, labels, None, weights
                            yield Standing(split, *found)
                        at += size
                first += batch.num_rows
            base += shard.rows
