"""The configuration of a run, validated by pydantic. Every field says what it does.

Fields under `run`, and `out` and `cache`, say where and how fast; they are not part of a run's identity. Everything
else is: two runs of the same identity over the same inputs write the same bytes.
"""

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, JsonValue, field_validator, model_validator

from ..jsontext import parse_json
from ..tables.engines import AUTO, REFERENCE, TOKENIZER_ENGINES
from ..tables.masks import POLICIES, PolicyName
from ..tables.strategies import STRATEGIES
from .packing import PackConfig
from .section import ConfigModel, Paths, Share, Size, alone
from .source import FilterConfig, MaskConfig, SourceMaskConfig
from .source import SourceConfig as SourceConfig

Losable = Literal["system", "user", "assistant", "tool_calls", "tool_results", "tools", "documents"]
"""Parts of a conversation that a template may be allowed to leave out."""

if TYPE_CHECKING:
    EngineChoice: TypeAlias = str
else:
    EngineChoice = Literal[AUTO, REFERENCE]
"""How the engine is chosen. pydantic takes one of the two names; type checkers see a text."""

_ENGINE = (
    f"The tokenizer engine. `{AUTO}` takes "
    + " or ".join(f"`{name}`" for name in TOKENIZER_ENGINES if name != REFERENCE)
    + f" if it is installed and agrees with `{REFERENCE}`, the reference."
)


