"""A look at a split's rows: of all of them what rows.arrow says, of some shards how their pieces lie.

Legend: `R` rows of the split, `S` rows that were looked at in shards.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.manifest import ShardRecord, SplitRecord
from ...schemas.rows import ROW_SIZES
from ...stages.arrays import view
from ..reader import Finished
from ..rowsizes import row_sizes_name
from ..store import LocalStore
from .lengths import evenly

MOST_ROWS = 2_000_000
"""Rows whose pieces are read. Of more, some shards, taken evenly."""
FAR_BYTES = 64 << 20
"""Bytes of shards that are fetched where the dataset is not on this machine."""


@dataclass(frozen=True, slots=True, eq=False)
class RowWeight:
    """Of every row: (R,) its tokens, and (R,) the sum of the squares of its pieces' lengths. Mapped."""

    tokens: NDArray[np.int32]
    squares: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowLook:
    """Of some rows: which, and how their pieces lie."""

    rows: NDArray[np.int64]
    """(S,) rising."""
    pieces: NDArray[np.int64]
    """(S,) how many each has."""
    longest: NDArray[np.int32]
    """(S,) tokens of its longest piece."""
    continued: NDArray[np.bool_]
    """(S,) whether a piece of it does not begin its document."""
    exact: bool
    """Whether these are all."""


def read_weights(dataset: Finished, split: SplitRecord) -> RowWeight:
    """What rows.arrow says.

    Raises:
        IntegrityError: it is missing, or not what the manifest says.
    """
    name = row_sizes_name(split)
    where = dataset.store.where(name)
    try:
        with pa.memory_map(str(dataset.store.local(name))) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        if batch.schema != ROW_SIZES or batch.num_rows != split.rows:
            raise ValueError(f"{batch.num_rows:,} rows of {batch.schema.names}, and the split has {split.rows:,}")
        return RowWeight(view(batch.column("tokens")), view(batch.column("squares")))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise IntegrityError(f"{where} cannot be read ({error}); packtrain repair makes it again") from error


def some_shards(dataset: Finished, split: SplitRecord) -> list[tuple[int, ShardRecord]]:
    """(its first row, shard) of the shards that are looked into: all, or some evenly."""
    firsts = np.cumsum([0, *(shard.rows for shard in split.shards)])
    count = len(split.shards)
    wanted = count if split.rows <= MOST_ROWS else max(1, count * MOST_ROWS // split.rows)
    chosen, left = [], FAR_BYTES
    near = isinstance(dataset.store, LocalStore)
    for index in evenly(count, wanted).tolist():
        shard = split.shards[index]
        left -= shard.bytes
        if not near and left < 0:
            break
        if shard.rows:
            chosen.append((int(firsts[index]), shard))
    return chosen


def look_at(dataset: Finished, split: SplitRecord) -> RowLook:
    """How pieces lie in the rows of some shards.

    Raises:
        IntegrityError: a shard is missing or damaged.
    """
    found: list[tuple[NDArray[np.int64], ...]] = []
    for first, shard in some_shards(dataset, split):
        row = first
        for lengths, starts in _piece_columns(dataset, shard):
            offsets = view(lengths.offsets).astype(np.int64)
            sizes = offsets[1:] - offsets[:-1]
            most = _greatest(lengths, sizes), _greatest(starts, sizes)
            found.append((np.arange(row, row + len(sizes), dtype=np.int64), sizes, *most))
            row += len(sizes)
        if row - first != shard.rows:
            raise IntegrityError(
                f"{dataset.store.where(shard.name)} has {row - first:,} rows, but the manifest says {shard.rows:,}; "
                "packtrain repair makes it again"
            )
    found.append((np.zeros(0, np.int64),) * 4)
    rows, pieces, longest, latest = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return RowLook(rows, pieces, longest.astype(np.int32), latest > 0, len(rows) == split.rows)


def _greatest(column: pa.ListArray, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rows,) the greatest number of each list; 0 of an empty one.

    Raises:
        IntegrityError: the column has other lengths than `sizes`.
    """
    offsets = view(column.offsets).astype(np.int64)
    if not np.array_equal(np.diff(offsets), sizes):
        raise IntegrityError("doc_starts has another length than seq_lengths; packtrain verify says where")
    out, there = np.zeros(len(sizes), np.int64), np.flatnonzero(sizes)
    if len(there):
        values = view(column.values)[offsets[0] : offsets[-1]]
        out[there] = np.maximum.reduceat(values, (offsets[:-1] - offsets[0])[there])
    return out


def _piece_columns(dataset: Finished, shard: ShardRecord) -> "list[tuple[pa.ListArray, pa.ListArray]]":
    """(seq_lengths, doc_starts) of each batch of a shard; nothing else is read where the format allows."""
    path = dataset.store.where(shard.name)
    try:
        file = dataset.store.local(shard.name, bytes=shard.bytes, hash=shard.hash)
        wanted = ["seq_lengths", "doc_starts"]
        if shard.name.endswith(".parquet"):
            batches = list(pq.ParquetFile(file).iter_batches(columns=wanted))
        else:
            with pa.memory_map(str(file)) as source:
                batches = [batch.select(wanted) for batch in pa.ipc.open_stream(source)]
        for batch in batches:
            batch.validate(full=True)
        return [(batch.column(wanted[0]), batch.column(wanted[1])) for batch in batches]
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise IntegrityError(f"{path} cannot be read ({error}); packtrain repair makes it again") from error
