"""The packed rows of a finished dataset, local or remote: random access to mapped shards, sizes, fingerprint, names of
documents. Nothing is copied until a batch is made.
"""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.dataset.manifest import Manifest, ShardRecord
from ..schemas.dataset.names import MANIFEST
from ..schemas.errors import InputError, IntegrityError, PacktrainError, did_you_mean
from ..schemas.files.arrow_sizes import require_bounded
from ..schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from ..schemas.tables.columns import PACKED_COLUMNS, UNPADDED, WEIGHTS, Per, packed_schema
from .dataset_files import CACHE_BYTES, DatasetFiles, MappedFile

DOCUMENTS = "documents.parquet"
LINEAGE = "packtrain/dataset"
"""Key under which logs, checkpoints and models name the dataset that they were trained on."""
OPEN_SHARDS = 256
"""Most shards that are mapped at once, because each has an open file."""
_PAIR = 32 * 4096 / 6.7e9
"""What attention costs for each of a document's ℓ² pairs, in units of one token's matrix multiplications. Forward and
backward, a token costs 6 operations for each parameter, and a document 6 · ℓ² · hidden for each layer: here of a model
with 6.7 billion parameters, 32 layers and 4,096 dimensions. Other sizes differ by a factor of two or three.
"""
MAKE_HOLDOUT = "`holdout: {fraction: 0.02}` in the run's configuration makes one"
"""Text that says how to get a split `holdout`."""


@dataclass(slots=True)  # not frozen: a frozen dataclass takes four times as long to make, and a step makes many
class Row:
    """One packed row, T tokens in D pieces; read-only views of a shard."""

    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    position_ids: NDArray[np.int32]
    """(T,)"""
    seq_lengths: NDArray[np.int32]
    """(D,) with padding"""
    doc_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), kw_only=True)
    """(D,) the document of each piece; empty if it is not known."""
    seq_lengths_unpadded: NDArray[np.int32] | None = field(default=None, kw_only=True)
    """(D,) without padding; None if the dataset does not say."""
    loss_weights: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """(T,) how much each label counts; None if all count 1."""
    parents: NDArray[np.int32] | None = field(default=None, kw_only=True)
    """(D,) how many pieces before it stands the piece whose path it continues, or 0; None without branches."""

    @property
    def own_lengths(self) -> NDArray[np.int32]:
        """(D,) without padding, as far as the dataset says."""
        return self.seq_lengths if self.seq_lengths_unpadded is None else self.seq_lengths_unpadded