class TokenizerConfig(ConfigModel):
    """Which tokenizer, and how it is run."""

    path: str
    """A folder that `transformers.AutoTokenizer.from_pretrained` loads, or the name of a model on the hub, such as
    `Qwen/Qwen3-8B`, whose tokenizer the local Hugging Face cache holds. Nothing is downloaded."""
    chat_template: str | None = None
    """A template that replaces the tokenizer's own: the path of a file, or the template itself."""
    variables: dict[str, JsonValue] = Field(default={})
    """Variables that the template gets besides the special tokens, such as `{enable_thinking: false}`."""
    allow_lost: tuple[Losable, ...] = ()
    """A conversation is rejected (`lost_content`) if the template leaves a part of it out, unless this list names the
    part: `system` (messages of system and developer), `user`, `assistant` (contents, such as those beside tool calls),
    `tool_calls`, `tool_results`, `tools` (the list of tools), `documents` (those of the row). The ledger counts what
    was left out. Reasoning may always be left out."""
    call_arguments: Literal["object", "as_given"] = "object"
    """How the template gets the arguments of tool calls that are JSON text, as OpenAI's are. `object`: parsed, as vLLM
    and SGLang do; if the template takes only text, as text, and the run says so. `as_given`: as in the row."""
    engine: EngineChoice = Field(default=AUTO, description=_ENGINE)
    date: str | None = None
    """The date (YYYY-MM-DD) given to templates that ask for today's."""
    trace: bool = True
    """Use traced templates where tracing is exact; `false` renders every row with jinja2."""

    @field_validator("variables")
    @classmethod
    def _check_nesting(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Refuse variables nested so deeply that the manifest of a finished dataset could not be read again."""
        parse_json(json.dumps([[[[value]]]]))  # a manifest has them four levels below its top; raises ValueError
        return value


class LossConfig(ConfigModel):
    """How much each trained token counts in the loss.

    A token's weight is its message's weight times its example's weight times its source's `loss_weight`, divided as
    `normalize` says. Datasets in which all weights are 1 have no `loss_weights`.
    """

    normalize: Literal["token", "document"] = "token"
    """`token`: every token counts by its weight. `document`: the weight is divided by the number of trained tokens of
    its document (example) in the row, so that every document counts the same, whatever its length. A document that lies
    in several rows counts once in each."""
    column: Literal["auto", "always"] = "auto"
    """`auto`: rows have `loss_weights` if some weight is not 1. `always`: also if all are 1; a stream needs it for
    weights of messages, because it cannot look ahead."""

    @property
    def divides(self) -> bool:
        """Whether a token's weight depends on how many tokens of its document are trained."""
        return self.normalize != "token"


class ContaminationConfig(ConfigModel):
    """Finds examples that share text with evaluation rows. Without this section, nothing is compared."""

    against: Paths = Field(min_length=1)
    """Evaluation files, as in a source's `path`. Columns such as question, problem, prompt, instruction, text or
    messages are what a row asks; solutions, answer, completion and the like are what it expects. Other columns do not
    count."""
    ngram: int = Field(default=13, ge=5, le=100)
    """An example shares text with a row if a run of this many words is in both, after Unicode NFKC, case folding and
    without punctuation. A question with fewer words is looked for as a whole, if it has at least five. Of an answer,
    half of its runs must be there. Frames that many rows have, numbers and code idioms do not count."""
    share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Of a row's runs, at least this share must be in the example, such as 0.1. The default takes one run."""
    action: Literal["report", "drop"] = "report"
    """`report` lists such examples in contamination.jsonl and on the report's page. `drop` also leaves them out, with
    the reason `contaminated`."""


class HoldoutConfig(ConfigModel):
    """A held-out part of the data."""

    fraction: Share = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the groups that go to `out/holdout`, such as 0.02 or `2%`. 0 writes no second split."""
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
    """What happens to examples longer than `max_length`."""

    max_length: int = Field(default=2048, ge=2, le=2**24)
    """Maximum length of an example, in tokens; also the capacity of a packed row, unless `pack.row_length` is larger.
    For preference pairs, it limits both sides together, each of which is prompt and completion; with `pack.strategy:
    none`, the longer side. Strategies that cut documents cut them at the ends of rows instead."""
    overlong: Literal["truncate", "drop", "split"] = "truncate"
    """`truncate` cuts, `drop` leaves the example out, `split` cuts it into pieces."""
    keep: Literal["start", "end"] = "start"
    """Which end of a truncated example is kept. Strategies that cut documents do not truncate."""
    split: SplitConfig = SplitConfig()

    @model_validator(mode="after")
    def _check_split(self) -> "TruncateConfig":
        """Refuse options under `split` without `overlong: split`, and an overlap of more than half of a piece."""
        if self.overlong != "split" and self.split != SplitConfig():
            raise ValueError(f"split is for overlong: split, but overlong is {self.overlong}; leave one of them out")
        if self.split.overlap > self.max_length // 2:
            raise ValueError(
                f"split.overlap ({self.split.overlap}) is more than half of max_length ({self.max_length})"
            )
        return self


class OutputConfig(ConfigModel):
    """The size of the shards."""

    shard_bytes: Size = Field(default=256 * 2**20, ge=2**16)
    """Approximate size of a shard."""


class RunSection(ConfigModel):
    """Where and how fast: never part of the identity."""

    workers: int | None = Field(default=None, ge=1)
    """Worker processes; each needs 384 MiB, or some hundred times the bytes of a longer row. Null: one for each core
    that half of the machine's memory allows."""
    executor: Literal["local", "ray"] = "local"
    """What runs the tasks. `local`: processes on this machine. `ray`: a Ray cluster, or Ray on this machine; all its
    machines must see `out`, `cache` and the inputs."""
    shard: str | None = None
    """`i/N`: which of N runs this is, counted from 0, such as `3/8`. Each does its own share first, then what the
    others have not done; any of them can be left out or restarted."""
    address: str | None = None
    """Address of the Ray cluster, `host:port`, or `auto` for the one of this machine. Null starts Ray here, and ends it
    with the run."""
    task_seconds: float | None = Field(default=900.0, gt=0, allow_inf_nan=False)
    """Time limit of a task, which is one block of an input or one shard, in seconds. A task that runs longer is killed,
    and counts as one that killed its worker. Null: no limit."""
    report: bool = True
    """Write report.html and report.json beside the data at the end of the run. They are not part of the dataset, and
    show some rows and paths of this machine."""

    @model_validator(mode="after")
    def _check_executor(self) -> "RunSection":
        """Refuse a shard that is not I/N with I below N, and keys that only the other executor has."""
        if self.shard is not None:
            match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", self.shard)
            if match is None or int(match[1]) >= int(match[2]):
                raise ValueError(f"shard {self.shard!r}: write I/N for run I of N, counted from 0, such as 0/8 to 7/8")
            if self.executor == "ray":
                raise ValueError("shard is not for executor ray, which shares the work by itself")
        if self.address is not None and self.executor != "ray":
            raise ValueError("address names a Ray cluster, and needs executor ray; leave address out, or choose ray")
        return self


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
    mask: Annotated[MaskConfig, alone("policy", PolicyName | MaskConfig)] = MaskConfig()
    """Which tokens are trained. A policy alone is enough: `mask: assistant`. Keys of a source's own `mask` override
    it."""
    loss: LossConfig = LossConfig()
    keep_untrained: bool = False
    """Keep examples and pieces of split examples in which no token is trained, also if truncation removed the trained
    ones. They are counted either way."""
    max_rejected: Share | None = Field(default=None, ge=0.0, le=1.0)
    """The share of a source's rows that may be rejected, such as 0.02 or `2%`: a run with more ends before anything is
    packed, and names the most frequent reason and its first row; a stream says so, and goes on. `1` allows all. Null:
    10 % of a source with more than 100 rows. A source's own `max_rejected` overrides it."""
    filter: FilterConfig = FilterConfig()
    """Length limits of all sources; keys of a source's own `filter` override them."""
    duplicates: Literal["keep", "drop"] = "keep"
    """`drop` leaves out examples equal to an earlier one of any source: the same text, prompt and flags. Earlier means
    by order of sources, then rows. Examples that are left out for another reason do not count."""
    contamination: ContaminationConfig | None = None
    """Compare the examples with evaluation data. Another evaluation file never encodes anything again."""
    holdout: Annotated[HoldoutConfig, alone("fraction", float | str | HoldoutConfig)] = HoldoutConfig()
    """A held-out part of the data. A share alone is enough: `holdout: 2%`."""
    truncate: TruncateConfig = TruncateConfig()
    pack: PackConfig = PackConfig()
    run: RunSection = RunSection()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="after")
    def _check_combinations(self) -> "RunConfig":
        """Refuse keys that are valid alone, but not together."""
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are called {name!r}; give each its own name")
        for source in self.sources:
            policy = POLICIES[self.mask_of(source).policy]
            if source.expand == "per_turn" and policy.trains_earlier_turns:
                raise ValueError(
                    f"mask {policy.name} would train the earlier turns of source {source.name!r} again in every "
                    "example that expand: per_turn makes; take mask completion, which trains the turn itself"
                )
        unweighted = [source.name for source in self.sources if source.weight is None]
        if 0 < len(unweighted) < len(self.sources):
            raise ValueError(
                f"sources.{unweighted[0]}.weight: the other sources have one, and weights are relative to each other; "
                "give every source a weight, or none"
            )
        self._check_row_length()
        self._check_alignment()
        self._check_sharing()
        if self.pack.cuts_documents and self.truncate.overlong != "truncate":
            raise ValueError(
                f"truncate.overlong {self.truncate.overlong} has no meaning with pack.strategy "
                f"{self.pack.strategy}, which cuts long documents itself; leave it out"
            )
        return self

    @property
    def row_length(self) -> int:
        """Capacity of a packed row, in tokens."""
        return self.pack.row_length or self.truncate.max_length

    @property
    def longest_piece(self) -> int:
        """The most tokens of a piece of a document in a row, without padding."""
        return self.row_length if self.pack.cuts_documents else self.truncate.max_length

    def _check_row_length(self) -> None:
        """Raise ValueError if a row is shorter than a document may be."""
        if self.row_length >= self.truncate.max_length:
            return
        default = "" if "max_length" in self.truncate.model_fields_set else ", the default"
        raise ValueError(
            f"pack.row_length ({self.row_length}) is less than truncate.max_length ({self.truncate.max_length}{default}"
            "), but a row must hold the longest document; raise pack.row_length, or lower truncate.max_length"
        )

    def _check_sharing(self) -> None:
        """Raise ValueError if `pack.share` stands beside something that keeps documents from sharing tokens."""
        if not self.pack.shares:
            return
        if not STRATEGIES[self.pack.strategy].keeps_groups:
            able = " or ".join(name for name, strategy in STRATEGIES.items() if strategy.keeps_groups)
            raise ValueError(
                f"pack.share: {self.pack.share} keeps documents whole and together; pack.strategy {self.pack.strategy} "
                f"cuts or separates them: take {able}, or share: none"
            )
        if self.pack.parallel is not None:
            raise ValueError(
                "pack.share does not go with pack.parallel: context parallelism divides documents, and documents that "
                "share see tokens of others; leave one of them out"
            )
        if self.pack.max_docs is not None:
            raise ValueError(
                "pack.share does not go with pack.max_docs, because documents that share stand in one row, however "
                "many they are; leave one of them out"
            )

    def _check_alignment(self) -> None:
        """Refuse rows that cannot be padded as `pack.align` and `pack.parallel` ask.

        Raises:
            ValueError: names the nearest lengths that fit, or the keys that exclude each other.
        """
        pack = self.pack
        length = self.row_length
        key = "truncate.max_length" if pack.row_length is None else "pack.row_length"
        multiple = pack.alignment.row
        if length % multiple:
            # For 1,000 and a multiple of 64: 960 or 1024. A length must have at least 2 tokens, and at most 2**24.
            below = length - length % multiple
            near = " or ".join(str(candidate) for candidate in (below, below + multiple) if 2 <= candidate <= 2**24)
            raise ValueError(
                f"{key} ({length}) must be a multiple of {multiple} for {pack.padded_for}; take "
                f"{near or 'a smaller multiple or fewer devices'}"
            )
        if pack.does.joins_documents and (pack.max_docs is not None or pack.alignment.document > 1):
            raise ValueError(
                f"pack.strategy {pack.strategy} cuts anywhere: it cannot keep pack.max_docs, or pad pieces for "
                "pack.align or pack.parallel with layout thd; leave them out, or take layout ring, or strategy "
                "bfd_split"
            )

    def max_rejected_of(self, source: SourceConfig) -> float | None:
        """The share of a source's rows that may be rejected; None if the default decides, by how many rows it has."""
        return self.max_rejected if source.max_rejected is None else source.max_rejected

    def mask_of(self, source: SourceConfig) -> MaskConfig:
        """The run's mask, with the keys that a source sets itself."""
        return self.mask.model_copy(update=source.mask.model_dump(exclude_none=True))

    def identity(self) -> dict[str, Any]:
        """Everything that the written bytes depend on, except the content of the inputs and of the tokenizer."""
        data = self.model_dump(
            mode="json",
            exclude={
                "out": True,
                "cache": True,
                "run": True,
                "max_rejected": True,  # it can only end a run, which then writes nothing
                # What these name is identified by its content; masks are added below.
                "sources": {"__all__": {"path", "split", "subset", "mask", "max_rejected"}},
                "contamination": {"against"},
                # Every engine gives the same tokens, and a trace the same text as jinja2.
                "tokenizer": {"path", "chat_template", "engine", "trace"},
            },
        )
        if self.row_length == self.truncate.max_length:
            # `pack.row_length` gives the same rows here whether it is named or left out.
            data["pack"]["row_length"] = None
        for source_data, source in zip(data["sources"], self.sources, strict=True):
            # Only a mask that differs: a source that repeats the run's mask gives the same bytes as without it.
            mask = self.mask_of(source)
            if mask != self.mask:
                source_data["mask"] = mask.model_dump(mode="json", include=set(SourceMaskConfig.model_fields))
        return data
