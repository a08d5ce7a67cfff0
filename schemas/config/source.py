"""The part of the configuration about sources: where rows come from, how they are read, which tokens are trained."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from ..errors import did_you_mean
from ..tables.masks import POLICIES, PolicyName
from ..tables.row_formats import ROW_FORMATS, formats_with
from .section import ConfigModel, Paths, Share, Size, alone, describe_choices

AUTO = "auto"
"""The format that is detected from the first rows."""
PYTHON = "python:"
"""Prefix of a user's own reader: `python:module:function`."""

_READER = r"python:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
"""A user's own reader, with folders of its module separated by dots."""
_FORMAT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"enum": [AUTO, *ROW_FORMATS]}, {"type": "string", "pattern": f"^{_READER}$"}]
}


Thoughts = Literal["train", "mask", "last"]
ToolCalls = Literal["train", "mask"]
Stop = Literal["turn", "auto"]


_POLICY = (
    describe_choices({policy.name: policy.sentence for policy in POLICIES.values()})
    + " A plain text is trained as a whole; of a plain prompt and completion, only the completion is trained. "
    "Messages with `train: false` or a `weight` of 0 are never trained; other weights say how much they count."
)


class MaskConfig(ConfigModel):
    """Which tokens are trained. A conversation whose turns cannot be located with certainty, if the mask needs them, is
    left out, and listed in rejects.jsonl; only `completion` and `all` need none, without `train_end: false`, `thoughts`
    and `tool_calls`."""

    policy: PolicyName = Field(default="completion", description=_POLICY)
    train_end: bool = True
    """Train the end-of-turn token with its turn. `all` always does."""
    thoughts: Thoughts = "train"
    """Thoughts of the assistant, from a field such as `reasoning_content` or between tags such as `<think>` and
    `</think>`. `train`: like the rest of their turn. `mask`: never trained, but the tag that closes them is, as part of
    the answer. `last`: only those of the last assistant turn are trained."""
    tool_calls: ToolCalls = "train"
    """Tool calls of the assistant, with what the template writes around them. `mask`: never trained, but the
    end-of-turn token after them is."""
    stop: Stop = "turn"
    """Some templates do not end turns: the header of the next message does, such as `<|user|>`. `auto` trains its first
    token with the turn before it. `turn` does not."""


class SourceMaskConfig(ConfigModel):
    """Which tokens of one source are trained. A key that is null is as in the run's `mask`."""

    policy: PolicyName | None = None
    """Which turns are trained."""
    train_end: bool | None = None
    """Whether the end-of-turn token is trained with its turn."""
    thoughts: Thoughts | None = None
    """Which thoughts of the assistant are trained."""
    tool_calls: ToolCalls | None = None
    """Whether tool calls of the assistant are trained."""
    stop: Stop | None = None
    """Whether a stop token in the next message's header is trained."""


class FilterConfig(ConfigModel):
    """Length limits of examples, in tokens before any cut."""

    min_tokens: int | None = Field(default=None, ge=1)
    """Examples with fewer tokens are left out."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Examples with more tokens are left out."""

    @model_validator(mode="after")
    def _range(self) -> "FilterConfig":
        """Refuse limits that no example can meet."""
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})")
        return self


_FORMAT = (
    "How a row is read. `auto` detects it from the first rows, and says what it chose and why. "
    + describe_choices({row_format.name: row_format.sentence for row_format in ROW_FORMATS.values()})
    + " Or your own function from a row to rows in one of these forms, `python:module:function`; the module is "
    "searched in the configuration's folder first."
)


