"""Mapped Arrow shards, and the rows in them. Nothing is copied until a batch is made."""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import InputError, IntegrityError
from ..schemas.manifest import ShardRecord
from ..schemas.rows import PACKED, ROW_SIZES, UNPADDED, WEIGHTS
from .dataset_files import Files, MappedFile


def _no_ids() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


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
    doc_ids: NDArray[np.int64] = field(default_factory=_no_ids, kw_only=True)
    """(D,) the document of each piece; empty if it is not known."""
    seq_lengths_unpadded: NDArray[np.int32] | None = field(default=None, kw_only=True)
    """(D,) without padding; None if the dataset does not say."""
    loss_weights: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """(T,) how much each label counts; None if all count 1."""

    @property
    def own_lengths(self) -> NDArray[np.int32]:
        """(D,) without padding, as far as the dataset says."""
        return self.seq_lengths if self.seq_lengths_unpadded is None else self.seq_lengths_unpadded


class Chunk:
    """One record batch of packed rows: the values of each column, and where each row begins in them.

    Raises:
        IntegrityError: columns of tokens or of pieces differ in length.
    """

    def __init__(self, batch: pa.RecordBatch, where: str) -> None:
        names = [*PACKED.names, *(name for name in (UNPADDED, WEIGHTS) if name in batch.schema.names)]
        columns = [batch.column(name) for name in names]
        values = dict(zip(names, (view(one.values, one.type.value_type) for one in columns), strict=True))
        offsets = [view(one.offsets, pa.int32()) for one in columns]
        for own, name in enumerate(names):
            first = 0 if own < 3 or name == WEIGHTS else 3
            if not np.array_equal(offsets[own], offsets[first]):
                raise IntegrityError(
                    f"{where}: {name} and {names[first]} have different lengths; run packtrain verify on its folder"
                )
        self._tokens = [values[name] for name in names[:3]]
        self._lengths, self._doc_ids = values["seq_lengths"], values["doc_ids"]
        self._unpadded, self._weights = values.get(UNPADDED), values.get(WEIGHTS)
        # Reading one item of a memoryview takes a third of the time that an array needs.
        self._token_starts, self._doc_starts = offsets[0].data, offsets[3].data

    def row(self, at: int) -> Row:
        """Row `at` of the batch."""
        tokens = slice(self._token_starts[at], self._token_starts[at + 1])
        docs = slice(self._doc_starts[at], self._doc_starts[at + 1])
        ids, labels, positions = self._tokens
        return Row(
            ids[tokens],
            labels[tokens],
            positions[tokens],
            self._lengths[docs],
            doc_ids=self._doc_ids[docs],
            seq_lengths_unpadded=None if self._unpadded is None else self._unpadded[docs],
            loss_weights=None if self._weights is None else self._weights[tokens],
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest piece."""
        return int(self._lengths.max(initial=0))


class Shard:
    """One mapped Arrow shard.

    Raises:
        InputError: the shard is Parquet.
        IntegrityError: it cannot be read, or has another number of rows than its record says.
    """

    def __init__(self, files: Files, record: ShardRecord) -> None:
        where = files.url(record.name)
        if record.name.endswith(".parquet"):
            raise InputError(f"{where} is Parquet; pack with output.format: arrow, which can be mapped into memory")
        self.file = files.map(record.name, record.bytes, record.hash)
        try:
            batches = list(pa.ipc.open_stream(self.file.buffer))
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise IntegrityError(f"{where} cannot be read: {error}; run packtrain verify on its folder") from error
        self._starts = [0, *accumulate(batch.num_rows for batch in batches)]
        if self._starts[-1] != record.rows:
            raise IntegrityError(
                f"{where} has {self._starts[-1]:,} rows, but the manifest says {record.rows:,}; "
                "packtrain verify --repair rebuilds it"
            )
        self._chunks = [Chunk(batch, where) for batch in batches]

    def row(self, index: int) -> Row:
        """Row `index`. Raises IntegrityError if the file was changed."""
        self.file.check()
        number = bisect_right(self._starts, index) - 1
        return self._chunks[number].row(index - self._starts[number])

    @property
    def longest(self) -> int:
        """Tokens of the longest piece."""
        self.file.check()
        return max((chunk.longest for chunk in self._chunks), default=0)


class RowSizes:
    """`ROW_SIZES` of one split, mapped, so that ordering and balancing open no shard.

    Raises:
        IntegrityError: the file cannot be read, or has another number of rows.
    """

    def __init__(self, file: MappedFile, rows: int) -> None:
        self._file = file
        try:
            batch = pa.ipc.open_file(file.buffer).get_batch(0)
            if batch.schema != ROW_SIZES:
                raise ValueError(f"its columns are {batch.schema.names}")
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise IntegrityError(f"{file.where} cannot be read: {error}; run packtrain verify on its folder") from error
        if batch.num_rows != rows:
            raise IntegrityError(
                f"{file.where} has {batch.num_rows:,} rows, but the manifest says {rows:,}; "
                "packtrain verify --repair rebuilds it"
            )
        self._tokens: NDArray[np.int32] = view(batch.column("tokens"), pa.int32())
        self._squares: NDArray[np.int64] = view(batch.column("squares"), pa.int64())

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) tokens of each row, and (N,) the sum of its pieces' squared lengths."""
        self._file.check()
        return self._tokens[rows], self._squares[rows]

    def longest(self, begin: int, end: int) -> int:
        """Upper bound on the tokens of a piece in rows begin .. end - 1, from the sums of squares."""
        self._file.check()
        bounds = np.minimum(self._tokens[begin:end], np.floor(np.sqrt(self._squares[begin:end])))
        return int(bounds.max(initial=0))


def view(array: pa.Array, kind: pa.DataType) -> NDArray[Any]:
    """A read-only view of the array's memory; `to_numpy` would import pandas if it is installed."""
    data = array.buffers()[1]
    dtype = np.dtype(kind.to_pandas_dtype())
    if data is None:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
