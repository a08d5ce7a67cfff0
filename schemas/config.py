"""The configuration of a run, validated by pydantic. Every field says what it does.

Fields under `run`, and the places `out` and `cache`, say where and how fast; they never enter the identity of
a run. Everything else does: two runs of the same identity over the same inputs write the same bytes.
"""

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_size(value: Any) -> Any:
    """`256MiB`, `2 GiB`, `1e9` or a plain number of bytes, as a number of bytes."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower().removesuffix("b").strip()
    digits = text.rstrip("kmgti").strip()
    unit = text[len(digits) :].strip()
    try:
        return int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a size; write 256MiB, 2GiB or a number of bytes") from None


Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": ["integer", "string"]})]
Paths = Annotated[
    tuple[str, ...],
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}, "minItems": 1}),
]
"""Several paths, or one."""


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TokenizerConfig(Section):
    """Which tokenizer, and how it is run."""

    path: str
    """A folder that `transformers.AutoTokenizer.from_pretrained` loads."""
    chat_template: str | None = None
    """A template that replaces the tokenizer's own: a path to a file, or the template itself."""
    engine: Literal["auto", "tokenizers", "fastokens", "gigatoken"] = "auto"
    """Who encodes. `auto` takes the fastest that is installed and agrees with `tokenizers`, the reference."""
    date: str | None = None
    """The date (YYYY-MM-DD) that a template which asks for today is told."""
    trace: bool = True
    """Render by traced templates where tracing is exact; `false` renders every row with jinja2."""


class AppsConfig(Section):
    """Options of the `apps` format."""

    style: Literal["chat", "classic"] = "chat"
    """`chat`: a user turn and an assistant turn. `classic`: the QUESTION/ANSWER prompt of the original paper."""
    max_solutions: int | None = Field(default=None, ge=1)
    """At most this many solutions of a problem, the first ones once repeats are dropped. Null takes all."""
    dedupe: bool = True
    """Drop solutions that repeat an earlier one of the same problem; white space at the end does not count."""
    difficulties: tuple[str, ...] | None = None
    """Only problems of these difficulties, such as [introductory, interview]. Null takes all."""


class SourceConfig(Section):
    """One source of rows."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """How ids, the ledger and reports call it."""
    format: Literal["apps", "prompt_completion", "messages", "text"]
    """How a row is read."""
    path: Paths = Field(min_length=1)
    """JSONL files (UTF-8, one JSON object a line). Relative paths start at the configuration's folder."""
    apps: AppsConfig = AppsConfig()
    """Options of the `apps` format."""
    keys: dict[Literal["prompt", "completion", "messages", "tools", "text"], str] = {}
    """Other names for the columns of the `prompt_completion`, `messages` and `text` formats."""
    max_row_bytes: Size = Field(default=16 * 2**20, ge=1024)
    """A longer line is rejected: it would hold a worker's memory to itself."""

    @field_validator("path", mode="before")
    @classmethod
    def _one_path(cls, value: Any) -> Any:
        return (value,) if isinstance(value, (str, PurePath)) else value


