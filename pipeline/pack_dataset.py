"""Packs Hugging Face datasets, with the interface of `trl.pack_dataset`.

Shapes: `N` documents (rows of the input), `D` pieces, `R` packed rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import ConfigError, InputError
from ..schemas.layout import LayoutPlan
from ..schemas.ragged import offsets_of
from ..stages.pack.plan import Strategy, plan_rows

DatasetT = TypeVar("DatasetT")
SEQ_LENGTHS = pa.field("seq_lengths", pa.list_(pa.int32()))

_STRATEGIES = ("bfd", "tight", "bfd_split", "wrapped")
_VERSION = 2
"""Version of the packed rows, part of a dataset's fingerprint. Increase it when the same input would give other
rows.
"""

_BLOCK_TOKENS = 1 << 22
"""Number of token positions written at once when all rows are packed together. It limits the memory beyond the plan."""

_WRITING_OPTIONS = frozenset(
    {
        "cache_file_name",
        "desc",
        "disable_nullable",
        "keep_in_memory",
        "load_from_cache_file",
        "new_fingerprint",
        "on_mixed_types",
        "suffix_template",
        "try_original_type",
        "writer_batch_size",
    }
)
"""Options of `Dataset.map` that affect how rows are written, not their content."""

_OWN_OPTIONS = frozenset(
    {"batched", "fn_kwargs", "function", "input_columns", "with_indices", "with_rank", "with_split"}
)
"""Options of `map` that packing sets itself, or that make no sense for packing."""


class ColumnError(InputError, TypeError):
    """The columns cannot be packed: one does not hold lists, or the lists of two columns differ in length."""


def pack_dataset(
    dataset: DatasetT, seq_length: int, strategy: Strategy = "bfd", map_kwargs: dict[str, Any] | None = None
) -> DatasetT:
    """Pack the rows of a dataset whose columns all hold one list per row.

    A `Dataset` is packed as a whole, as is each split of a `DatasetDict`. An `IterableDataset` is packed in
    windows of 1,000 rows. `map_kwargs["batch_size"]` sets a window size for any of them; None or a number
    below 1 means the whole. Rows that are packed together give the same rows, in the same order, as
    `trl.pack_dataset`.

    Packing a `Dataset` as a whole reads the lengths first and then copies documents from the dataset. So memory
    holds only the plan (about 30 bytes per document and 12 more per column) and one block of rows, unless the
    dataset itself is in memory.

    Args:
        dataset: a Dataset, DatasetDict, IterableDataset or IterableDatasetDict of the `datasets` library.
            Empty and missing lists are skipped. The format is kept.
        seq_length: maximum number of tokens in a row, at least 2.
        strategy: `bfd` (longer documents are truncated), `tight` (so are they, in fewer rows than TRL's where a search
            finds them), `bfd_split` (they are cut into pieces) or `wrapped`
            (all documents are joined and cut every `seq_length` tokens).
        map_kwargs: options of the dataset's `map`, such as `batch_size`, `desc` or `num_proc`. `num_proc` applies
            to windows only, because a whole dataset is planned at once. Columns in `remove_columns` are removed
            before packing.

    Returns:
        A dataset of the same kind with the same columns; after all but `wrapped` also `seq_lengths`, the
        lengths of the pieces in each row.

    Raises:
        ConfigError: an option is unknown or out of range.
        InputError: `dataset` is not of one of the four kinds.
        ColumnError: a column does not hold lists, or two columns differ in the lengths of their lists. An
            IterableDataset raises it during iteration.
    """
    import datasets

    if strategy not in _STRATEGIES:
        raise ConfigError(f"strategy: {strategy!r} is not known. Use one of {', '.join(_STRATEGIES)}.")
    plan_rows([], seq_length, strategy)  # reject a wrong seq_length now, not at the first row
    options = dict(map_kwargs or {})
    if taken := set(options) & _OWN_OPTIONS:
        raise ConfigError(f"map_kwargs: {', '.join(sorted(taken))} cannot be set for packing. Leave it out.")
    packed: Any
    if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
        packed = type(dataset)(
            {
                name: pack_dataset(split, seq_length, strategy, _options_of_split(options, name))
                for name, split in dataset.items()
            }
        )
    elif isinstance(dataset, datasets.IterableDataset):
        packed = _pack_stream(dataset, seq_length, strategy, options)
    elif isinstance(dataset, datasets.Dataset):
        packed = _pack_table(dataset, seq_length, strategy, options)
    else:
        raise InputError(
            f"dataset: {type(dataset).__name__} cannot be packed. "
            "Give a Dataset, DatasetDict, IterableDataset or IterableDatasetDict."
        )
    return packed  # type: ignore[no-any-return]


def _options_of_split(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options that `DatasetDict.map` passes to the `map` of one split."""
    own = {key: value for key, value in options.items() if key != "cache_file_names"}
    if file := (options.get("cache_file_names") or {}).get(name):
        own["cache_file_name"] = file
    if fingerprint := options.get("new_fingerprint"):
        own["new_fingerprint"] = f"{fingerprint}_{name}"
    return own


