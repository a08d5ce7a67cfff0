"""One writer per format: packed rows become the files of one shard."""

import gzip
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.manifest import FileRecord
from ...stages.exchange import bridge, mds, olmo
from ...stages.exchange.exchange_rows import ExchangeRows, fitted
from ...stages.exchange.megatron import SequenceIndex
from ..store.local import Draft
from ..store.open import Store
from .options import ExportOptions


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard's files go, and what its rows are."""

    split: str
    index: int
    """The shard's number in its split."""
    count: int
    """Shards of the split."""
    max_length: int
    pad_id: int
    schema: pa.Schema
    """Columns of a row."""
    alignment: Alignment
    """How its pieces and rows are padded."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A written file."""

    record: FileRecord
    rows: int


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """What a shard's rows amount to, as its reader counts them; sums and extremes over batches."""

    rows: int = 0
    pieces: int = 0
    tokens: int = 0
    trained: int = 0
    padding: int = 0
    """Tokens that the format needs and the dataset does not have."""
    longest: int = 0
    """Tokens of the longest piece."""
    most_pieces: int = 0
    """Most pieces of a row."""
    shortest_row: int = 2**31
    """Tokens of the shortest row."""

    def plus(self, other: "ShardCounts") -> "ShardCounts":
        """Both together."""
        return ShardCounts(
            self.rows + other.rows,
            self.pieces + other.pieces,
            self.tokens + other.tokens,
            self.trained + other.trained,
            self.padding + other.padding,
            max(self.longest, other.longest),
            max(self.most_pieces, other.most_pieces),
            min(self.shortest_row, other.shortest_row),
        )


class ShardWriter(Protocol):
    """Writes the rows of one shard."""

    def add(self, rows: ExchangeRows, batch: pa.RecordBatch) -> ShardCounts:
        """Write the next rows; there is at least one.

        Raises:
            MisfitError: a row does not fit into the format.
        """
        ...

    def close(self) -> list[ExportedFile]:
        """Give all files their names. A shard without rows may have none."""
        ...


class Drafts:
    """The files of one shard, under temporary names until they are complete.

    Args:
        store: None to write nothing, which checks whether the rows fit.
    """

    def __init__(self, store: Store | None, stack: ExitStack) -> None:
        self._store = store
        self._stack = stack

    @property
    def written(self) -> bool:
        """Whether anything is written."""
        return self._store is not None

    def open(self, folder: str) -> Draft | None:
        """A new file; None if nothing is written."""
        return self._stack.enter_context(self._store.draft(folder, sha256=True)) if self._store is not None else None

    def put(self, draft: Draft | None, name: str, rows: int) -> list[ExportedFile]:
        """Give a file its name. Names have no hash; a file that differs is damaged, because the folder is claimed."""
        if draft is None or self._store is None:
            return []
        put = draft.result
        self._store.put(draft, name, replace_damaged=True)
        return [ExportedFile(FileRecord(name, put.bytes, put.hash, put.sha256), rows)]


class _TrlWriter:
    """Parquet with all columns of a packed row, under the names that the Hub gives to shards."""

    def __init__(self, drafts: Drafts, place: ShardPlace, options: ExportOptions) -> None:
        self._drafts, self._rows = drafts, 0
        self._name = f"data/{place.split}-{place.index:05d}-of-{place.count:05d}.parquet"
        self._parquet = _Parquet(drafts.open("data"), place.schema)

    def add(self, rows: ExchangeRows, batch: pa.RecordBatch) -> ShardCounts:
        """See `ShardWriter`."""
        self._rows += len(rows)
        self._parquet.write(batch, batch.num_rows)
        return counts_of(rows)

    def close(self) -> list[ExportedFile]:
        """See `ShardWriter`. `datasets` opens Parquet without rows, so there always is a file."""
        return self._drafts.put(self._parquet.close(), self._name, self._rows)


class _BridgeWriter:
    def __init__(self, drafts: Drafts, place: ShardPlace, options: ExportOptions) -> None:
        self._drafts, self._place, self._rows = drafts, place, 0
        self._multiple = options.pad_seq_to_mult or 1
        self._parquet = _Parquet(drafts.open(place.split), bridge.SCHEMA)

    def add(self, rows: ExchangeRows, batch: pa.RecordBatch) -> ShardCounts:
        """See `ShardWriter`."""
        made = bridge.bridge_rows(rows, self._multiple, self._place.pad_id, self._place.max_length)
        self._rows += len(rows)
        self._parquet.write(made.batch, bridge.GROUP_ROWS)
        return replace(
            counts_of(rows),
            padding=made.padding,
            longest=made.longest,
            most_pieces=made.most_documents,
            shortest_row=made.shortest_row,
        )

    def close(self) -> list[ExportedFile]:
        """See `ShardWriter`."""
        draft = self._parquet.close()
        name = f"{self._place.split}/{self._place.index:05d}.idx.parquet"
        return self._drafts.put(draft, name, self._rows) if self._rows else []


