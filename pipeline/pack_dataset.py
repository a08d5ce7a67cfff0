"""Packs datasets of the `datasets` library, in place of `trl.pack_dataset`."""

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..schemas.errors import ConfigError, InputError
from ..schemas.layout import LayoutPlan
from ..schemas.ragged import offsets_of, ranges
from ..schemas.tables.strategies import STRATEGIES, StrategyName
from ..stages.pack.plan_rows import plan_rows

DatasetT = TypeVar("DatasetT")
SEQ_LENGTHS = pa.field("seq_lengths", pa.list_(pa.int32()))
"""The column with the lengths of the pieces in each row, named and typed as TRL's."""

_VERSION = 3
"""Part of a dataset's fingerprint. Increase it when the same input would give other rows."""
_BLOCK_TOKENS = 1 << 22
"""Token positions written at once. It limits the memory beyond the plan."""


def pack_dataset(
    dataset: DatasetT, seq_length: int, strategy: StrategyName = "bfd", *, max_length: int | None = None
) -> DatasetT:
    """Pack the rows of a dataset whose columns all hold one list per row, all together.

    The rows, and their order, are those of `trl.pack_dataset` with a window of the whole dataset. Memory holds the plan
    (about 30 bytes per document) and one block of rows, unless the dataset itself is in memory.
    A dataset on disk is packed to disk, and found there the next time.

    Args:
        dataset: a Dataset, or a DatasetDict, of which each split is packed by itself. Empty and missing lists are
            skipped. The format is kept.
        seq_length: maximum number of tokens in a row, at least 2.
        strategy: `bfd` (longer documents are truncated), `tight` (the same, but a search for fewer rows follows),
            `bfd_split` (longer documents are cut into pieces), `wrapped` (all documents are joined and cut every
            `seq_length` tokens), or `none` (each row is one document, truncated).
        max_length: longer documents are truncated to this, at most `seq_length`. None: to `seq_length`. Not for
            `bfd_split` and `wrapped`, which cut documents where rows end.

    Returns:
        A dataset of the same kind with the same columns; after all but `wrapped` also `seq_lengths`, the lengths of the
        pieces in each row.

    Raises:
        ConfigError: an option is unknown or out of range, or `max_length` is given for `bfd_split` or `wrapped`.
        InputError: `dataset` is neither a Dataset nor a DatasetDict; or it has no columns, one does not hold lists, or
            two columns differ in the lengths of their lists.
    """
    import datasets

    if max_length is not None and strategy in STRATEGIES and STRATEGIES[strategy].cuts_documents:
        raise ConfigError(f"max_length: {strategy} cuts documents where rows end, at seq_length; leave max_length out")
    limit = seq_length if max_length is None else max_length
    # Only for its checks: of a DatasetDict without splits, no plan would be made below.
    plan_rows([], max_length=limit, strategy=strategy, row_length=seq_length)
    packed: Any
    if isinstance(dataset, datasets.DatasetDict):
        packed = datasets.DatasetDict(
            {name: _pack_split(split, seq_length, strategy, limit) for name, split in dataset.items()}
        )
    elif isinstance(dataset, datasets.Dataset):
        packed = _pack_split(dataset, seq_length, strategy, limit)
    else:
        raise InputError(
            f"dataset: {type(dataset).__name__} cannot be packed. Give a Dataset or a DatasetDict; "
            "packtrain.training.PackedStream packs what is read as a stream."
        )
    return packed  # type: ignore[no-any-return]


