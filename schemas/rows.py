"""The rows that cross a boundary, and their Arrow schemas; those of finished rows are in `tables/columns.py`.

Legend used throughout: `N` examples, `T` tokens, `R` packed rows, `D` document pieces, `C` capacity of a row.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IGNORE_INDEX = -100
"""The label of a token that is not trained, as torch's cross entropy and Hugging Face models expect."""

Message: TypeAlias = dict[str, Any]
Messages: TypeAlias = list[Message]


class Example(NamedTuple):
    """One training example, before any template. Either `prompt` and `completion`, or `text`, or `ids` is set."""

    line: int
    """The row of the block that it came from, counted from 0."""
    sub: int
    """The number of the example in its row (APPS: the index of the solution), or -1 if a row is one example."""
    group: str
    """Examples with the same group stay in one split (APPS: the problem); "" if the example has none."""
    prompt: Messages | str | None
    completion: Messages | str | None
    """A conversational completion may be empty; then the example has no completion."""
    text: str | None
    """Language-modelling text; excludes the other two."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas for the chat template."""
    rejected: Messages | str | None = None
    """For preference pairs, the rejected completion, in the same form as `completion`."""
    ids: "list[int] | NDArray[np.integer[Any]] | None" = None
    """(T,) token ids of an already tokenized row, which is not rendered or tokenized again."""
    trained: "list[bool] | NDArray[np.bool_] | None" = None
    """(T,) which of `ids` are trained; None for all. An array if `ids` is one."""
    weight: float = 1.0
    """How much each of its tokens counts in the loss, times the weight of the token's message."""
    variables: dict[str, Any] | None = None
    """Variables for the chat template, which win over those of the run."""
    documents: list[dict[str, Any]] | None = None
    """Documents for the chat template, for answers that are grounded in some."""


def example_id(source: str, file: str, line: int, sub: int) -> str:
    """The id of an example, as documents.parquet has it.

    Args:
        source: the name of its source.
        file: the path of its file, as the ledger and rejects show it.
        line: in that file, counted from 1.
        sub: the number of the example in its row, from 0; −1 if the row is one example.
    """
    id_of_row = f"{source}/{file}:{line}"
    return f"{id_of_row}/{sub}" if sub >= 0 else id_of_row


class SpanKind(IntEnum):
    """The kind of a span of characters or tokens. A mask policy chooses kinds, and never looks at tokens.

    In a conversation, assistant turns have their own kinds if they could be located. Kinds below 4 need only the
    boundary between prompt and completion.
    """

    PROMPT = 0
    """Text before the completion: instructions, headers, the generation prompt, other turns."""
    COMPLETION = 1
    """After the prompt, including the end of turn; in a conversation with located turns, only what is not the
    assistant's."""
    TEXT = 2
    """Language-modelling text."""
    SPECIAL = 3
    """A beginning-of-sequence token that the tokenizer adds before a text."""
    HISTORY = 4
    """An assistant turn before the completion, including its tool calls, without its header."""
    HISTORY_END = 5
    """The end-of-turn token of such a turn."""
    ASSISTANT = 6
    """An assistant turn in the completion."""
    END = 7
    """The end-of-turn token of such a turn."""
    UNPROVED = 8
    """PROMPT of a conversation whose assistant turns, or thoughts and tool calls in them, could not be located. Masks
    about turns and their parts refuse such documents."""
    UNPROVED_COMPLETION = 9
    """COMPLETION of such a conversation. The policies `completion` and `all` treat both like PROMPT and COMPLETION."""
    USER = 10
    """PROMPT that begins with a user's message after an assistant turn: the best place to cut a conversation. Policies
    treat it like PROMPT."""
    REJECTED = 11
    """The rejected completion of a preference pair. Mask policies never see it."""
    THOUGHT = 12
    """A thought of the assistant in the completion, with the tag that opens it, without the tag that closes it."""
    HISTORY_THOUGHT = 13
    """A thought of the assistant before the completion, without the tag that closes it."""
    TOOL_CALL = 14
    """Tool calls of the assistant in the completion, with what the template writes around them."""
    HISTORY_CALL = 15
    """Tool calls of the assistant before the completion."""
    STOP_IN_NEXT_HEADER = 16
    """For templates that do not end turns themselves: the token with which the header after a turn of the completion
    begins, and space before it. A model that generates it has ended its turn. `turn` and `weight` are the turn's."""
    HISTORY_STOP_IN_NEXT_HEADER = 17
    """The token with which the header after a turn before the completion begins, for the same templates."""