class HoldoutConfig(Section):
    """A part of the data kept apart."""

    fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the groups that go to `out/holdout`. 0 writes no second split."""
    by: Literal["group", "example"] = "group"
    """`group` keeps what belongs together on one side (APPS: all solutions of a problem). Examples without a group,
    and all of them with `example`, are dealt by their content, so equal ones stay together."""


class TruncateConfig(Section):
    """What happens to examples longer than a row."""

    max_length: int = Field(default=2048, ge=2, le=2**24)
    """Tokens a packed row holds; also the longest an example may be."""
    overlong: Literal["truncate", "drop", "error"] = "truncate"
    """`truncate` cuts, `drop` leaves the example out, `error` stops the run and names the first."""
    keep: Literal["start", "end"] = "start"
    """Which end of a truncated example stays. Nothing is truncated by the strategies that cut."""


class PackConfig(Section):
    """How examples share rows."""

    strategy: Literal["bfd", "bfd_split", "wrapped", "none"] = "bfd"
    """`bfd`: best-fit decreasing, documents stay whole. `bfd_split`: longer ones are cut into pieces first.
    `wrapped`: concatenate and cut. `none`: one document a row."""
    shuffle: bool = True
    """Permute the rows by the seed, so that reading front to back is already a shuffle."""
    window_tokens: int | None = Field(default=None, ge=1)
    """Tokens planned together. Null: 4 billion, one window for most datasets."""
    max_docs: int | None = Field(default=None, ge=1)
    """At most this many document pieces a row."""
    align: int = Field(default=1, ge=1)
    """Every piece is padded to a multiple of this; the padding is never trained."""


class RunSection(Section):
    """Where and how fast: never part of the identity."""

    workers: int | None = Field(default=None, ge=1)
    """Worker processes. Null: one for each core."""
    executor: Literal["local"] = "local"
    """Who runs the tasks."""
    memory: Size | None = None
    """An upper limit for what runs at once; more workers than fit are not started. Null: half of the machine's."""


class OutputConfig(Section):
    """What the shards look like."""

    format: Literal["arrow", "parquet"] = "arrow"
    """`arrow`: a folder that `datasets.load_from_disk` opens. `parquet`: smaller, for other readers."""
    shard_bytes: Size = Field(default=256 * 2**20, ge=2**16)
    """About how large a shard is, before compression."""


_KEYS: dict[str, tuple[str, ...]] = {
    "apps": (),
    "prompt_completion": ("prompt", "completion", "tools"),
    "messages": ("messages", "tools"),
    "text": ("text",),
}
"""Which columns of a format can be renamed."""


class RunConfig(Section):
    """One run of packtrain, from sources to packed shards."""

    version: Literal[1] = 1
    """Version of this configuration's shape."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Seeds the order of the rows and the choice of the held-out groups."""
    out: str
    """The folder to write. It must be empty, missing, or an earlier or interrupted run of the same identity."""
    cache: str | None = None
    """The folder of encoded parts, shared between runs. Null: `.packtrain-cache` beside `out`."""
    tokenizer: TokenizerConfig
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    """Where rows come from, in this order."""
    mask: Literal["completion", "all"] = "completion"
    """Which tokens are trained. `completion`: everything after the prompt where there is one, and all of a
    text. `all`: every token."""
    keep_untrained: bool = False
    """Keep examples in which no token is trained, or of which truncation leaves none. They are counted either way."""
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
        if self.truncate.max_length % self.pack.align:
            raise ValueError(
                f"truncate.max_length ({self.truncate.max_length}) must be a multiple of pack.align ({self.pack.align})"
            )
        if self.pack.strategy == "wrapped" and (self.pack.max_docs is not None or self.pack.align > 1):
            raise ValueError("pack.strategy wrapped cuts anywhere: it cannot keep pack.max_docs or pack.align")
        if self.pack.strategy in ("bfd_split", "wrapped") and self.truncate.overlong != "truncate":
            raise ValueError(
                f"truncate.overlong {self.truncate.overlong} has no meaning with pack.strategy "
                f"{self.pack.strategy}, which cuts long documents itself; leave it out"
            )
        for source in self.sources:
            known = _KEYS[source.format]
            for key in source.keys:
                if key not in known:
                    what = f"takes {', '.join(known)}" if known else "renames none"
                    raise ValueError(f"sources.{source.name}.keys.{key}: format {source.format} {what}")
        return self

    def identity(self) -> dict[str, Any]:
        """What the written bytes depend on, apart from the inputs' and the tokenizer's own content."""
        data = self.model_dump(mode="json", exclude={"out", "cache", "run"})
        for source in data["sources"]:
            del source["path"]
            if source["format"] != "apps":
                del source["apps"]
        data["tokenizer"] = {key: data["tokenizer"][key] for key in ("date",)}
        return data
