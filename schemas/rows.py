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
    """One training example, before any template. Either `prompt` and `completion`, or `text`, is set."""

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


class Kind(IntEnum):
    """What a run of characters or tokens is. A mask policy chooses among kinds; it never looks at tokens."""

    PROMPT = 0
    """Everything before the completion: instructions, headers, the generation prompt."""
    COMPLETION = 1
    """Everything after the prompt, its end of turn included."""
    TEXT = 2
    """Language-modelling text."""
    SPECIAL = 3
    """A beginning-of-sequence token that the tokenizer adds by itself before a text."""


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
    ]
)
"""One example, tokenized at full length, with its structure and without a mask policy.

A part knows neither the file it came from nor the run it belongs to, so that runs share it: `line` counts from
the start of the block. `runs` cover the tokens from the left without gaps: each ends before token `end`, belongs to
message `turn` (counted from 0), and carries the person's `train` flag. A token that straddles two runs belongs to
the later one, and is counted in `straddles`. `digest` is of the rendered text and of where the completion begins.
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
