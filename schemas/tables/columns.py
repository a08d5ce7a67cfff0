"""The columns of finished rows. There are four kinds of rows: packed documents, packed preference pairs, packed
documents that share tokens, and preference pairs that are not packed.

Whoever writes, checks, shows, exports or reads rows takes the names, types and meanings from here. What computes the
values of a packed column is in `stages/pack/row_columns.py`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from ..rows import lists_of, schema_without_nulls


class Per(StrEnum):
    """What a column has one value for."""

    TOKEN = "token"
    """A token of the row, padding too."""
    PIECE = "piece"
    """A document, or a piece of one; padding counts as part of it."""
    ROW = "row"
    """A row, as a pair that is not packed: its list has one value."""


class Condition(StrEnum):
    """What a dataset must have for a column to be in its rows; then it is in all its shards."""

    PARALLEL = "with `pack.parallel`"
    """The lengths without padding, which kernels for context parallelism need."""
    WEIGHTED = "if loss weights differ from 1"
    SHARED = "with `pack.share`"
    """The documents of a row share tokens; then other columns stand in the place of the usual ones."""
    PAIRS = "of preference pairs"
    """Two pieces of a row, after each other, are the two sides of a pair; other columns stand in the place of the usual
    ones, too."""


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One column. In every row, it is a list."""

    name: str
    value: pa.DataType
    """The type of one value."""
    per: Per
    sentence: str
    """What a value is, for the card and the documentation. Markdown, without a full stop."""
    condition: Condition | None = None
    """When rows have it; None: always."""
    usual_name: str = ""
    """What readers call it, if that is not its name in a shard."""

    @property
    def usual(self) -> str:
        """What readers call it."""
        return self.usual_name or self.name

    @property
    def field(self) -> pa.Field:
        """The column in a schema: lists without nulls."""
        return pa.field(self.name, lists_of(self.value), nullable=False)


UNPADDED = "seq_lengths_unpadded"
WEIGHTS = "loss_weights"
PARENTS = "parents"
SIDES = "sides"
CHOSEN_SIDE = 0
REJECTED_SIDE = 1
"""The values of SIDES."""
SIDE_NAMES = ("chosen", "rejected")
"""Their names, as people read them."""

PACKED_COLUMNS = (
    RowColumn("input_ids", pa.int32(), Per.TOKEN, "token ids"),
    RowColumn(
        "labels",
        pa.int32(),
        Per.TOKEN,
        "the id of the token itself where it is trained, else -100; not shifted, as transformers expects",
    ),
    RowColumn("position_ids", pa.int32(), Per.TOKEN, "0, 1, 2, … in each document"),
    RowColumn("seq_lengths", pa.int32(), Per.PIECE, "tokens of each document in the row, in order"),
    RowColumn(
        "doc_starts",
        pa.int32(),
        Per.PIECE,
        "at which of its tokens each document begins; 0 unless it was cut",
    ),
    RowColumn(
        "doc_ids",
        pa.int64(),
        Per.PIECE,
        "a number for each document; pieces of one document share it",
    ),
    RowColumn(
        UNPADDED,
        pa.int32(),
        Per.PIECE,
        "as seq_lengths, without the padding at the end of each document",
        Condition.PARALLEL,
    ),
    RowColumn(
        WEIGHTS,
        pa.float32(),
        Per.TOKEN,
        "how much each token counts in the loss; 0 where it is not trained",
        Condition.WEIGHTED,
    ),
)
"""Columns of a packed row, in their order in a shard.

The first label of every piece is -100. The weight of a label stands at its own token: positive, and 0 where the label
is -100. `seq_lengths` add up to the row: a piece's padding counts as part of it. `doc_ids` point into
`schemas.rows.DOCUMENTS`.
"""

_USUAL = {column.name: column for column in PACKED_COLUMNS}
"""Columns that the tables below have in common with `PACKED_COLUMNS`, wholly or in their sentence."""
_SIDES = RowColumn(
    SIDES,
    pa.int8(),
    Per.PIECE,
    "0 for the chosen side of a pair, which is prompt and completion; 1 for the rejected side of the one before it",
    Condition.PAIRS,
)
PAIR_COLUMNS = (
    RowColumn("pair_input_ids", pa.int32(), Per.TOKEN, "token ids", usual_name="input_ids"),
    RowColumn("pair_labels", pa.int32(), Per.TOKEN, _USUAL["labels"].sentence, usual_name="labels"),
    RowColumn("pair_position_ids", pa.int32(), Per.TOKEN, "0, 1, 2, … in each side", usual_name="position_ids"),
    RowColumn(
        "pair_lengths", pa.int32(), Per.PIECE, "tokens of each side in the row, in order", usual_name="seq_lengths"
    ),
    _USUAL["doc_starts"],
    _USUAL["doc_ids"],
    _USUAL[UNPADDED],
    _SIDES,
)
"""Columns of a packed row of preference pairs, in their order in a shard.

Most have names that no trainer knows: by the usual names, a trainer would take the sides for documents, and train the
rejected completions like the chosen ones. A pair is one document and two pieces, one after the other: both have its doc
id.
"""

