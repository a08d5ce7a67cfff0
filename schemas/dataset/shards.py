"""What Arrow files of a dataset hold: the record batches of a shard, and the sizes of a split's rows.

Nothing is copied: what these functions give are views of a mapped file.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..arrays import view
from ..errors import IntegrityError
from ..files.arrow_sizes import require_bounded
from ..rows import ROW_SIZES
from ..tables.columns import with_usual_names
from .files import MappedFile, require_columns


def read_batches(file: MappedFile, rows: int, columns: pa.Schema, *, validate: bool) -> Iterator[pa.RecordBatch]:
    """The record batches of a shard, with the usual names of their columns.

    Args:
        file: the shard.
        rows: how many it has, as the manifest says.
        columns: which it has, in this order.
        validate: check the offsets and values of a batch before it comes, which reads all of its memory. A loader does
            without: it looks at the rows that it takes.

    Raises:
        IntegrityError: the shard is damaged, or does not match its record.
    """
    count = 0
    with file.reading():
        # Before pyarrow unpacks anything: a compressed kilobyte may ask for any amount of memory. With 0, no batch may
        # be compressed.
        require_bounded(memoryview(file.buffer), 0)
        for batch in pa.ipc.open_stream(file.buffer):
            require_columns(batch.schema, columns)
            file.check()  # a file cut meanwhile would end the process when its memory is read
            if validate:
                batch.validate(full=True)
            count += batch.num_rows
            yield with_usual_names(batch)
    _require_rows(file, count, rows)  # a stream that was cut short between two batches is read without an error


class RowSizes(NamedTuple):
    """The sizes of a split's R rows."""

    file: MappedFile
    """The mapped file; both columns are views of it."""
    tokens: NDArray[np.int32]
    """(R,) tokens of a row, with padding."""
    squares: NDArray[np.int64]
    """(R,) sums of the squared lengths of a row's pieces."""


def read_row_sizes(file: MappedFile, rows: int) -> RowSizes:
    """The sizes of rows, in the order of the shards.

    Args:
        file: of `schemas.rows.ROW_SIZES`.
        rows: how many the split has.

    Raises:
        IntegrityError: the file is damaged, or has other columns, or other rows.
    """
    with file.reading():
        # At most 0 bytes may come of unpacking: nothing may be compressed, as in `read_batches`.
        require_bounded(memoryview(file.buffer), 0)
        content = pa.ipc.open_file(file.buffer)
        require_columns(content.schema, ROW_SIZES)
        if content.num_record_batches != 1:
            raise ValueError(f"it has {content.num_record_batches:,} record batches in place of one")
        batch = content.get_batch(0)
    _require_rows(file, batch.num_rows, rows)
    return RowSizes(file, view(batch.column("tokens")), view(batch.column("squares")))


def _require_rows(file: MappedFile, actual: int, expected: int) -> None:
    """Raise IntegrityError if a file has another number of rows than the manifest says."""
    if actual != expected:
        raise IntegrityError(
            f"{file.where} has {actual:,} rows, but the manifest says {expected:,}; packtrain verify --repair rebuilds "
            "it"
        )