class _MegatronWriter:
    def __init__(self, drafts: Drafts, place: ShardPlace, options: ExportOptions) -> None:
        self._drafts, self._rows = drafts, 0
        self._dtype = np.dtype(options.dtype)
        self._folders = (place.split, f"{place.split}-mask")
        self._stem = f"{place.index:05d}"
        self._tokens, self._mask = (drafts.open(folder) for folder in self._folders)
        self._index = SequenceIndex()

    def add(self, rows: ExchangeRows, batch: pa.RecordBatch) -> ShardCounts:
        """See `ShardWriter`."""
        ids = fitted(rows, self._dtype)
        self._rows += len(rows)
        self._index.add(rows)
        _write(self._tokens, ids)
        _write(self._mask, rows.trained)
        return counts_of(rows)

    def close(self) -> list[ExportedFile]:
        """See `ShardWriter`. The reader cannot map an empty file, so a shard without rows has none."""
        files: list[ExportedFile] = []
        kinds = (self._dtype, np.dtype(np.uint8))
        for folder, dtype, draft in zip(self._folders, kinds, (self._tokens, self._mask), strict=True):
            if self._rows:
                index = self._drafts.open(folder)
                _write(index, np.frombuffer(self._index.to_bytes(dtype), np.uint8))
                files += self._drafts.put(draft, f"{folder}/{self._stem}.bin", self._rows)
                files += self._drafts.put(index, f"{folder}/{self._stem}.idx", self._rows)
        return files


class _MdsWriter:
    """Shards of at most `mds.SIZE_LIMIT` bytes, or one sample; one of them is in memory at a time."""

    def __init__(self, drafts: Drafts, place: ShardPlace, options: ExportOptions) -> None:
        self._drafts, self._place = drafts, place
        self._samples: list[bytes] = []
        self._bytes = 0
        self._files: list[ExportedFile] = []

    def add(self, rows: ExchangeRows, batch: pa.RecordBatch) -> ShardCounts:
        """See `ShardWriter`."""
        for sample in mds.samples_of(batch) if self._drafts.written else ():  # every packed row fits
            if self._samples and self._bytes + len(sample) > mds.SIZE_LIMIT:
                self._flush()
            self._samples.append(sample)
            self._bytes += len(sample) + 4
        return counts_of(rows)

    def close(self) -> list[ExportedFile]:
        """See `ShardWriter`."""
        if self._samples:
            self._flush()
        return self._files

    def _flush(self) -> None:
        draft = self._drafts.open(self._place.split)
        _write(draft, np.frombuffer(mds.shard_head([len(one) for one in self._samples], self._place.schema), np.uint8))
        for sample in self._samples:
            _write(draft, np.frombuffer(sample, np.uint8))
        name = f"{self._place.split}/shard.{self._place.index:05d}.{len(self._files):05d}.mds"
        self._files += self._drafts.put(draft, name, len(self._samples))
        self._samples, self._bytes = [], 0


class _OlmoWriter:
    def __init__(self, drafts: Drafts, place: ShardPlace, options: ExportOptions) -> None:
        assert options.eos_id is not None
        self._drafts, self._place, self._rows = drafts, place, 0
        self._dtype, self._eos = np.dtype(options.dtype), options.eos_id
        self._filler = olmo.filler_of(options.eos_id, place.pad_id)
        self._tokens = drafts.open(place.split)
        self._mask = drafts.open(f"{place.split}-mask")
        self._bounds = drafts.open(place.split)
        # Without a time, so that the same rows give the same bytes.
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=self._bounds.file, mtime=0) if self._bounds else None

    def add(self, rows: ExchangeRows, batch: pa.RecordBatch) -> ShardCounts:
        """See `ShardWriter`."""
        olmo.check_bounds(rows, self._eos)
        capacity = self._place.max_length
        tokens, mask = olmo.filled_rows(rows, capacity, self._dtype, self._filler)
        _write(self._tokens, tokens)
        _write(self._mask, mask)
        if self._gzip is not None:
            self._gzip.write(olmo.bound_lines(rows, capacity, self._rows))
        self._rows += len(rows)
        return replace(counts_of(rows), padding=len(tokens) - len(rows.ids))

    def close(self) -> list[ExportedFile]:
        """See `ShardWriter`."""
        if self._gzip is not None:
            self._gzip.close()
        if not self._rows:
            return []
        split, stem = self._place.split, f"{self._place.index:05d}"
        return [
            *self._drafts.put(self._tokens, f"{split}/{stem}.npy", self._rows),
            *self._drafts.put(self._bounds, f"{split}/{stem}.csv.gz", self._rows),
            *self._drafts.put(self._mask, f"{split}-mask/{stem}.npy", self._rows),
        ]


WRITERS: dict[str, Callable[[Drafts, ShardPlace, ExportOptions], ShardWriter]] = {
    "megatron-bridge": _BridgeWriter,
    "megatron": _MegatronWriter,
    "mds": _MdsWriter,
    "olmo-core": _OlmoWriter,
    "trl": _TrlWriter,
}


def counts_of(rows: ExchangeRows) -> ShardCounts:
    """The counts of some rows as the dataset has them; there is at least one row."""
    pieces = np.diff(rows.row_pieces)
    return ShardCounts(
        rows=len(rows),
        pieces=len(rows.lengths),
        tokens=len(rows.ids),
        trained=int(np.count_nonzero(rows.trained)),
        longest=int(rows.lengths.max()),
        most_pieces=int(pieces.max()),
        shortest_row=int(np.diff(rows.row_tokens).min()),
    )


class _Parquet:
    """A Parquet file in a draft, or nowhere."""

    def __init__(self, draft: Draft | None, schema: pa.Schema) -> None:
        self._draft = draft
        self._writer = (
            pq.ParquetWriter(pa.PythonFile(draft.file, mode="w"), schema, compression="zstd") if draft else None
        )

    def write(self, batch: pa.RecordBatch, group_rows: int) -> None:
        if self._writer is not None:
            self._writer.write_batch(batch, row_group_size=group_rows)

    def close(self) -> Draft | None:
        if self._writer is not None:
            self._writer.close()
        return self._draft


def _write(draft: Draft | None, values: NDArray[Any]) -> None:
    if draft is not None:
        draft.file.write(np.ascontiguousarray(values).view(np.uint8).data)
