"""The configuration of a run, validated by pydantic. Every field says what it does.

Fields under `run`, and `out` and `cache`, say where and how fast; they are not part of a run's identity. Everything
else is: two runs of the same identity over the same inputs write the same bytes.
"""

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from .decontaminate import DecontaminateConfig
from .formats import AUTO, CONVERSATIONAL, FORMAT_KEYS, PYTHON, STYLED
from .loss_section import LossConfig, LossWeight
from .pack_section import PackConfig
from .run_section import RunSection
from .section import ConfigModel, Paths, Size

FormatKey = Literal[
    "prompt", "completion", "messages", "tools", "text", "conversations", "system", "instruction", "input", "output",
    "history", "chosen", "rejected", "ids", "labels", "mask", "lengths", "weight",
]  # fmt: skip
"""The columns that `keys` can rename; see `schemas.config.formats.FORMAT_KEYS`."""
_READER = r"python:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_FORMAT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"enum": [AUTO, *FORMAT_KEYS]}, {"type": "string", "pattern": f"^{_READER}$"}]
}


Losable = Literal["system", "user", "assistant", "tool_calls", "tool_results", "tools"]


class TokenizerConfig(ConfigModel):
    """Which tokenizer, and how it is run."""

    path: str
    """A folder that `transformers.AutoTokenizer.from_pretrained` loads, or the name of a model on the hub, such as
    `Qwen/Qwen3-8B`, whose tokenizer the local Hugging Face cache holds. Nothing is downloaded."""
    chat_template: str | None = None
    """A template that replaces the tokenizer's own: the path of a file, the template itself, or the name of one of the
    tokenizer's templates if it has several."""
    variables: dict[str, Any] = Field(default={})
    """Variables that the template gets besides the special tokens, such as `{enable_thinking: false}`."""
    on_limit: Literal["error", "reject"] = "error"
    """A template that takes millions of steps on a row, or writes hundreds of megabytes, is stopped. `error` ends the
    run, `reject` rejects only the row. Too much processor time (5 s) or memory (2 GiB) always ends the run, because it
    depends on the machine."""
    allow_lost: tuple[Losable, ...] = ()
    """A conversation is rejected (`lost_content`) if the template leaves a part of it out, unless this list names the
    part: `system` (messages of system and developer), `user`, `assistant` (contents, such as those beside tool calls),
    `tool_calls`, `tool_results`, `tools` (the list of tools). The ledger counts what was left out. Reasoning may always
    be left out."""
    engine: Literal["auto", "tokenizers", "fastokens"] = "auto"
    """The tokenizer engine. `auto` takes `fastokens` if it is installed and agrees with `tokenizers`, the reference."""
    date: str | None = None
    """The date (YYYY-MM-DD) given to templates that ask for today's."""
    trace: bool = True
    """Use traced templates where tracing is exact; `false` renders every row with jinja2."""


class AppsConfig(ConfigModel):
    """Options of the `apps` format."""

    style: Literal["chat", "classic"] = "chat"
    """`chat`: a user turn and an assistant turn. `classic`: the QUESTION/ANSWER prompt of the original paper."""
    max_solutions: int | None = Field(default=None, ge=1)
    """Take at most this many solutions of a problem, the first ones after removing repeats. Null takes all."""
    dedupe: bool = True
    """Drop solutions that repeat an earlier one of the same problem, ignoring white space at the end."""
    difficulties: tuple[str, ...] | None = None
    """Only problems of these difficulties, such as [introductory, interview]. Null takes all."""


class FilterConfig(ConfigModel):
    """Length limits of examples, in tokens before any cut."""

    min_tokens: int | None = Field(default=None, ge=1)
    """Examples with fewer tokens are left out."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Examples with more tokens are left out."""

    @model_validator(mode="after")
    def _range(self) -> "FilterConfig":
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})")
        return self