class PackedRows:
    """The rows of one split of a finished dataset, in the order of its shards. Safe in threads.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: `train`, or `holdout` if there is one.
        remote: `cache`, `cache_bytes`, `storage_options`: see `DatasetFiles`.

    Raises:
        InputError: there is no finished dataset, or no such split.
        IntegrityError: a manifest or a shard is damaged.
    """

    def __init__(self, where: str | Path, split: str = "train", **remote: Any) -> None:
        self.files = DatasetFiles(where, **remote)
        self.manifest = read_manifest(self.files)
        if self.manifest.preference:
            raise InputError(
                f"{where} holds preference pairs, which are not packed rows; open it with datasets.load_from_disk, "
                "for TRL's DPOTrainer"
            )
        record = self.manifest.splits.get(split)
        if record is None:
            known = self.manifest.splits
            fix = f"; {MAKE_HOLDOUT}" if split == "holdout" else did_you_mean(split, known)
            raise InputError(f"{where} has no split {split!r}; it has {', '.join(known)}{fix}")
        self._shards = record.shards
        self._starts = [0, *accumulate(shard.rows for shard in self._shards)]
        # The processes of a machine share the cache, and the space of a file that was removed from it comes back when
        # it is no longer mapped: this one maps a quarter of its part at most.
        room = remote.get("cache_bytes", CACHE_BYTES) // (4 * int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        largest = 1 if self.files.is_local else max((shard.bytes for shard in self._shards), default=1)
        self.most = max(1, min(OPEN_SHARDS, room // largest))
        """Most shards that are mapped at once; rows in use keep their memory."""
        self._shard = lru_cache(self.most)(self._open)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def row_length(self) -> int:
        """The capacity of a row, in tokens."""
        return self.manifest.row_length

    @property
    def longest_allowed(self) -> int:
        """Most tokens that a piece may have by the configuration, with padding."""
        return self.manifest.longest_padded

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max(shard.max_docs for shard in self._shards)

    @property
    def highest_id(self) -> int:
        """The highest token id."""
        return max((shard.highest_id for shard in self._shards), default=0)

    @cached_property
    def longest(self) -> int:
        """Most tokens of a piece, with padding: those of the longest document, as far as the configuration lets it.
        Raises IntegrityError as `names`.
        """
        import pyarrow.compute as pc

        tokens = pc.max(self._documents(["tokens"]).column(0)).as_py() or 0
        return int(min(self.longest_allowed, tokens + self.manifest.pack.alignment.row - 1))

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the rows and their order, used to refuse states of another dataset."""
        text = "".join(f"{shard.hash} {shard.rows}\n" for shard in self._shards)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @cached_property
    def lineage(self) -> dict[str, str]:
        """The manifest's hash under `LINEAGE`, for the configuration that a log shows."""
        return {LINEAGE: self.manifest.hash}

    def row(self, index: int) -> Row:
        """Row `index`. Raises IndexError beyond the last one, and IntegrityError if its file was changed."""
        number = self.shard_of(index)
        shard: _Shard = self._shard(number)
        return shard.row(index - self._starts[number])

    def costs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) costs of rows, in units of one token's matrix multiplications. Opens no shard."""
        file, tokens, squares = self._sizes
        file.check()
        return tokens[rows] + _PAIR * squares[rows]

    def names(self, doc_ids: Sequence[int]) -> dict[int, tuple[str, str, str, int]]:
        """For each document id, (example id, source, file, line) from the table beside the shards.

        Raises:
            IntegrityError: the table is missing or damaged.
        """
        wanted = [("doc_id", "in", sorted(set(doc_ids)))]
        table = self._documents(["doc_id", "id", "source", "file", "line"], filters=wanted)
        ids, *rest = (column.to_pylist() for column in table.columns)
        return dict(zip(ids, zip(*rest, strict=True), strict=True))

    def chunks(self) -> Iterator[tuple[int, "Chunk"]]:
        """All record batches, each with the number of its first row. Raises IntegrityError as `row`."""
        for number, start in enumerate(self._starts[:-1]):
            shard: _Shard = self._shard(number)
            for begin, chunk in shard.chunks():
                yield start + begin, chunk

    # Shards

    def shard_of(self, index: int) -> int:
        """Number of the shard that holds row `index`. Raises IndexError beyond the last row."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no row {index}; there are {len(self):,}")
        return bisect_right(self._starts, index) - 1

    def url_of(self, shard: int) -> str:
        """Full address of a shard."""
        return self.files.url(self._shards[shard].name)

    def fetch(self, shard: int) -> None:
        """Download a shard into the cache, without keeping it open."""
        record = self._shards[shard]
        self.files.map(record.name, record.bytes, record.hash)

    def _open(self, shard: int) -> "_Shard":
        return _Shard(self.files, self._shards[shard])

    # Files beside them

    @cached_property
    def _sizes(self) -> tuple[MappedFile, NDArray[np.int32], NDArray[np.int64]]:
        """The file of `ROW_SIZES`, and for each row its tokens, and the sum of its pieces' squared lengths."""
        file = self._file(self._shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME)
        table = _read(file, pa.ipc.open_file, len(self), ROW_SIZES).combine_chunks()
        tokens, squares = (_view(table.column(one.name).chunk(0), one.type) for one in ROW_SIZES)
        return file, tokens, squares

    def _documents(self, columns: list[str], **options: Any) -> pa.Table:
        import pyarrow.parquet as pq

        try:
            return pq.read_table(pa.BufferReader(self._file(DOCUMENTS).buffer), columns=columns, **options)
        except (OSError, pa.ArrowException, IntegrityError) as error:
            url = self.files.url(DOCUMENTS)
            raise IntegrityError(f"{url} is missing or damaged ({error}); run the same configuration again") from error

    def _file(self, name: str) -> MappedFile:
        for file in self.manifest.files:
            if file.name == name:
                return self.files.map(name, file.bytes, file.hash)
        raise IntegrityError(f"{self.files.url(MANIFEST)} does not list {name}; pack again with this version")


class ChunkPieces(NamedTuple):
    """All pieces of a record batch, D pieces of R rows with T tokens."""

    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    begins: NDArray[np.int64]
    """(D,) where each piece begins in the two columns above."""
    lengths: NDArray[np.int64]
    """(D,) without padding, as far as the dataset says."""
    rows: NDArray[np.int64]
    """(D,) the row of each piece, from 0 for the first row of the batch."""
    row_ends: NDArray[np.int64]
    """(D,) where the row of each piece ends."""


class Chunk:
    """One record batch of packed rows.

    Raises:
        IntegrityError: columns of tokens or of pieces differ in length.
    """

    def __init__(self, batch: pa.RecordBatch, where: str) -> None:
        self._values: dict[str, NDArray[Any]] = {}
        starts: dict[Per, NDArray[np.int32]] = {}
        for column in PACKED_COLUMNS:
            if column.condition is not None and column.name not in batch.schema.names:
                continue
            lists = batch.column(column.name)
            self._values[column.name] = _view(lists.values, lists.type.value_type)
            list_starts = _view(lists.offsets, pa.int32())
            if not np.array_equal(list_starts, starts.setdefault(column.per, list_starts)):
                first = "input_ids" if column.per is Per.TOKEN else "seq_lengths"
                raise IntegrityError(
                    f"{where}: {column.name} and {first} have different lengths; run packtrain verify on its folder"
                )
        # Reading one item of a memoryview takes a third of the time that an array needs.
        self._tokens = starts[Per.TOKEN].data
        self._pieces = starts[Per.PIECE].data
        self._where = where

    def pieces(self) -> ChunkPieces:
        """All pieces at once, for code that searches through them.

        Raises:
            IntegrityError: the pieces of a row do not add up to its tokens.
        """
        values = self._values
        tokens, cuts = (np.asarray(starts, np.int64) for starts in (self._tokens, self._pieces))
        padded = values["seq_lengths"].astype(np.int64)
        lengths = values[UNPADDED].astype(np.int64) if UNPADDED in values else padded
        inside = all(
            bounds[0] >= 0 and (np.diff(bounds) >= 0).all() and bounds[-1] <= size
            for bounds, size in ((tokens, len(values["input_ids"])), (cuts, len(padded)))
        )
        ends = np.concatenate([[0], np.cumsum(padded)])
        fits = inside and (lengths >= 0).all() and (lengths <= padded).all()
        if not fits or not np.array_equal(np.diff(ends[cuts]), np.diff(tokens)):
            raise IntegrityError(
                f"{self._where}: the lengths of a row's documents do not add up to its tokens; run packtrain verify on "
                "its folder"
            )
        pieces = np.diff(cuts)
        used = slice(int(cuts[0]), int(cuts[-1]))
        begins = ends[:-1][used] + np.repeat(tokens[:-1] - ends[cuts[:-1]], pieces)
        rows = np.repeat(np.arange(len(pieces)), pieces)
        row_ends = np.repeat(tokens[1:], pieces)
        return ChunkPieces(values["input_ids"], values["labels"], begins, lengths[used], rows, row_ends)

    def row(self, at: int) -> Row:
        """Row `at` of the batch."""
        values = self._values
        tokens = slice(self._tokens[at], self._tokens[at + 1])
        pieces = slice(self._pieces[at], self._pieces[at + 1])
        return Row(
            values["input_ids"][tokens],
            values["labels"][tokens],
            values["position_ids"][tokens],
            values["seq_lengths"][pieces],
            doc_ids=values["doc_ids"][pieces],
            seq_lengths_unpadded=values[UNPADDED][pieces] if UNPADDED in values else None,
            loss_weights=values[WEIGHTS][tokens] if WEIGHTS in values else None,
        )


class _Shard:
    """One mapped shard. Raises IntegrityError if it cannot be read, or has another number of rows than its record."""

    def __init__(self, files: DatasetFiles, record: ShardRecord) -> None:
        self._file = files.map(record.name, record.bytes, record.hash)
        batches = _read(self._file, pa.ipc.open_stream, record.rows, packed_schema()).to_batches()
        self._starts = [0, *accumulate(batch.num_rows for batch in batches)]
        self._chunks = [Chunk(batch, self._file.where) for batch in batches]

    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        for begin, chunk in zip(self._starts, self._chunks, strict=False):
            self._file.check()
            yield begin, chunk

    def row(self, index: int) -> Row:
        self._file.check()
        number = bisect_right(self._starts, index) - 1
        return self._chunks[number].row(index - self._starts[number])


def _read(file: MappedFile, opened: Callable[[pa.Buffer], Any], rows: int, schema: pa.Schema) -> pa.Table:
    """What a file holds; IntegrityError if it does not have these columns, and so many rows."""
    try:
        require_bounded(memoryview(file.buffer), 0)
        table = opened(file.buffer).read_all()
        for one in schema:
            if one.name not in table.schema.names or table.schema.field(one.name).type != one.type:
                raise ValueError(f"it has no column {one.name} of {one.type}")
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{file.where} cannot be read: {error}; run packtrain verify on its folder") from error
    if table.num_rows != rows:
        raise IntegrityError(
            f"{file.where} has {table.num_rows:,} rows, but the manifest says {rows:,}; "
            "packtrain verify --repair rebuilds it"
        )
    return table


def _view(array: pa.Array, kind: pa.DataType) -> NDArray[Any]:
    """A read-only view of the array's memory; `to_numpy` would import pandas if it is installed."""
    data = array.buffers()[1]
    dtype = np.dtype(kind.to_pandas_dtype())
    if data is None:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]


def read_manifest(files: DatasetFiles) -> Manifest:
    """The manifest of a finished dataset.

    Raises:
        InputError: there is no finished dataset.
        IntegrityError: the manifest cannot be read; see `Manifest.read`.
    """
    try:
        return Manifest.read(files.read(MANIFEST), files.url(MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        what = f"has no {MANIFEST}, so it is not a finished dataset"
        if files.is_local and not files.folder.is_dir():
            what = "is a file" if files.folder.exists() else "does not exist"
        raise InputError(f"{files.where} {what}; give the folder that `packtrain run` wrote") from None
    except PacktrainError:  # the error's own message says more
        raise
    except OSError as error:
        raise IntegrityError(f"{files.url(MANIFEST)} cannot be read: {error}; make it readable") from error
