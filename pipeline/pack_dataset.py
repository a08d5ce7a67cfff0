"""Packs datasets of the `datasets` library, in place of `trl.pack_dataset`.

Shapes: `N` documents (rows of the input), `D` pieces, `R` packed rows.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import ConfigError, InputError
from ..schemas.layout import LayoutPlan
from ..schemas.ragged import offsets_of
from ..stages.pack.plan_rows import Strategy, plan_rows

DatasetT = TypeVar("DatasetT")
SEQ_LENGTHS = pa.field("seq_lengths", pa.list_(pa.int32()))

_STRATEGIES = ("bfd", "tight", "bfd_split", "wrapped")
_VERSION = 3
"""Part of a dataset's fingerprint. Increase it when the same input would give other rows."""
_BLOCK_TOKENS = 1 << 22
"""Token positions written at once. It limits the memory beyond the plan."""


class ColumnError(InputError, TypeError):
    """The columns cannot be packed: one does not hold lists, or the lists of two columns differ in length."""


def pack_dataset(dataset: DatasetT, seq_length: int, strategy: Strategy = "bfd") -> DatasetT:
    """Pack the rows of a dataset whose columns all hold one list per row, all together.

    The rows, and their order, are those of `trl.pack_dataset` with a window of the whole dataset. Memory holds the plan
    (about 30 bytes per document and 12 more per column) and one block of rows, unless the dataset itself is in memory.
    A dataset on disk is packed to disk, and found there the next time.

    Args:
        dataset: a Dataset, or a DatasetDict, of which each split is packed by itself. Empty and missing lists are
            skipped. The format is kept.
        seq_length: maximum number of tokens in a row, at least 2.
        strategy: `bfd` (longer documents are truncated), `tight` (so are they, in fewer rows than TRL's where a search
            finds them), `bfd_split` (they are cut into pieces) or `wrapped` (all documents are joined and cut every
            `seq_length` tokens).

    Returns:
        A dataset of the same kind with the same columns; after all but `wrapped` also `seq_lengths`, the lengths of the
        pieces in each row.

    Raises:
        ConfigError: an option is unknown or out of range.
        InputError: `dataset` is neither a Dataset nor a DatasetDict.
        ColumnError: a column does not hold lists, or two columns differ in the lengths of their lists.
    """
    import datasets

    if strategy not in _STRATEGIES:
        raise ConfigError(f"strategy: {strategy!r} is not known. Use one of {', '.join(_STRATEGIES)}.")
    plan_rows([], seq_length, strategy)  # reject a wrong seq_length also of an empty DatasetDict
    packed: Any
    if isinstance(dataset, datasets.DatasetDict):
        packed = datasets.DatasetDict(
            {name: pack_dataset(split, seq_length, strategy) for name, split in dataset.items()}
        )
    elif isinstance(dataset, datasets.Dataset):
        packed = _packed(dataset, seq_length, strategy)
    else:
        raise InputError(
            f"dataset: {type(dataset).__name__} cannot be packed. Give a Dataset or a DatasetDict; "
            "packtrain.training.PackedStream packs what is read as a stream."
        )
    return packed  # type: ignore[no-any-return]


