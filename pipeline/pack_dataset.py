"""Packs Hugging Face datasets, with the interface of `trl.pack_dataset`.

Shapes: `N` documents (rows of the input), `D` pieces, `R` packed rows.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ..schemas.errors import ConfigError, InputError
from ..schemas.layout import LayoutPlan
from ..stages.pack.plan import Strategy, plan_rows
from .columns import SEQ_LENGTHS, ListSource

DatasetT = TypeVar("DatasetT")

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