END_KINDS = (SpanKind.HISTORY_END, SpanKind.END)
"""End-of-turn tokens of the assistant."""
THOUGHT_KINDS = (SpanKind.HISTORY_THOUGHT, SpanKind.THOUGHT)
"""Thoughts of the assistant."""
CALL_KINDS = (SpanKind.HISTORY_CALL, SpanKind.TOOL_CALL)
"""Tool calls of the assistant."""
PART_KINDS = frozenset({*THOUGHT_KINDS, *CALL_KINDS})
"""Parts of assistant turns that have a kind of their own."""
ASSISTANT_KINDS = (SpanKind.HISTORY, SpanKind.ASSISTANT, *END_KINDS, *PART_KINDS)
"""Assistant turns, including end-of-turn tokens."""
NEXT_STOP_KINDS = (SpanKind.HISTORY_STOP_IN_NEXT_HEADER, SpanKind.STOP_IN_NEXT_HEADER)
"""Stop tokens outside of the turns that they end."""
UNPROVED_KINDS = (SpanKind.UNPROVED, SpanKind.UNPROVED_COMPLETION)
"""Spans of conversations whose assistant turns could not be located."""
COMPLETION_KINDS = (
    *(SpanKind.COMPLETION, SpanKind.ASSISTANT, SpanKind.END, SpanKind.UNPROVED_COMPLETION),
    *(SpanKind.THOUGHT, SpanKind.TOOL_CALL, SpanKind.STOP_IN_NEXT_HEADER),
)
"""Kinds after a prompt."""


def lists_of(value: pa.DataType) -> pa.DataType:
    """The Arrow type of lists of such values, without nulls in a list."""
    return pa.list_(pa.field("item", value, nullable=False))


def schema_without_nulls(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of these columns (name → type), without nulls."""
    return pa.schema([pa.field(name, data_type, nullable=False) for name, data_type in columns.items()])


def _schema(**columns: pa.DataType) -> pa.Schema:
    """The schema of these columns, without nulls."""
    return schema_without_nulls(columns)


SPAN = pa.struct(_schema(end=pa.int32(), kind=pa.int8(), turn=pa.int16(), weight=pa.float32()))
"""A span of an encoded example; `ENCODED` says what its fields are."""

ENCODED = _schema(
    input_ids=lists_of(pa.int32()),
    spans=lists_of(SPAN),
    group=pa.string(),
    digest=pa.binary(16),
    line=pa.int32(),
    sub=pa.int32(),
    straddles=pa.int16(),
)
"""One example, tokenized at full length, with its structure but without a mask policy.

A part does not depend on its file or run, so that runs can share it: `line` counts from the start of the block. `spans`
cover the tokens from the left without gaps: each ends before token `end`, belongs to message `turn` (counted from 0; -1
outside of conversations), and has a loss `weight` (message times example; 0 where `train` is false). A token that
straddles two spans belongs to the assistant's span if there is one, else to the later span; it is counted in
`straddles`, unless it only straddles parts of a turn. `digest` covers the rendered text, the beginning of the
completion and the weights.

A preference pair has the tokens of prompt, completion and rejected completion, and exactly these three spans, which may
be empty: prompt and completion are the tokenization of one text, prompt and rejected completion that of another.
"""

ROW_SIZES = _schema(tokens=pa.int32(), squares=pa.int64())
"""The size of a packed row: its tokens, and the sum of its pieces' squared lengths, for the cost of attention. One
entry per row of a split, in the order of its shards, in one record batch."""

ROW_SIZES_NAME = "rows.arrow"
"""The file of ROW_SIZES in a split's folder."""

DOCUMENTS = _schema(
    doc_id=pa.int64(),
    id=pa.string(),
    source=pa.string(),
    file=pa.string(),
    line=pa.int64(),
    sub=pa.int32(),
    group=pa.string(),
    digest=pa.binary(16),
    tokens=pa.int32(),
    tokens_kept=pa.int32(),
    tokens_trained=pa.int32(),
    kept_digest=pa.uint64(),
    trained_digest=pa.uint64(),
    outcome=pa.string(),
    split=pa.string(),
    copies=pa.int32(),
)
"""One example that was encoded, packed or not: where it came from, and what became of it. Row n has `doc_id` n.

`line` counts from 1 within `file`, and `sub` is the number of the example in that row, -1 if it is the only one.
`digest` is equal for examples with the same text, flags and weights, `tokens` are those before any cut, and `split` is
the one to which it belongs. `outcome` is `PACKED_OUTCOME`, or the ledger's word for why it was left out.

Of one copy of a packed example: `tokens_kept` are in rows, each counted once, and `tokens_trained` of them have a label
before rows that cut documents take the first label of each further piece. `kept_digest` and `trained_digest` say which
these are: they are equal for two examples with one digest if the same tokens are kept, or trained. `copies` is how
often it is packed. All five are 0 for an example that is left out.
"""

PACKED_OUTCOME = "packed"
"""The `outcome` of an example that is packed."""