SHARED_COLUMNS = (
    RowColumn("branch_input_ids", pa.int32(), Per.TOKEN, "token ids", usual_name="input_ids"),
    RowColumn("branch_labels", pa.int32(), Per.TOKEN, _USUAL["labels"].sentence, usual_name="labels"),
    RowColumn(
        "branch_position_ids",
        pa.int32(),
        Per.TOKEN,
        "0, 1, 2, … in each document; a piece that continues another one begins with the number of tokens before it",
        usual_name="position_ids",
    ),
    RowColumn(
        "branch_lengths",
        pa.int32(),
        Per.PIECE,
        "tokens of each piece in the row, in order: one piece for each document",
        usual_name="seq_lengths",
    ),
    _USUAL["doc_starts"],
    _USUAL["doc_ids"],
    RowColumn(
        "branch_parents",
        pa.int32(),
        Per.PIECE,
        "how many pieces before it stands the piece that it continues; 0 if its document begins here",
        usual_name=PARENTS,
    ),
    _USUAL[WEIGHTS],
    _SIDES,
)
"""Columns of a packed row whose documents share tokens, in their order in a shard.

Most have names that no trainer knows, so that none trains the pieces as documents. A document that shares its first k
tokens with an earlier one of the row has a piece that begins with the last of them, repeated and untrained. The k - 1
tokens before it stand in other pieces; k - 1 is the first of the piece's `branch_position_ids`, and its parent is the
piece in which the last of these k - 1 tokens stands.
"""

UNPACKED_PAIR_COLUMNS = (
    RowColumn("prompt_ids", pa.int32(), Per.TOKEN, "token ids of the prompt"),
    RowColumn(
        "chosen_ids",
        pa.int32(),
        Per.TOKEN,
        "token ids of the chosen completion, which continues the prompt",
    ),
    RowColumn(
        "rejected_ids",
        pa.int32(),
        Per.TOKEN,
        "token ids of the rejected completion, which continues the prompt",
    ),
    RowColumn(
        "doc_ids",
        pa.int64(),
        Per.ROW,
        "a number for each document; pieces of one document share it",
    ),
)
"""Columns of a preference pair that is not packed. Both completions are non-empty, and they differ."""

COLUMNS = {column.name: column for column in (*UNPACKED_PAIR_COLUMNS, *SHARED_COLUMNS, *PAIR_COLUMNS, *PACKED_COLUMNS)}
"""Every column by its name."""
USUAL_COLUMNS = {column.usual: column for column in (*SHARED_COLUMNS, *PAIR_COLUMNS, *PACKED_COLUMNS)}
"""Every column of packed rows by the name that readers use."""


def schema_of_columns(columns: Iterable[RowColumn]) -> pa.Schema:
    """The schema of some columns, in their order."""
    return schema_without_nulls({column.name: lists_of(column.value) for column in columns})


PREFERENCE = schema_of_columns(UNPACKED_PAIR_COLUMNS)
"""The schema of preference pairs that are not packed."""


def packed_columns(conditions: Collection[Condition]) -> tuple[RowColumn, ...]:
    """The columns of packed rows in a dataset that meets some conditions."""
    columns: tuple[RowColumn, ...] = PACKED_COLUMNS
    if Condition.SHARED in conditions:
        columns = SHARED_COLUMNS
    elif Condition.PAIRS in conditions:
        columns = PAIR_COLUMNS
    return tuple(column for column in columns if column.condition is None or column.condition in conditions)


def schema_of(names: Collection[str]) -> pa.Schema:
    """The schema of the rows of a dataset, from the names of its columns, as its manifest lists them."""
    if "chosen_ids" in names:
        return PREFERENCE
    # The columns that tell by their presence what the dataset meets.
    optional = (*PACKED_COLUMNS, _SIDES)
    conditions = {column.condition for column in optional if column.condition and column.name in names}
    # Columns of shared rows stand in the place of others, so none of them has this condition as its own.
    if shares_tokens(names):
        conditions.add(Condition.SHARED)
    return schema_of_columns(packed_columns(conditions))


def shares_tokens(names: Collection[str]) -> bool:
    """Whether the documents of rows with these columns share tokens."""
    return "branch_parents" in names


def with_usual_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Packed rows, or pairs, with the names by which readers know their columns."""
    return batch.rename_columns([COLUMNS[name].usual if name in COLUMNS else name for name in batch.schema.names])


def columns_per(per: Per, names: Collection[str]) -> tuple[str, ...]:
    """The columns among `names`, by their usual names, that have one value for each token, or piece, or row."""
    return tuple(name for name, column in USUAL_COLUMNS.items() if column.per is per and name in names)