def _pack_split(dataset: Any, seq_length: int, strategy: StrategyName, limit: int) -> Any:
    """Pack all rows of a Dataset together. Each row is a document.

    Args:
        limit: longer documents are truncated to this many tokens, unless the strategy cuts documents.

    Returns:
        A Dataset, with the format of the one given.
    """
    import datasets
    from datasets.fingerprint import Hasher

    plan = plan_rows(_lengths(dataset), max_length=limit, strategy=strategy, row_length=seq_length)
    # Rows of joined documents have no lengths: TRL's `wrapped` has no such column either.
    has_lengths = not STRATEGIES[strategy].joins_documents
    # The types of the columns, by which the library reads them.
    features = dataset.features.copy()
    if has_lengths:
        features.update(datasets.Features.from_arrow_schema(pa.schema([SEQ_LENGTHS])))
    # Description, licence and the like stay those of the dataset.
    info = dataset.info.copy()
    info.features = features
    if plan.rows:
        # The library finds rows that were packed before by this fingerprint. The one that `map` would compute does not
        # depend on `_VERSION`.
        fingerprint = Hasher.hash(
            (dataset._fingerprint, "packtrain.pack_dataset", _VERSION, seq_length, strategy, limit)
        )
        block_rows = max(1, _BLOCK_TOKENS // seq_length)
        packed = _map_rows(dataset, plan, features, fingerprint, block_rows, has_lengths=has_lengths)
        packed._info = info
    else:
        # `map` would give its input back, whose only column is the number of a row.
        packed = datasets.Dataset(features.arrow_schema.empty_table(), info=info, split=dataset.split)
    # In what form the user gets rows, such as tensors of torch, and of which columns.
    row_format = dataset.format
    columns = row_format["columns"]
    if has_lengths:
        columns = [*columns, SEQ_LENGTHS.name]
    return packed.with_format(
        type=row_format["type"],
        columns=columns,
        output_all_columns=row_format["output_all_columns"],
        **row_format["format_kwargs"],
    )


def _map_rows(
    dataset: Any, plan: LayoutPlan, features: Any, fingerprint: str, block_rows: int, *, has_lengths: bool
) -> Any:
    """Make the rows of a plan by the library's `map`, for its caching, progress and writing.

    What is mapped is a dataset of the numbers of the packed rows, 0 1 2 …; the plan says which documents each row has.

    Args:
        features: of the packed rows.
        fingerprint: what the packed dataset is known by in the library's cache.
        block_rows: rows to make at once.
        has_lengths: whether rows have the column `seq_lengths`, too.

    Returns:
        A Dataset with the format `arrow`.
    """
    import datasets

    documents = dataset.with_format("arrow")  # columns as Arrow has them, without a conversion to Python

    def pack_block(block: pa.Table) -> pa.Table:
        """The packed rows with the numbers of a block, such as 40 41 42 in its column `row`."""
        first_row = block["row"][0].as_py()
        last_row = block["row"][-1].as_py()
        return _rows(documents, plan, first_row, last_row + 1, has_lengths=has_lengths)

    # A dataset in memory has no files, and gives one in memory, as any `map` does.
    cache_file = dataset._get_cache_file_path(fingerprint) if dataset.cache_files else None
    row_numbers = datasets.Dataset(pa.table({"row": np.arange(plan.rows)}), split=dataset.split)
    return row_numbers.with_format("arrow").map(
        pack_block,
        batched=True,
        batch_size=block_rows,
        features=features,
        new_fingerprint=fingerprint,
        cache_file_name=cache_file,
    )


def _lengths(dataset: Any) -> NDArray[np.int32]:
    """(N,) tokens of each row of a Dataset, which all its columns must agree on; 0 where a list is missing.

    Raises:
        InputError: there are no columns, one does not hold lists, or the lists of two columns differ in length.
    """
    table = dataset.data.table
    first = None  # name of the column that the others are compared with
    lengths = np.zeros(0, np.int32)
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_null(column.type) and not len(column):  # an empty column may lack a type
            continue
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            raise InputError(
                f"column {name!r}: holds {column.type}, and packing needs a list in each row. "
                f"Remove the column first (dataset.remove_columns({name!r})) or make it a list per token."
            )
        column_lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int32)
        if dataset._indices is not None:  # a selection or another order of the table's rows
            column_lengths = column_lengths[dataset._indices.column(0).to_numpy()]
        if first is None:
            first = name
            lengths = column_lengths
        elif not np.array_equal(lengths, column_lengths):
            row = int(np.argmax(lengths != column_lengths))
            raise InputError(
                f"columns {first!r} and {name!r}: row {row} has lists of {lengths[row]} and {column_lengths[row]} "
                "elements. Packing needs one element per token in every column; remove the column that is not per "
                "token."
            )
    if not table.column_names:
        raise InputError("dataset: has no columns to pack. Keep at least one, such as input_ids.")
    return lengths


def _rows(documents: Any, plan: LayoutPlan, begin: int, end: int, *, has_lengths: bool) -> pa.Table:
    """Return packed rows `begin : end` of the plan, with the columns of the documents.

    Args:
        documents: a Dataset with the format `arrow`.
        has_lengths: whether rows have the column `seq_lengths`, too.
    """
    # Of rows with pieces 7, 8 and 9, 10, 11:
    #     offsets         7 9 12   where rows begin among the plan's pieces
    #     piece_offsets   0 2 5    the same among the pieces of this block
    offsets = plan.row_offsets[begin : end + 1]
    block = slice(int(offsets[0]), int(offsets[-1]))
    piece_offsets = offsets - block.start
    # Of each piece, its first token within its document, and how many tokens it has.
    starts = plan.starts[block]
    lengths = plan.lengths[block]
    # Each document is read once, although several of its pieces may be in the block. Of pieces of documents 4, 9, 4,
    # document_numbers is 4 9, and document_of_piece is 0 1 0.
    document_numbers, document_of_piece = np.unique(plan.order[block], return_inverse=True)
    table = documents[document_numbers]
    token_offsets = offsets_of(lengths)[piece_offsets]  # where rows begin among the tokens of this block
    arrays = {}
    for name in table.column_names:
        # No list is missing here: a document without tokens has no piece in the plan.
        column = table.column(name).combine_chunks()
        # Where each piece's document begins among the column's values. Where pieces begin at values 5 and 20, and have
        # 2 and 3 tokens, the values at 5 6 20 21 22 are taken.
        begins = offsets_of(pc.list_value_length(column).to_numpy())[document_of_piece]
        values = column.flatten().take(pa.array(ranges(begins + starts, lengths)))
        if pa.types.is_large_list(column.type):
            array = pa.LargeListArray.from_arrays(token_offsets.astype(np.int64), values, type=column.type)
        else:
            array = pa.ListArray.from_arrays(token_offsets.astype(np.int32), values, type=column.type)
        arrays[name] = array
    if has_lengths:
        arrays[SEQ_LENGTHS.name] = pa.ListArray.from_arrays(
            piece_offsets.astype(np.int32), lengths, type=SEQ_LENGTHS.type
        )
    return pa.table(arrays)
