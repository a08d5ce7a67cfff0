"""The rows that cross a boundary, and their Arrow schemas.

Legend used throughout: `N` examples, `T` tokens, `R` packed rows, `D` document pieces, `C` capacity of a row.
"""

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

IGNORE_INDEX = -100
"""The label of a token that is not trained, as torch's cross entropy and Hugging Face models expect."""

Message: TypeAlias = dict[str, Any]
Messages: TypeAlias = list[Message]


class Example(NamedTuple):
    """One training example, before any template. `prompt` and `completion`, or `text`, or `ids`, is set."""

    line: int
    """Which row of the block it came from, counted from 0."""
    sub: int
    """Which example of that row (APPS: the index of the solution), or -1 when a row is one example."""
    group: str
    """What a held-out split must not cut through (APPS: the problem), or "" when the example stands alone."""
    prompt: Messages | str | None
    completion: Messages | str | None
    """A conversational completion may be empty: then nothing in the example is a completion."""
    text: str | None
    """Language-modelling text; excludes the other two."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas handed to the chat template."""
    rejected: Messages | str | None = None
    """Of a preference pair: what was liked less than `completion`, in the same form."""
    ids: list[int] | None = None
    """(T,) of a row that was tokenized already; it is neither rendered nor tokenized again."""
    trained: list[bool] | None = None
    """(T,) which of `ids` are trained; None for all of them."""


class Kind(IntEnum):
    """What a run of characters or tokens is. A mask policy chooses among kinds; it never looks at tokens.

    Of a conversation, what the assistant says is told apart from the rest where that is proved; else it is PROMPT and
    COMPLETION only. Kinds below 4 are those of a single boundary, between a prompt and a completion.
    """

    PROMPT = 0
    """Before the completion: instructions, headers, the generation prompt, other turns' text."""
    COMPLETION = 1
    """After the prompt, its end of turn included; of a conversation with proved turns, what is no assistant's."""
    TEXT = 2
    """Language-modelling text."""
    SPECIAL = 3
    """A beginning-of-sequence token that the tokenizer adds by itself before a text."""
    HISTORY = 4
    """What the assistant says before the completion: an earlier turn, its tool calls included, without its header."""
    HISTORY_END = 5
    """The end-of-turn token of such a turn."""
    ASSISTANT = 6
    """What the assistant says in the completion."""
    END = 7
    """The end-of-turn token of such a turn."""
    UNPROVED = 8
    """A conversation's text of which nothing says surely where the assistant's turns lie. No policy about turns
    trains it; the document is refused where such a policy is asked for. Replaces PROMPT before the completion."""
    UNPROVED_COMPLETION = 9
    """The same after the prompt. The policies `completion` and `all` treat both like PROMPT and COMPLETION."""
    USER = 10
    """PROMPT that follows an assistant's turn and begins with a user's message: the best place to cut a conversation.
    Policies treat it like PROMPT. Where it is not known who speaks, the run is PROMPT."""
    REJECTED = 11
    """Of a preference pair: what was liked less than its COMPLETION. No mask policy meets one."""


RUN = pa.struct(
    [
        pa.field("end", pa.int32(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("turn", pa.int16(), nullable=False),
        pa.field("train", pa.bool_(), nullable=False),
    ]
)

ENCODED = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("runs", pa.list_(pa.field("item", RUN, nullable=False)), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        pa.field("sub", pa.int32(), nullable=False),
        pa.field("straddles", pa.int16(), nullable=False),
        pa.field("rewritten", pa.bool_(), nullable=False),
    ]
)
"""One example, tokenized at full length, with its structure and without a mask policy.

A part knows neither the file it came from nor the run it belongs to, so that runs share it: `line` counts from
the start of the block. `runs` cover the tokens from the left without gaps: each ends before token `end`, belongs to
message `turn` (counted from 0; -1 in what is no conversation), and carries the person's `train` flag. A token that
straddles two runs belongs to what the assistant says, if one of them is that, else to the later one; it is counted in
`straddles`. `digest` is of the rendered text, of where the completion begins, and of what a person took out by flags.
`rewritten` says that the chat template renders the prompt alone otherwise than within the conversation.

Of a preference pair, the tokens are those of prompt, completion and rejected completion, one after another, and the
runs are these three, empty ones included: prompt and completion are the tokenization of one text, prompt and rejected
completion that of another.
"""

_TOKENS = pa.list_(pa.field("item", pa.int32(), nullable=False))

PACKED = pa.schema(
    [
        pa.field("input_ids", _TOKENS, nullable=False),
        pa.field("labels", _TOKENS, nullable=False),
        pa.field("position_ids", _TOKENS, nullable=False),
        pa.field("seq_lengths", _TOKENS, nullable=False),
        pa.field("doc_starts", _TOKENS, nullable=False),
        pa.field("doc_ids", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
    ]
)
"""One packed row. The first three have one value per token, the last three one per document piece.

Labels are unshifted: each is its own input id or -100, and the first label of every piece is -100.
`doc_starts` says at which token of its document a piece begins; `doc_ids` points into DOCUMENTS.
"""

PREFERENCE = pa.schema(
    [
        pa.field("prompt_ids", _TOKENS, nullable=False),
        pa.field("chosen_ids", _TOKENS, nullable=False),
        pa.field("rejected_ids", _TOKENS, nullable=False),
        pa.field("doc_ids", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
    ]
)
"""One preference pair, not packed. Each completion follows on the prompt; neither is empty, and they differ.
`doc_ids` is one number, a row of DOCUMENTS."""

ROW_SIZES = pa.schema(
    [
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("squares", pa.int64(), nullable=False),
    ]
)
"""What a packed row weighs: its tokens, and the sum of the squares of its pieces' lengths, which attention costs. One
a row of a split, in the order of its shards, in one record batch."""

ROW_SIZES_NAME = "rows.arrow"
"""The file of ROW_SIZES in a split's folder."""

DOCUMENTS = pa.schema(
    [
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("file", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
    ]
)
"""Where each packed document came from. `line` counts from 1 within `file`; `tokens` before any cut."""
