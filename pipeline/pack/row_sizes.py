"""Writes the size of every packed row to a separate file, so that ordering and balancing need not open shards."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.manifest import FileRecord, SplitRecord
from ...schemas.ragged import sums_of
from ...schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from ...stages.arrays import numbers
from ..store.open_store import Store
from .arrow_files import put_arrow


class RowSizes:
    """Collects `ROW_SIZES` of a split from the plans of its windows: 12 bytes a row."""

    def __init__(self, alignment: Alignment) -> None:
        self._alignment = alignment
        self._tokens, self._squares = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]

    def add(self, lengths: NDArray[np.int32], row_offsets: NDArray[np.int64]) -> None:
        """Add the rows of the next window."""
        lengths = self._alignment.padded(lengths, row_offsets).astype(np.int64)
        self._tokens.append(sums_of(lengths, row_offsets).astype(np.int32))
        self._squares.append(sums_of(lengths * lengths, row_offsets))

    def put(self, store: Store, folder: str) -> FileRecord:
        """Write the split's file, in one batch, because readers map only the first."""
        columns = [numbers(np.concatenate(column)) for column in (self._tokens, self._squares)]
        return put_arrow(store, f"{folder}{ROW_SIZES_NAME}", pa.RecordBatch.from_arrays(columns, schema=ROW_SIZES))


def row_sizes_name(split: SplitRecord) -> str:
    """Return the name that a split's file has in the manifest."""
    return split.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME
