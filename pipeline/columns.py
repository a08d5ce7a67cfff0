"""Gathers list columns of a Hugging Face dataset's table by a plan, without copying them first.

Shapes: `N` documents (rows of the input), `D` pieces, `R` packed rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import InputError
from ..schemas.layout import LayoutPlan
from ..schemas.ragged import offsets_of
from ..stages.pack.plan import Strategy

SEQ_LENGTHS = pa.field("seq_lengths", pa.list_(pa.int32()))


class ColumnError(InputError, TypeError):
    """The columns cannot be packed: one does not hold lists, or the lists of two columns differ in length."""


@dataclass(frozen=True, slots=True, eq=False)
class ListColumn:
    """One list column, as a view of its chunks, without copies."""

    name: str
    type: pa.DataType
    values: list[pa.Array]
    """The elements of each chunk."""
    chunk_ends: NDArray[np.int64]
    """The end row, exclusive, of each chunk."""
    starts: NDArray[np.int64]
    """(N,) index of each row's first element in its chunk's values."""
    lengths: NDArray[np.int32]
    """(N,) number of elements of each row; 0 if its list is missing."""

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray) -> "ListColumn":
        """Find the rows of a column.

        Raises:
            ColumnError: the column does not hold lists.
        """
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            if len(column) or not pa.types.is_null(column.type):  # an empty column may lack a type
                raise ColumnError(
                    f"column {name!r}: holds {column.type}, and packing needs a list in each row. "
                    f"Remove the column first (dataset.remove_columns({name!r})) or make it a list per token."
                )
            column = column.cast(pa.list_(pa.null()))
        chunks = column.chunks
        offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        lengths = [np.diff(offset).astype(np.int32) for offset in offsets]
        for length, chunk in zip(lengths, chunks, strict=True):
            if chunk.null_count:
                length[chunk.is_null().to_numpy(zero_copy_only=False)] = 0
        return cls(
            name,
            column.type,
            [chunk.values for chunk in chunks],
            np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64),
            np.concatenate([np.zeros(0, np.int64), *(offset[:-1] for offset in offsets)], dtype=np.int64),
            np.concatenate([np.zeros(0, np.int32), *lengths]),
        )

    def gather(self, rows: NDArray[np.int64], skips: NDArray[np.int64], lengths: NDArray[np.int32]) -> pa.Array:
        """Return (T,) the elements `skips[p] : skips[p] + lengths[p]` of every row `rows[p]`, concatenated."""
        if not len(rows):
            return pa.array([], type=self.type.value_type)
        chunk = np.searchsorted(self.chunk_ends, rows, side="right").tolist()
        start = (self.starts[rows] + skips).tolist()
        values = self.values
        return pa.concat_arrays([values[c].slice(s, n) for c, s, n in zip(chunk, start, lengths.tolist(), strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class ListSource:
    """The documents to pack, one per row."""

    columns: list[ListColumn]
    selected: NDArray[np.int64] | None
    """(N,) the row of each document in the columns; None if all rows are taken in order."""
    lengths: NDArray[np.int32]
    """(N,) tokens of each document."""

    @classmethod
    def of(cls, table: pa.Table, selected: NDArray[np.int64] | None = None) -> "ListSource":
        """Take every column of a table.

        Raises:
            ColumnError: there are no columns, one does not hold lists, or the lists of two columns differ in length.
        """
        columns = [ListColumn.of(name, table.column(name)) for name in table.column_names]
        if not columns:
            raise ColumnError("dataset: has no columns to pack. Keep at least one, such as input_ids.")
        lengths = _choose(columns[0].lengths, selected)
        for column in columns[1:]:
            others = _choose(column.lengths, selected)
            if not np.array_equal(lengths, others):
                row = int(np.argmax(lengths != others))
                raise ColumnError(
                    f"columns {columns[0].name!r} and {column.name!r}: row {row} has lists of {lengths[row]} "
                    f"and {others[row]} elements. Packing needs one element per token in every column; "
                    "remove the column that is not per token."
                )
        return cls(columns, selected, lengths)

    def rows(self, plan: LayoutPlan, begin: int, end: int, strategy: Strategy) -> pa.Table:
        """Return packed rows `begin : end` of the plan: all columns, and `seq_lengths` unless the strategy is
        wrapped.
        """
        offsets = plan.row_offsets[begin : end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        documents, lengths = plan.order[first:last], plan.lengths[first:last]
        of_tokens = offsets_of(lengths)[offsets - first]
        where = documents if self.selected is None else self.selected[documents]
        arrays = []
        for column in self.columns:
            large = pa.types.is_large_list(column.type)
            values = column.gather(where, plan.starts[first:last], lengths)
            list_array, offset_type = (pa.LargeListArray, np.int64) if large else (pa.ListArray, np.int32)
            arrays.append(list_array.from_arrays(of_tokens.astype(offset_type), values, type=column.type))
        names = [column.name for column in self.columns]
        if strategy != "wrapped":
            pieces = (offsets - first).astype(np.int32)
            arrays.append(pa.ListArray.from_arrays(pieces, lengths, type=SEQ_LENGTHS.type))
            names.append(SEQ_LENGTHS.name)
        return pa.Table.from_arrays(arrays, names=names)


def _choose(array: NDArray[Any], selected: NDArray[np.int64] | None) -> NDArray[Any]:
    return array if selected is None else array[selected]