class SourceConfig(ConfigModel):
    """One source of rows."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Its name in ids, the ledger and reports."""
    format: Annotated[str, WithJsonSchema(_FORMAT_SCHEMA)] = AUTO
    """How a row is read. `auto` detects it from the first rows, and says what it chose and why. `messages`: OpenAI's.
    `sharegpt`: turns of `from` and `value`. `alpaca`: instruction, input, output. `prompt_completion`: both texts or
    both messages. `preference`: prompt, chosen, rejected, in a separate run. `tokenized`: `input_ids` with labels
    or masks. `text`. `apps`. Or your own function from a row to rows in one of these forms, `python:module:function`;
    the module is searched in the configuration's folder first."""
    path: Paths = Field(min_length=1)
    """What to read: JSONL, a JSON array, CSV or .txt (one document per file; all UTF-8, plain, .gz or .zst), Parquet,
    Arrow; patterns such as `data/**/*.jsonl`; folders, from which all data files are taken; folders of `save_to_disk`;
    URLs of fsspec (`s3://`, `https://`); and `hf://owner/name[@revision]`, which the datasets library loads, as it does
    `hf://./folder`. Relative paths start at the configuration's folder."""
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
    loss_weight: float | None = LossWeight
    """How much the tokens of this source count in the loss, beside 1 for the others; `weight` says how often they are
    seen. See `loss`."""
    apps: AppsConfig = AppsConfig()
    """Options of the `apps` format."""
    keys: dict[FormatKey, str] = Field(default={})
    """Other names for the columns of a format, such as `{prompt: question, completion: answer}`. With `auto`, only
    formats with these columns are tried. `weight` names a column of numbers: how much the row counts in the loss."""
    style: Literal["plain", "chat"] | None = None
    """How a plain-text prompt and completion are rendered. `plain`: joined as they are. `chat`: a user's and an
    assistant's turn. Null: `chat` for `alpaca`, else `plain`. Rows of messages are conversations either way."""
    expand: Literal["none", "per_turn"] = "none"
    """`per_turn` makes one example of each assistant turn, with the messages before it as prompt: for templates that
    render the last turn differently."""
    filter: FilterConfig = FilterConfig()
    """Length limits of this source's examples, instead of the run's."""
    where: str | None = Field(default=None, min_length=1)
    """Take only examples for which this SQL condition is true, such as `LENGTH(completion) > 20 AND prompt NOT LIKE
    '%http%'` or `ARRAY_LENGTH(messages) < 20`. Columns: prompt, completion and rejected (for conversations, the
    contents of the messages, joined by line ends), text, messages (a list of role and content), roles, tools (JSON) and
    group. It decides row by row. Needs polars, whose `sql_expr` reads it: pip install 'packtrain[filter]'."""
    max_row_bytes: Size = Field(default=16 * 2**20, ge=1024)
    """Longer lines of JSONL or CSV, elements of a JSON array and text files are rejected: they would take up a worker's
    memory."""

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        own = re.fullmatch(_READER, value) is not None and not value.split(":")[1].endswith(".py")
        if value != AUTO and value not in FORMAT_KEYS and not own:
            if value.startswith("python"):
                raise ValueError(
                    "write your own reader as python:module:function, such as python:readers:chat for the "
                    "function chat in readers.py"
                )
            near = difflib.get_close_matches(value, FORMAT_KEYS, n=1)
            raise ValueError(
                f"input should be {', '.join([AUTO, *FORMAT_KEYS])} or python:module:function"
                f"{f'; did you mean {near[0]}?' if near else ''}"
            )
        return value

    @model_validator(mode="after")
    def _fits_the_format(self) -> "SourceConfig":
        own = self.format.startswith(PYTHON)
        known = () if own else FORMAT_KEYS.get(self.format)
        for key in self.keys:
            if known is not None and key not in known:
                what = f"takes {', '.join(known)}" if known else "renames none"
                raise ValueError(f"keys.{key}: format {self.format} {what}")
        if self.style is not None and self.format not in (AUTO, *STYLED):
            more = "; apps has its own, apps.style" if self.format == "apps" else ""
            raise ValueError(f"style is for {', '.join(STYLED)}, not for format {self.format}{more}; leave it out")
        if self.expand != "none" and not own and self.format not in (AUTO, *CONVERSATIONAL):
            raise ValueError(f"expand: rows of format {self.format} have no turns; leave it out")
        return self


MaskPolicy = Literal["completion", "assistant", "last_assistant", "all"]