def _packed(dataset: Any, seq_length: int, strategy: Strategy) -> Any:
    """Pack all rows of a Dataset together.

    `map` runs over the numbers of the packed rows, and does caching, progress and writing as usual.
    """
    import datasets
    from datasets.fingerprint import Hasher

    source = _Documents.of(dataset)
    plan = plan_rows(source.lengths, seq_length, strategy)
    features = dataset.features.copy()
    if strategy != "wrapped":
        features.update(datasets.Features.from_arrow_schema(pa.schema([SEQ_LENGTHS])))
    info = dataset.info.copy()
    info.features = features
    if plan.rows:
        # The fingerprint that `map` computes would ignore the version.
        named = (dataset._fingerprint, "packtrain.pack_dataset", _VERSION, seq_length, strategy)
        fingerprint = Hasher.hash(named)
        rows = datasets.Dataset(pa.table({"row": np.arange(plan.rows)}), split=dataset.split)
        packed = rows.with_format("arrow").map(
            lambda block: source.rows(plan, block["row"][0].as_py(), block["row"][-1].as_py() + 1, strategy),
            batched=True,
            batch_size=max(1, _BLOCK_TOKENS // seq_length),
            features=features,
            new_fingerprint=fingerprint,
            cache_file_name=dataset._get_cache_file_path(fingerprint) if dataset.cache_files else None,
        )
        packed._info = info
    else:
        packed = datasets.Dataset(features.arrow_schema.empty_table(), info=info, split=dataset.split)
    style = dataset.format
    columns = style["columns"] + ([SEQ_LENGTHS.name] if strategy != "wrapped" else [])
    style |= {"columns": columns} | style.pop("format_kwargs")
    return packed.with_format(**style)


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """One list column, as a view of its chunks, without copies."""

    name: str
    type: pa.DataType
    values: list[pa.Array]
    """The elements of each chunk."""
    chunk_ends: NDArray[np.int64]
    """The end row, exclusive, of each chunk."""
    starts: NDArray[np.int64]
    """(rows,) index of each row's first element in its chunk's values."""
    lengths: NDArray[np.int32]
    """(rows,) number of elements of each row; 0 if its list is missing."""

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray) -> "_Column":
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
        starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for chunk in column.chunks:
            offsets = chunk.offsets.to_numpy()
            starts.append(offsets[:-1].astype(np.int64))
            lengths.append(np.where(chunk.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets)))
        ends = np.cumsum([len(chunk) for chunk in column.chunks], dtype=np.int64)
        found = np.concatenate(starts), np.concatenate(lengths).astype(np.int32)
        return cls(name, column.type, [chunk.values for chunk in column.chunks], ends, *found)

    def gather(
        self, rows: NDArray[np.int64], skips: NDArray[np.int64], lengths: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> pa.Array:
        """Return (R,) lists of the elements `skips[p] : skips[p] + lengths[p]` of every row `rows[p]`, end to end.

        Args:
            offsets: (R + 1,) first element of each list, then their number.
        """
        chunk = np.searchsorted(self.chunk_ends, rows, side="right").tolist()
        start = (self.starts[rows] + skips).tolist()
        slices = [self.values[c].slice(s, n) for c, s, n in zip(chunk, start, lengths.tolist(), strict=True)]
        large = pa.types.is_large_list(self.type)
        kind, offset_type = (pa.LargeListArray, np.int64) if large else (pa.ListArray, np.int32)
        return kind.from_arrays(offsets.astype(offset_type), pa.concat_arrays(slices), type=self.type)


@dataclass(frozen=True, slots=True, eq=False)
class _Documents:
    """The documents to pack, one per row."""

    columns: list[_Column]
    selected: NDArray[np.int64] | None
    """(N,) the row of each document in the columns; None if all rows are taken in order."""
    lengths: NDArray[np.int32]
    """(N,) tokens of each document."""

    @classmethod
    def of(cls, dataset: Any) -> "_Documents":
        """Take every column of a Dataset.

        Raises:
            ColumnError: there are no columns, one does not hold lists, or the lists of two columns differ in length.
        """
        table, indices = dataset.data.table, dataset._indices
        selected = None if indices is None else indices.column(0).to_numpy().astype(np.int64)
        columns = [_Column.of(name, table.column(name)) for name in table.column_names]
        if not columns:
            raise ColumnError("dataset: has no columns to pack. Keep at least one, such as input_ids.")
        lengths, *others = (one.lengths if selected is None else one.lengths[selected] for one in columns)
        for column, other in zip(columns[1:], others, strict=True):
            if not np.array_equal(lengths, other):
                row = int(np.argmax(lengths != other))
                raise ColumnError(
                    f"columns {columns[0].name!r} and {column.name!r}: row {row} has lists of {lengths[row]} "
                    f"and {other[row]} elements. Packing needs one element per token in every column; "
                    "remove the column that is not per token."
                )
        return cls(columns, selected, lengths)

    def rows(self, plan: LayoutPlan, begin: int, end: int, strategy: Strategy) -> pa.Table:
        """Return packed rows `begin : end` of the plan: all columns, and `seq_lengths` unless the strategy is
        wrapped.
        """
        offsets = plan.row_offsets[begin : end + 1]
        here = slice(int(offsets[0]), int(offsets[-1]))
        offsets = offsets - here.start
        documents, starts, lengths = plan.order[here], plan.starts[here], plan.lengths[here]
        where = documents if self.selected is None else self.selected[documents]
        of_tokens = offsets_of(lengths)[offsets]
        arrays = {column.name: column.gather(where, starts, lengths, of_tokens) for column in self.columns}
        if strategy != "wrapped":
            pieces = offsets.astype(np.int32)
            arrays[SEQ_LENGTHS.name] = pa.ListArray.from_arrays(pieces, lengths, type=SEQ_LENGTHS.type)
        return pa.table(arrays)
