"""One Arrow shard, mapped into memory. Nothing is copied until a batch is made."""

import mmap
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import InputError, IntegrityError
from ...schemas.manifest import ShardRecord
from ...schemas.rows import PACKED, UNPADDED, WEIGHTS
from .shard_files import CachedFile


@dataclass(slots=True)  # not frozen: a frozen dataclass takes four times as long to make, and a step makes many
class RowSpan:
    """One packed row, or several adjacent rows: T tokens in D pieces, as read-only views of a shard."""

    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    position_ids: NDArray[np.int32]
    """(T,)"""
    seq_lengths: NDArray[np.int32]
    """(D,) with padding"""
    seq_lengths_unpadded: NDArray[np.int32] | None = field(default=None, kw_only=True)
    """(D,) without padding; None if the dataset does not say."""
    loss_weights: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """(T,) how much each label counts; None if all count 1."""
    bounds: tuple[list[int], list[int]] | None = field(default=None, kw_only=True)
    """For several rows: where each begins and the last ends, in tokens and in pieces; counted from any place."""


@dataclass(slots=True)
class PackedRow(RowSpan):
    """One packed row, with the documents of its pieces."""

    doc_starts: NDArray[np.int32]
    """(D,)"""
    doc_ids: NDArray[np.int64]
    """(D,)"""


class Chunk:
    """One record batch of a shard: the values of each column, and where each row begins in these values."""

    def __init__(self, batch: pa.RecordBatch, url: str) -> None:
        names = [*PACKED.names, *(name for name in (UNPADDED, WEIGHTS) if name in batch.schema.names)]
        columns = [batch.column(name) for name in names]
        values = [view(column.values, column.type.value_type) for column in columns]
        self.values = values[: len(PACKED)]
        more = dict(zip(names[len(PACKED) :], values[len(PACKED) :], strict=True))
        self.unpadded, self.weights = more.get(UNPADDED), more.get(WEIGHTS)
        # All token columns share their offsets, and all document columns theirs.
        offsets = [view(column.offsets, pa.int32()) for column in columns]
        for own in range(len(names)):
            first = 0 if own < 3 or names[own] == WEIGHTS else 3
            if not np.array_equal(offsets[own], offsets[first]):
                raise IntegrityError(
                    f"{url}: {names[own]} and {names[first]} have different lengths; run packtrain verify on its folder"
                )
        # Reading one item takes a third of the time that an array needs.
        self.tokens, self.docs = offsets[0].data, offsets[3].data


class Shard:
    """A mapped shard. While it exists, its file is not evicted from the cache."""

    def __init__(self, held: CachedFile, batches: list[pa.RecordBatch], url: str) -> None:
        self._held = held
        self._batches = batches
        self._url = url
        self.starts = [0, *accumulate(batch.num_rows for batch in batches)]
        """(chunks + 1,) where each chunk's rows begin."""
        self._chunks: list[Chunk | None] = [None] * len(batches)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk, which is read on first use, so that one row of a large shard does not require reading the
        whole shard.
        """
        found = self._chunks[number]
        if found is None:
            found = self._chunks[number] = Chunk(self._batches[number], self._url)
        return found

    @property
    def longest(self) -> int:
        """Return the tokens of the longest document (piece)."""
        chunks = map(self.chunk, range(len(self._batches)))
        return max((int(chunk.values[3].max(initial=0)) for chunk in chunks), default=0)


def open_shard(held: CachedFile, record: ShardRecord, url: str) -> Shard:
    """Map a shard into memory.

    Raises:
        InputError: the shard is Parquet.
        IntegrityError: the shard cannot be read, or has a different number of rows than its record says.
    """
    if record.name.endswith(".parquet"):
        raise InputError(f"{url} is Parquet; pack with output.format: arrow, which can be mapped into memory")
    try:
        batches = list(pa.ipc.open_stream(mapped(held.path)))
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{url} cannot be read: {error}; run packtrain verify on its folder") from error
    shard = Shard(held, batches, url)
    if shard.starts[-1] != record.rows:
        raise IntegrityError(
            f"{url} has {shard.starts[-1]:,} rows, but the manifest says {record.rows:,}; packtrain repair rebuilds it"
        )
    return shard


def mapped(path: Path) -> pa.Buffer:
    """A file in memory, read where it is used; lives as long as a view of it."""
    # Not pa.memory_map, which makes the kernel read the whole file at once.
    with path.open("rb") as file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def view(array: pa.Array, kind: pa.DataType) -> NDArray[Any]:
    """Return a read-only view of the array's memory; `to_numpy` would import pandas if it is installed."""
    data = array.buffers()[1]
    dtype = np.dtype(kind.to_pandas_dtype())
    if data is None:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