class MaskConfig(ConfigModel):
    """Which tokens are trained."""

    policy: MaskPolicy = "completion"
    """`completion`: everything after the prompt, which is everything before a last assistant message. `assistant`:
    every assistant turn, with tool calls, without headers. `last_assistant`: the last of these turns. `all`: every
    token. A plain text is trained as a whole; of a plain prompt and completion, only the completion is trained.
    Messages with `train: false` or a `weight` of 0 are never trained; other weights say how much they count."""
    train_end: bool = True
    """Train the end-of-turn token with its turn. `all` always does."""
    thoughts: Literal["train", "mask", "last"] = "train"
    """Thoughts of the assistant, from a field such as `reasoning_content` or between tags such as `<think>` and
    `</think>`. `train`: like the rest of their turn. `mask`: never trained, but the tag that closes them is, as part of
    the answer. `last`: only those of the last assistant turn are trained."""
    tool_calls: Literal["train", "mask"] = "train"
    """Tool calls of the assistant, with what the template writes around them. `mask`: never trained, but the
    end-of-turn token after them is."""
    on_unproved: Literal["reject", "error"] = "reject"
    """If the assistant's turns cannot be located with certainty, `assistant`, `last_assistant` and `train_end: false`
    cannot be applied, nor can `thoughts` and `tool_calls` if these cannot be located in their turns. `reject` leaves
    the conversation out and lists it in rejects.jsonl with the reason; `error` ends the run."""
    stop: Literal["turn", "auto"] = "turn"
    """Some templates do not end turns: the header of the next message does, such as `<|user|>`. `auto` trains its first
    token with the turn before it. `turn` does not."""
    prove: Literal["sampling"] | None = None
    """`sampling`: for every turn of the assistant, compare what is trained with what a model would sample there, and
    count the outcomes in the ledger. Null: only for a sample of the turns. Encodes again."""


