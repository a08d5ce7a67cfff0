"""Random access to packed rows: Arrow shards, memory-mapped, never copied before a batch is made."""

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import InputError, IntegrityError
from ..schemas.manifest import Manifest, ShardRecord
from ..schemas.rows import PACKED

MANIFEST = "manifest.json"
_SEQ_LENGTHS = PACKED.get_field_index("seq_lengths")


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One packed row of T tokens in D pieces; views of the shard, read-only."""

    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    position_ids: NDArray[np.int32]
    """(T,)"""
    seq_lengths: NDArray[np.int32]
    """(D,)"""
    doc_starts: NDArray[np.int32]
    """(D,)"""
    doc_ids: NDArray[np.int64]
    """(D,)"""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One record batch: for each column its values, and where each row begins in them."""

    values: tuple[NDArray[Any], ...]
    offsets: tuple[NDArray[np.int32], ...]


class PackedRows:
    """All rows of one split, in the order in which the shards hold them.

    Args:
        folder: what `packtrain run` wrote.
        split: `train`, or `holdout` where there is one.

    Raises:
        InputError: there is no finished dataset, no such split, or its shards are Parquet.
        IntegrityError: the manifest or a shard is not what it should be.
    """

    def __init__(self, folder: Path, split: str = "train") -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        record = self.manifest.splits.get(split)
        if record is None:
            raise InputError(f"{folder} has no split {split!r}; it has {', '.join(self.manifest.splits)}")
        self.split = split
        self.shards = record.shards
        self._starts = [0, *accumulate(shard.rows for shard in self.shards)]
        self._chunks: dict[int, tuple[list[int], list[_Chunk]]] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """Capacity of a row, in tokens."""
        return self.manifest.max_length

    @property
    def fingerprint(self) -> str:
        """Of the split's rows and their order: a state of another dataset is refused."""
        digest = hashlib.blake2b(digest_size=16)
        for shard in self.shards:
            digest.update(f"{shard.hash} {shard.rows}\n".encode())
        return digest.hexdigest()

    def row(self, index: int) -> PackedRow:
        """Row `index`. Raises IndexError beyond the last one."""
        chunk, index = self._find(index)
        columns = [values[o[index] : o[index + 1]] for values, o in zip(chunk.values, chunk.offsets, strict=True)]
        return PackedRow(*columns)

    def seq_lengths(self, index: int) -> NDArray[np.int32]:
        """(D,) the lengths of row `index`'s pieces: what ordering and counting need, without touching a token."""
        chunk, index = self._find(index)
        offsets = chunk.offsets[_SEQ_LENGTHS]
        lengths: NDArray[np.int32] = chunk.values[_SEQ_LENGTHS][offsets[index] : offsets[index + 1]]
        return lengths

    def tokens(self, index: int) -> int:
        """Tokens of row `index`."""
        chunk, index = self._find(index)
        offsets = chunk.offsets[0]
        return int(offsets[index + 1]) - int(offsets[index])

    def _find(self, index: int) -> tuple[_Chunk, int]:
        """The chunk that holds a row, and the row's number in it."""
        if not 0 <= index < self._starts[-1]:
            raise IndexError(f"there is no row {index}; the split {self.split!r} has {len(self):,}")
        shard = bisect_right(self._starts, index) - 1
        index -= self._starts[shard]
        chunk_starts, chunks = self._open(shard)
        number = bisect_right(chunk_starts, index) - 1
        return chunks[number], index - chunk_starts[number]

    def _open(self, number: int) -> tuple[list[int], list[_Chunk]]:
        found = self._chunks.get(number)
        if found is None:
            found = self._chunks[number] = open_shard(self.folder / self.shards[number].name, self.shards[number])
        return found


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished dataset.

    Raises:
        InputError: there is none.
        IntegrityError: it cannot be read.
    """
    path = folder / MANIFEST
    try:
        return Manifest.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        above = folder.absolute().parent
        hint = f"; for a part of it, open {above} with split={folder.name!r}" if (above / MANIFEST).exists() else ""
        raise InputError(f"{folder} has no {MANIFEST}: nothing finished is in it{hint}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path} is not a manifest of this version of packtrain ({error!r})") from error


def document_names(folder: Path, doc_ids: list[int]) -> dict[int, tuple[str, str, str, int]]:
    """Document id → (example id, source, file, line), from the table beside the shards.

    Raises:
        IntegrityError: the table is missing or damaged.
    """
    import pyarrow.parquet as pq

    path = folder / "documents.parquet"
    columns = ["doc_id", "id", "source", "file", "line"]
    try:
        table = pq.read_table(path, columns=columns, filters=[("doc_id", "in", sorted(set(doc_ids)))])
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path} is missing or damaged ({error}); run the same configuration again") from error
    ids, *rest = (table.column(name).to_pylist() for name in columns)
    return dict(zip(ids, zip(*rest, strict=True), strict=True))


def open_shard(path: Path, shard: ShardRecord) -> tuple[list[int], list[_Chunk]]:
    """(chunks + 1,) where each chunk's rows begin, and the chunks.

    Raises:
        InputError: the shard is Parquet.
        IntegrityError: it is missing, has another size, or other rows than its record says.
    """
    if path.suffix == ".parquet":
        raise InputError(f"{path} is Parquet; pack with output.format: arrow, which can be mapped into memory")
    try:
        if path.stat().st_size != shard.bytes:
            raise IntegrityError(f"{path} has {path.stat().st_size:,} bytes, but the manifest says {shard.bytes:,}")
        with pa.memory_map(str(path)) as source:
            batches = list(pa.ipc.open_stream(source))
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; run packtrain verify on its folder") from error
    chunks = [_chunk(batch) for batch in batches]
    starts = [0, *accumulate(batch.num_rows for batch in batches)]
    if starts[-1] != shard.rows:
        raise IntegrityError(f"{path} has {starts[-1]:,} rows, but the manifest says {shard.rows:,}")
    return starts, chunks


def _chunk(batch: pa.RecordBatch) -> _Chunk:
    columns = [batch.column(field.name) for field in PACKED]
    values = tuple(_view(column.values, field.type.value_type) for column, field in zip(columns, PACKED, strict=True))
    return _Chunk(values, tuple(_view(column.offsets, pa.int32()) for column in columns))


def _view(array: pa.Array, kind: pa.DataType) -> NDArray[Any]:
    """The array's own memory; `to_numpy` would import pandas where it is installed."""
    data = array.buffers()[1]
    dtype = np.dtype(kind.to_pandas_dtype())
    if data is None:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