class SourceConfig(ConfigModel):
    """One source of rows."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Its name in ids, the ledger and reports."""
    format: Annotated[str, WithJsonSchema(_FORMAT_SCHEMA)] = Field(default=AUTO, description=_FORMAT)
    path: Paths = Field(min_length=1)
    """What to read: JSONL, a JSON array, CSV or .txt (one document per file; all UTF-8, plain, .gz or .zst), Parquet,
    Arrow; patterns such as `data/**/*.jsonl`; folders, from which all data files are taken; folders of `save_to_disk`;
    URLs of fsspec (`s3://`, `https://`); and `hf://owner/name[@revision]`, which the datasets library loads. Relative
    paths start at the configuration's folder."""
    split: str | None = None
    """Which split of a dataset of the hub, or of a folder of `save_to_disk`. Optional if there is only one."""
    subset: str | None = None
    """Which subset (`name` of `load_dataset`) of a dataset of the hub."""
    max_rows: int | None = Field(default=None, ge=1)
    """Take at most this many rows, the first ones in the order of the files; blank lines count. Null takes all."""
    repeat: int | None = Field(default=None, ge=1, le=10_000)
    """How many times each example of this source is packed; with a weight, at most how many times. Held-out examples
    are packed once. Null: once, or as often as the weight requires."""
    weight: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Mixes sources so that their packed tokens are in the ratio of their weights; all sources have one, or none.
    Examples are repeated or left out, by the seed. The mix is as large as the `repeat` of the sources allows; if none
    has a `repeat`, the source with the most tokens for its weight is used once, and the others are repeated to match
    it. Held-out examples are not mixed."""
    loss_weight: float | None = Field(default=None, ge=1e-6, le=1e6, allow_inf_nan=False)
    """How much the tokens of this source count in the loss, beside 1 for the others; `weight` says how often they are
    seen. See `loss`."""
    mask: Annotated[SourceMaskConfig, alone("policy", PolicyName | SourceMaskConfig)] = SourceMaskConfig()
    """Which tokens of this source are trained, instead of what the run's `mask` says. A policy alone is enough."""
    max_solutions: int | None = Field(default=None, ge=1)
    """Of `apps`: take at most this many solutions of a problem, the first ones after removing repeats. Null takes
    all."""
    keys: dict[str, str] = Field(default={})
    """Other names for the columns of a format, such as `{prompt: question, completion: answer}`. With `auto`, only
    formats with these columns are tried. `weight` names a column of numbers: how much the row counts in the loss.
    `group` names a column of texts or whole numbers: rows with one value stay in one split, and share tokens with
    `pack.share: group`."""
    style: Literal["plain", "chat"] | None = None
    """How a plain-text prompt and completion are rendered. `plain`, as null: joined as they are. `chat`: a user's and
    an assistant's turn. Rows of messages are conversations either way."""
    expand: Literal["none", "per_turn"] = "none"
    """`per_turn` makes one example of each assistant turn, with the messages before it as prompt: for templates that
    render the last turn differently."""
    max_rejected: Share | None = Field(default=None, ge=0.0, le=1.0)
    """The share of this source's rows that may be rejected, instead of the run's."""
    filter: FilterConfig = FilterConfig()
    """Length limits of this source's examples, instead of the run's."""
    where: str | None = Field(default=None, min_length=1)
    """Take only examples for which this SQL condition is true, such as `LENGTH(completion) > 20 AND prompt NOT LIKE
    '%http%'` or `ARRAY_LENGTH(roles) < 20`. Columns: prompt, completion and rejected (for conversations, the contents
    of the messages, joined by line ends), text, roles (a list with one for each message), tools (JSON) and group. It
    decides row by row. Needs polars, whose `sql_expr` reads it: pip install 'packtrain[filter]'."""
    max_row_bytes: Size = Field(default=16 * 2**20, ge=1024)
    """Longer lines of JSONL or CSV, elements of a JSON array and text files are rejected: they would take up a worker's
    memory. Far longer rows of CSV and elements of an array refuse the file."""

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: str) -> str:
        """Refuse a value that is neither `auto`, nor a format, nor `python:module:function`."""
        # `python:readers.py:chat` names a file, where a module is meant.
        is_own_reader = re.fullmatch(_READER, value) is not None and not value.split(":")[1].endswith(".py")
        if value != AUTO and value not in ROW_FORMATS and not is_own_reader:
            if value.startswith("python"):
                raise ValueError(
                    "write your own reader as python:module:function, such as python:readers:chat for the "
                    "function chat in readers.py"
                )
            formats = ", ".join([AUTO, *ROW_FORMATS])
            near = did_you_mean(value, ROW_FORMATS)
            raise ValueError(f"input should be {formats} or python:module:function{near}")
        return value

    @model_validator(mode="after")
    def _check_options(self) -> "SourceConfig":
        """Refuse keys that the source's format does not have, which would do nothing."""
        for key in self.keys:
            if key not in self._renamable:
                columns = f"takes {', '.join(self._renamable)}" if self._renamable else "renames none"
                raise ValueError(f"keys.{key}: format {self.format} {columns}")
        if self.style is not None and not self._may_take("style"):
            raise ValueError(
                f"style is for {', '.join(formats_with('style'))}, not for format {self.format}; leave it out"
            )
        if self.max_solutions is not None and not self._may_take("max_solutions"):
            raise ValueError(
                f"max_solutions is for {', '.join(formats_with('max_solutions'))}, not for format {self.format}; "
                "leave it out"
            )
        is_own_reader = self.format.startswith(PYTHON)
        if self.expand != "none" and not is_own_reader and not self._may_take("expand"):
            raise ValueError(f"expand: rows of format {self.format} have no turns; leave it out")
        if self.mask != SourceMaskConfig() and not is_own_reader and not self._may_take("mask"):
            raise ValueError(f"mask: rows of format {self.format} are trained alike under every mask; leave it out")
        return self

    @property
    def _renamable(self) -> tuple[str, ...]:
        """The columns that `keys` can rename: of the source's format, or with `auto` of any format. A reader of the
        user's own has none.
        """
        if self.format.startswith(PYTHON):
            return ()
        formats = ROW_FORMATS.values() if self.format == AUTO else [ROW_FORMATS[self.format]]
        return tuple(dict.fromkeys(key for row_format in formats for key in row_format.keys))

    def _may_take(self, option: str) -> bool:
        """Whether the format takes an option. With `auto` it may, because the format is not known yet."""
        return self.format == AUTO or self.format in formats_with(option)
