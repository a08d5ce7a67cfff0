"""Mapped Arrow shards, and the rows in them. Nothing is copied until a batch is made."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import IntegrityError
from ..schemas.manifest import ShardRecord
from ..schemas.rows import PACKED, ROW_SIZES, UNPADDED, WEIGHTS
from .dataset_files import DatasetFiles, MappedFile

_PER_TOKEN = ("input_ids", "labels", "position_ids", WEIGHTS)
"""Columns with a value for each token; the others have one for each piece."""


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
    """One record batch of packed rows.

    Raises:
        IntegrityError: columns of tokens or of pieces differ in length.
    """

    def __init__(self, batch: pa.RecordBatch, where: str) -> None:
        self._values: dict[str, NDArray[Any]] = {}
        starts: dict[bool, NDArray[np.int32]] = {}
        for name in (*PACKED.names, *(one for one in (UNPADDED, WEIGHTS) if one in batch.schema.names)):
            column = batch.column(name)
            self._values[name] = view(column.values, column.type.value_type)
            own = view(column.offsets, pa.int32())
            if not np.array_equal(own, starts.setdefault(name in _PER_TOKEN, own)):
                first = "input_ids" if name in _PER_TOKEN else "seq_lengths"
                raise IntegrityError(
                    f"{where}: {name} and {first} have different lengths; run packtrain verify on its folder"
                )
        # Reading one item of a memoryview takes a third of the time that an array needs.
        self._tokens, self._pieces = starts[True].data, starts[False].data

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


class Shard:
    """One mapped Arrow shard.

    Raises:
        IntegrityError: it cannot be read, or has another number of rows than its record says.
    """

    def __init__(self, files: DatasetFiles, record: ShardRecord) -> None:
        where = files.url(record.name)
        self.file = files.map(record.name, record.bytes, record.hash)
        batches = _read(self.file, pa.ipc.open_stream, record.rows, PACKED).to_batches()
        self._starts = [0, *accumulate(batch.num_rows for batch in batches)]
        self._chunks = [Chunk(batch, where) for batch in batches]

    def row(self, index: int) -> Row:
        """Row `index`. Raises IntegrityError if the file was changed."""
        self.file.check()
        number = bisect_right(self._starts, index) - 1
        return self._chunks[number].row(index - self._starts[number])


class RowSizes:
    """`ROW_SIZES` of one split, mapped, so that ordering and balancing open no shard.

    Raises:
        IntegrityError: the file cannot be read, or has another number of rows.
    """

    def __init__(self, file: MappedFile, rows: int) -> None:
        self._file = file
        table = _read(file, pa.ipc.open_file, rows, ROW_SIZES).combine_chunks()
        self._tokens: NDArray[np.int32] = view(table.column("tokens").chunk(0), pa.int32())
        self._squares: NDArray[np.int64] = view(table.column("squares").chunk(0), pa.int64())

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) tokens of each row, and (N,) the sum of its pieces' squared lengths."""
        self._file.check()
        return self._tokens[rows], self._squares[rows]


def _read(file: MappedFile, opened: Callable[[pa.Buffer], Any], rows: int, schema: pa.Schema) -> pa.Table:
    """What a file holds, which must have these columns, and so many rows.

    Raises:
        IntegrityError: it has not.
    """
    try:
        table = opened(file.buffer).read_all()
        for field in schema:
            if field.name not in table.schema.names or table.schema.field(field.name).type != field.type:
                raise ValueError(f"it has no column {field.name} of {field.type}")
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{file.where} cannot be read: {error}; run packtrain verify on its folder") from error
    if table.num_rows != rows:
        raise IntegrityError(
            f"{file.where} has {table.num_rows:,} rows, but the manifest says {rows:,}; "
            "packtrain verify --repair rebuilds it"
        )
    return table


def view(array: pa.Array, kind: pa.DataType) -> NDArray[Any]:
    """A read-only view of the array's memory; `to_numpy` would import pandas if it is installed."""
    data = array.buffers()[1]
    dtype = np.dtype(kind.to_pandas_dtype())
    if data is None:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