def _policy_alone(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


class HoldoutConfig(ConfigModel):
    """A held-out part of the data."""

    fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the groups that go to `out/holdout`. 0 writes no second split."""
    by: Literal["group", "example"] = "group"
    """`group` keeps examples of a group in one split (APPS: all solutions of a problem). Examples without a group, and
    all examples with `example`, are assigned by their content, so equal ones stay together."""


class SplitConfig(ConfigModel):
    """How `overlong: split` cuts an example into pieces of at most `max_length` tokens."""

    at: Literal["turns", "paragraphs", "tokens"] = "turns"
    """`turns`: before a user's message, or after an assistant turn; if neither is within reach, as `paragraphs`.
    `paragraphs`: after a blank line, else after a line end; if there is none, anywhere. `tokens`: anywhere. Pieces are
    of about equal length where possible."""
    overlap: int = Field(default=0, ge=0)
    """Repeat this many last tokens of a piece at the start of the next one, untrained. One is enough to keep the label
    that a piece's first token cannot have."""


class TruncateConfig(ConfigModel):
    """What happens to examples longer than a row, and to long prompts and completions."""

    max_length: int = Field(default=2048, ge=2, le=2**24)
    """Capacity of a packed row, and the maximum length of an example, in tokens. For preference pairs, it limits
    prompt and longer completion together."""
    max_prompt_length: int | None = Field(default=None, ge=1)
    """A longer prompt loses its beginning, before `max_length` applies. The prompt is everything before the
    completion."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """A longer completion loses its end, before `max_length` applies. Plain texts have neither prompt nor
    completion."""
    overlong: Literal["truncate", "drop", "split", "error"] = "truncate"
    """`truncate` cuts, `drop` leaves the example out, `split` cuts it into pieces, `error` stops the run and names
    the first."""
    keep: Literal["start", "end"] = "start"
    """Which end of a truncated example is kept. Strategies that cut documents do not truncate to a row."""
    split: SplitConfig = SplitConfig()

    @model_validator(mode="after")
    def _split_is_meant(self) -> "TruncateConfig":
        if self.overlong != "split" and self.split != SplitConfig():
            raise ValueError(f"split is for overlong: split, but overlong is {self.overlong}; leave one of them out")
        if self.split.overlap > self.max_length // 2:
            raise ValueError(
                f"split.overlap ({self.split.overlap}) is more than half of max_length ({self.max_length})"
            )
        return self


class OutputConfig(ConfigModel):
    """Format and size of the shards."""

    format: Literal["arrow", "parquet"] = "arrow"
    """`arrow`: a folder that `datasets.load_from_disk` opens. `parquet`: smaller, for other readers."""
    shard_bytes: Size = Field(default=256 * 2**20, ge=2**16)
    """Approximate size of a shard, before compression."""


class RunConfig(ConfigModel):
    """One run of packtrain, from sources to packed shards."""

    version: Literal[1] = 1
    """Version of this configuration's format."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Seeds the order of the rows and the choice of the held-out groups."""
    out: str
    """The folder to write, or a URL such as `s3://bucket/packed`. It must be empty, missing, or hold a finished or
    interrupted run of the same identity."""
    cache: str | None = None
    """Folder or URL of encoded parts, shared between runs. Null: `.packtrain-cache` beside `out`."""
    tokenizer: TokenizerConfig
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    """Where rows come from, in this order."""
    mask: Annotated[MaskConfig, BeforeValidator(_policy_alone, json_schema_input_type=MaskPolicy | MaskConfig)] = (
        MaskConfig()
    )
    """Which tokens are trained. A policy alone is enough: `mask: assistant`."""
    loss: LossConfig = LossConfig()
    keep_untrained: bool = False
    """Keep examples and pieces of split examples in which no token is trained, also if truncation removed the trained
    ones. They are counted either way."""
    filter: FilterConfig = FilterConfig()
    """Length limits of all sources; keys of a source's own `filter` override them."""
    duplicates: Literal["keep", "drop"] = "keep"
    """`drop` leaves out examples equal to an earlier one of any source: the same text, prompt and flags. Earlier means
    by order of sources, then rows. Examples that are left out for another reason do not count."""
    decontaminate: DecontaminateConfig | None = None
    """Compare the examples with evaluation data. Another evaluation file never encodes anything again."""
    holdout: HoldoutConfig = HoldoutConfig()
    truncate: TruncateConfig = TruncateConfig()
    pack: PackConfig = PackConfig()
    run: RunSection = RunSection()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="after")
    def _combinations(self) -> "RunConfig":
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are called {name!r}; give each its own name")
        for source in self.sources:
            if source.expand == "per_turn" and str(getattr(self.mask, "policy", self.mask)) == "assistant":
                raise ValueError(
                    f"mask assistant would train the earlier turns of source {source.name!r} again in every example "
                    "that expand: per_turn makes; take mask completion, which trains the turn itself"
                )
        unweighted = [source.name for source in self.sources if source.weight is None]
        if 0 < len(unweighted) < len(self.sources):
            raise ValueError(
                f"sources.{unweighted[0]}.weight: the other sources have one, and weights are relative to each other; "
                "give every source a weight, or none"
            )
        self._alignment_fits()
        if self.pack.strategy in ("bfd_split", "wrapped") and self.truncate.overlong != "truncate":
            raise ValueError(
                f"truncate.overlong {self.truncate.overlong} has no meaning with pack.strategy "
                f"{self.pack.strategy}, which cuts long documents itself; leave it out"
            )
        return self

    def _alignment_fits(self) -> None:
        """Raise ValueError if rows of `max_length` cannot be padded as asked."""
        pack, length = self.pack, self.truncate.max_length
        if length % (multiple := pack.alignment.row):
            below = length - length % multiple
            near = " or ".join(str(one) for one in (below, below + multiple) if 2 <= one <= 2**24)
            raise ValueError(
                f"truncate.max_length ({length}) must be a multiple of {multiple} for {pack.padded_for}; take "
                f"{near or 'a smaller multiple or fewer devices'}"
            )
        if pack.strategy == "wrapped" and (pack.max_docs is not None or pack.align > 1):
            raise ValueError("pack.strategy wrapped cuts anywhere: it cannot keep pack.max_docs or pack.align")
        if pack.strategy == "wrapped" and pack.alignment.document > 1:
            raise ValueError(
                "pack.strategy wrapped cuts anywhere: it cannot pad pieces for pack.parallel with layout thd; take "
                "layout ring, or strategy bfd_split"
            )

    def identity(self) -> dict[str, Any]:
        """Everything that the written bytes depend on, except the content of the inputs and of the tokenizer."""
        data = self.model_dump(mode="json", exclude={"out", "cache", "run"})
        for source in data["sources"]:
            for key in ("path", "split", "subset"):
                del source[key]
            if source["format"] not in (AUTO, "apps"):
                del source["apps"]
            if source["loss_weight"] is None:
                del source["loss_weight"]
        if data["pack"]["parallel"] is None:  # so that identities of earlier versions stay
            del data["pack"]["parallel"]
        for key in ("thoughts", "tool_calls"):
            if data["mask"][key] == "train":
                del data["mask"][key]
        if data["mask"]["stop"] == "turn":
            del data["mask"]["stop"]
        if data["mask"]["prove"] is None:
            del data["mask"]["prove"]
        if self.loss == LossConfig():
            del data["loss"]
        if data["decontaminate"] is None:
            del data["decontaminate"]
        else:
            del data["decontaminate"]["against"]
        data["tokenizer"] = {key: data["tokenizer"][key] for key in ("date", "variables", "on_limit", "allow_lost")}
        return data