def _pack_stream(dataset: Any, seq_length: int, strategy: Strategy, options: dict[str, Any]) -> Any:
    """Pack an IterableDataset window by window, during iteration."""
    formatting = dataset._formatting
    dataset = _without(dataset, options.pop("remove_columns", None)).with_format("arrow")
    windows = dataset.map(
        _pack_window, batched=True, fn_kwargs={"seq_length": seq_length, "strategy": strategy}, **options
    )
    return windows.with_format(formatting.format_type if formatting is not None else None)


def _pack_table(dataset: Any, seq_length: int, strategy: Strategy, options: dict[str, Any]) -> Any:
    """Pack a Dataset, in windows if a batch size is given, and restore its format."""
    style = dataset.format
    dataset = _without(dataset, options.pop("remove_columns", None))
    batch_size = options.pop("batch_size", None)
    if batch_size is None or batch_size < 1 or not len(dataset):
        packed = _pack_whole(dataset, seq_length, strategy, options)
    else:
        rows_by = {key: value for key, value in options.items() if key not in _WRITING_OPTIONS}
        options.setdefault(
            "new_fingerprint",
            _fingerprint(dataset, seq_length, strategy, (batch_size, sorted(rows_by.items()))),
        )
        packed = dataset.with_format("arrow").map(
            _pack_window,
            batched=True,
            batch_size=batch_size,
            fn_kwargs={"seq_length": seq_length, "strategy": strategy},
            **options,
        )
    columns = [name for name in style["columns"] if name in packed.column_names]
    if strategy != "wrapped":
        columns.append(SEQ_LENGTHS.name)
    return packed.with_format(
        type=style["type"],
        columns=columns,
        output_all_columns=style["output_all_columns"],
        **style["format_kwargs"],
    )


def _fingerprint(dataset: Any, seq_length: int, strategy: Strategy, rest: object) -> str:
    """Return the fingerprint of the packed rows. The fingerprint that `map` computes would ignore this module's
    version.
    """
    from datasets.fingerprint import Hasher

    named = (dataset._fingerprint, "packtrain.pack_dataset", _VERSION, seq_length, strategy, rest)
    return Hasher.hash(named)  # type: ignore[no-any-return]


def _without(dataset: Any, columns: str | list[str] | None) -> Any:
    return dataset.remove_columns(columns) if columns else dataset


def _pack_window(table: pa.Table, seq_length: int, strategy: Strategy) -> pa.Table:
    """Pack the rows of one table together."""
    source = ListSource.of(table)
    plan = plan_rows(source.lengths, seq_length, strategy)
    step = _rows_of_block(seq_length)
    blocks = [source.rows(plan, begin, begin + step, strategy) for begin in range(0, plan.rows, step)]
    return pa.concat_tables(blocks or [source.rows(plan, 0, 0, strategy)])


def _pack_block(table: pa.Table, source: "ListSource", plan: LayoutPlan, strategy: Strategy) -> pa.Table:
    """Return the packed rows whose consecutive numbers are in `table`."""
    numbers = table.column(0)
    return source.rows(plan, numbers[0].as_py(), numbers[-1].as_py() + 1, strategy)


def _rows_of_block(seq_length: int) -> int:
    return max(1, _BLOCK_TOKENS // seq_length)


def _pack_whole(dataset: Any, seq_length: int, strategy: Strategy, options: dict[str, Any]) -> Any:
    """Pack all rows of a Dataset together.

    `map` runs over the numbers of the packed rows instead of the dataset. Each block of rows is copied from the
    dataset by the plan, and `map` handles caching, progress and writing as usual.
    """
    import datasets

    # num_proc is ignored: the plan is made at once, and copying is as fast as the disk.
    options = {key: value for key, value in options.items() if key != "num_proc"}
    unknown = set(options) - _WRITING_OPTIONS - {"features"}
    if unknown:
        raise ConfigError(
            f"map_kwargs: {', '.join(sorted(unknown))} cannot be used when all rows are packed together. "
            'Leave it out, or set map_kwargs["batch_size"] to pack in windows.'
        )
    indices = dataset._indices
    source = ListSource.of(
        dataset.data.table, None if indices is None else indices.column(0).to_numpy().astype(np.int64)
    )
    plan = plan_rows(source.lengths, seq_length, strategy)

    features = options.pop("features", None)
    if features is None:
        features = dataset.features.copy()
        if strategy != "wrapped":
            features.update(datasets.Features.from_arrow_schema(pa.schema([SEQ_LENGTHS])))
    info = dataset.info.copy()
    info.features = features
    if not plan.rows:
        return datasets.Dataset(features.arrow_schema.empty_table(), info=info, split=dataset.split)

    fingerprint = options.setdefault(
        "new_fingerprint", _fingerprint(dataset, seq_length, strategy, features.arrow_schema)
    )
    if dataset.cache_files and not (options.get("keep_in_memory") or options.get("cache_file_name")):
        options["cache_file_name"] = dataset._get_cache_file_path(fingerprint)
    numbers = datasets.Dataset(pa.table({"row": np.arange(plan.rows)}), split=dataset.split)
    packed = numbers.with_format("arrow").map(
        _pack_block,
        batched=True,
        batch_size=_rows_of_block(seq_length),
        fn_kwargs={"source": source, "plan": plan, "strategy": strategy},
        features=features,
        **options,
    )
    info.features = packed.features
    packed._info = info
    return packed


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
