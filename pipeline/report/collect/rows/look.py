"""Statistics of a split's rows: token counts of all rows from rows.arrow, pieces of some rows from shards.

Shapes: `R` rows of the split, `S` rows that were read from shards.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .....schemas.errors import IntegrityError
from .....schemas.manifest import ShardRecord, SplitRecord
from .....schemas.ragged import offsets_of
from .....schemas.rows import ROW_SIZES
from .....stages.arrays import list_lengths, view
from ....dataset.open import Finished
from ....pack.row_sizes import row_sizes_name
from ....store.local import LocalStore
from ..lengths.packed import evenly

MOST_ROWS = 2_000_000
"""Maximum number of rows whose pieces are read. If there are more, evenly chosen shards are read."""
FAR_BYTES = 64 << 20
"""Maximum number of bytes of shards to download from a remote dataset."""


@dataclass(frozen=True, slots=True, eq=False)
class RowWeight:
    """(R,) tokens of every row, and (R,) the sum of its pieces' squared lengths. Both are memory-mapped."""

    tokens: NDArray[np.int32]
    squares: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowLook:
    """The pieces of some rows."""

    rows: NDArray[np.int64]
    """(S,) row numbers, ascending."""
    pieces: NDArray[np.int64]
    """(S,) number of pieces in the row."""
    longest: NDArray[np.int32]
    """(S,) tokens of the row's longest piece."""
    continued: NDArray[np.bool_]
    """(S,) whether the row has a piece that starts after its document's first token."""
    exact: bool
    """Whether these are all rows of the split."""


def read_weights(dataset: Finished, split: SplitRecord) -> RowWeight:
    """Read rows.arrow.

    Raises:
        IntegrityError: the file is missing, or does not match the manifest.
    """
    name = row_sizes_name(split)
    where = dataset.store.where(name)
    try:
        with pa.memory_map(str(dataset.store.local(name))) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        if batch.schema != ROW_SIZES or batch.num_rows != split.rows:
            raise ValueError(f"{batch.num_rows:,} rows of {batch.schema.names}, but the split has {split.rows:,} rows")
        return RowWeight(view(batch.column("tokens")), view(batch.column("squares")))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise IntegrityError(f"{where} cannot be read ({error}); packtrain verify --repair rebuilds it") from error


def some_shards(dataset: Finished, split: SplitRecord) -> list[tuple[int, ShardRecord]]:
    """(first row, shard) of the shards to read: all, or evenly chosen ones."""
    firsts = offsets_of([shard.rows for shard in split.shards])
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
    """Read the pieces of rows from some shards.

    Raises:
        IntegrityError: a shard is missing or damaged.
    """
    found: list[tuple[NDArray[np.int64], ...]] = []
    for first, shard in some_shards(dataset, split):
        row = first
        for lengths, starts in _piece_columns(dataset, shard):
            sizes = list_lengths(lengths)
            most = _greatest(lengths, sizes), _greatest(starts, sizes)
            found.append((np.arange(row, row + len(sizes), dtype=np.int64), sizes, *most))
            row += len(sizes)
        if row - first != shard.rows:
            raise IntegrityError(
                f"{dataset.store.where(shard.name)} has {row - first:,} rows, but the manifest says {shard.rows:,}; "
                "packtrain verify --repair rebuilds it"
            )
    found.append((np.zeros(0, np.int64),) * 4)
    rows, pieces, longest, latest = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return RowLook(rows, pieces, longest.astype(np.int32), latest > 0, len(rows) == split.rows)


def _greatest(column: pa.ListArray, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rows,) the largest number of each list; 0 for an empty list.

    Raises:
        IntegrityError: the lists do not have the lengths `sizes`.
    """
    offsets = view(column.offsets).astype(np.int64)
    if not np.array_equal(np.diff(offsets), sizes):
        raise IntegrityError("doc_starts and seq_lengths differ in length; packtrain verify says where")
    out, there = np.zeros(len(sizes), np.int64), np.flatnonzero(sizes)
    if len(there):
        values = view(column.values)[offsets[0] : offsets[-1]]
        out[there] = np.maximum.reduceat(values, (offsets[:-1] - offsets[0])[there])
    return out


def _piece_columns(dataset: Finished, shard: ShardRecord) -> "list[tuple[pa.ListArray, pa.ListArray]]":
    """(seq_lengths, doc_starts) of each batch of a shard. Parquet files are read in these columns only."""
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
        raise IntegrityError(f"{path} cannot be read ({error}); packtrain verify --repair rebuilds it") from error
