"""What encoding depends on besides the rows: the tokenizer, how rows are rendered, and the engine that makes tokens.

A run learns how rows are rendered from its configuration and its tokenizer. With that, and with the first rows, it
chooses the engine; see `engine_choice`. Both together are the specification of its encoding.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...schemas.errors import IntegrityError, TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...stages.tokenize.vocabulary import SpecialTokenAffixes, tokenizer_head
from ..store.sealed_notes import get_note, put_note

if TYPE_CHECKING:
    # What a worker and the process that asks transformers need not import.
    from ...schemas.config.config import TokenizerConfig
    from ..store.open_store import Store

FORMAT = 24
"""Version of the encoding; increase it whenever the same block and settings would be encoded differently."""
OF_TEMPLATES = frozenset(
    {"template", "jinja2_version", "date", "trace", "allow_lost", "call_arguments", "generation_stops"}
)
"""Keys of a payload that matter only for conversations."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything that packtrain needs to know about a tokenizer. Can be pickled; workers build engines from it."""

    json: str = field(repr=False)
    """Content of a tokenizer.json without truncation and padding."""
    chat_template: str | None = field(repr=False)
    """Source of the chat template, or None; read it with `require_template`."""
    special_tokens: dict[str, str]
    """Special tokens that are set, by name (`bos_token`, `eos_token` and so on); chat templates see them as
    variables.
    """
    around: SpecialTokenAffixes
    """The tokens around a plain text."""
    eos_id: int | None
    """Id of the end-of-sequence token; None if there is none."""
    pad_id: int | None
    """Id of the padding token, or of the end-of-sequence token if there is no padding token; None if there is neither.
    """
    hash: str
    """BLAKE3 hash, hexadecimal, of everything except the template, the stops and names."""
    name: str = ""
    """The folder's name, or the repository's, for messages; it does not identify the tokenizer."""
    template_name: str = ""
    """What messages call the template: the name of its file, the configuration key, or the tokenizer's name."""
    template_hash: str = ""
    """BLAKE3 hash, hexadecimal, of the template; "" without a template."""
    generation_stops: tuple[int, ...] = ()
    """Ids at which the model's generation stops; () if no generation_config.json names them."""

    def require_template(self) -> str:
        """Return the chat template.

        Raises:
            TokenizerError: there is none.
        """
        if self.chat_template is None:
            raise TokenizerError(
                f"the tokenizer {self.name} has no chat template, which conversations need (of several, none is called "
                "default); give a file with a jinja template: tokenizer.chat_template=template.jinja"
            )
        return self.chat_template


@dataclass(frozen=True, slots=True)
class RenderSpec:
    """How rows become text: the tokenizer with its chat template, and what the template gets. Independent of the
    engine, so it is complete before one is chosen. Workers find it in the cache.
    """

    tokenizer: TokenizerSpec
    jinja2_version: str
    """Version of jinja2, which renders templates; other versions may render differently."""
    variables: dict[str, Any]
    """Variables of all templates, by name: special tokens, and those of the configuration."""
    date: str | None
    """The date that templates get, `tokenizer.date`; None if none is set."""
    trace: bool
    """Whether rows are rendered by traced templates where that is exact; else jinja2 renders every row."""
    allow_lost: tuple[str, ...] = ()
    """Kinds of content that a template may leave out (`tokenizer.allow_lost`), sorted, without repeats."""
    call_arguments: Literal["object", "as_given"] = "object"
    """The form in which the template gets the arguments of tool calls. `object`: text if it takes only that, which
    depends on the template alone."""

    @classmethod
    def of(cls, tokenizer: TokenizerSpec, section: "TokenizerConfig") -> "RenderSpec":
        """How a configuration renders rows with its tokenizer."""
        return cls(
            tokenizer=tokenizer,
            jinja2_version=version("jinja2"),
            # A variable of the configuration replaces a special token of the same name.
            variables={**tokenizer.special_tokens, **section.variables},
            date=section.date,
            trace=section.trace,
            # In one order, so that equal settings find the same parts.
            allow_lost=tuple(sorted(set(section.allow_lost))),
            call_arguments=section.call_arguments,
        )

    def payload(self) -> dict[str, Any]:
        """The fields for a part's key, with hashes instead of long texts."""
        # Every field is part of the key, so that a new one cannot be forgotten.
        fields: dict[str, Any] = msgspec.to_builtins(self)
        variables = fields.pop("variables")  # which are hashed with the template
        replaced = {
            "format": FORMAT,
            "tokenizer": self.tokenizer.hash,
            "template": fingerprint([self.tokenizer.chat_template, variables]),
            "generation_stops": list(self.tokenizer.generation_stops),
        }
        return fields | replaced

    @property
    def generation_stops(self) -> tuple[str, ...]:
        """The added tokens at which a generation stops: those of generation_config.json, or the end-of-sequence token
        if it names none.
        """
        stop_ids = self._configured_stop_ids
        added_tokens = tokenizer_head(self.tokenizer.json).added_tokens
        return tuple(token.content for token in added_tokens if token.id in stop_ids)

    def stop_ids(self, template_stops: Iterable[str]) -> tuple[frozenset[int], tuple[int, ...]]:
        """The ids that end a generation, and the ids with which the template ends turns although a generation would not
        stop there.

        A generation ends with the ids of the template and of generation_config.json; if neither names one, with the
        end-of-sequence token.

        Args:
            template_stops: the special tokens with which the chat template ends turns.
        """
        added_ids = {token.content: token.id for token in tokenizer_head(self.tokenizer.json).added_tokens}
        template_ids = [added_ids[text] for text in template_stops if text in added_ids]
        configured_ids = self._configured_stop_ids
        named_ids = frozenset((*template_ids, *self.tokenizer.generation_stops))
        all_stops = named_ids or frozenset(configured_ids)
        # Where no file and no tokenizer says what stops a generation, nothing contradicts the template.
        unnamed_ids = tuple(id for id in template_ids if configured_ids and id not in configured_ids)
        return all_stops, unnamed_ids

    @property
    def _configured_stop_ids(self) -> tuple[int, ...]:
        """Ids at which a generation stops whatever the template says; () if that is unknown."""
        if self.tokenizer.generation_stops:
            return self.tokenizer.generation_stops
        return () if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,)

    @property
    def name(self) -> str:
        """The name in a store: a fingerprint of the content."""
        return f"specs/{fingerprint(self.payload())}.json"

    def save(self, store: "Store") -> str:
        """Put it into the store for the tasks; returns its name."""
        # None also if it is damaged: then it is put again.
        if get_note(store, self.name, RenderSpec) is None:
            put_note(store, self.name, self)
        return self.name

    @classmethod
    def load(cls, store: "Store", name: str) -> "RenderSpec":
        """Load what was saved under a name.

        Raises:
            IntegrityError: it is missing or damaged.
        """
        spec = get_note(store, name, cls)
        if spec is None:
            raise IntegrityError(f"{store.where(name)} vanished, or is damaged; run again")
        return spec


load_render_spec = lru_cache(maxsize=2)(RenderSpec.load)
"""`RenderSpec.load`, with the last ones kept."""


@dataclass(frozen=True, slots=True)
class EncodeSpec:
    """Everything that an encoded part depends on, except the block and its format."""

    render: RenderSpec
    engine: str
    engine_version: str

    @classmethod
    def of(cls, render: RenderSpec, engine: str) -> "EncodeSpec":
        """The specification with an engine of this machine."""
        return cls(render, engine, version(engine))

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer."""
        return self.render.tokenizer

    def payload(self) -> dict[str, Any]:
        """The fields for a part's key, with hashes instead of long texts."""
        engine = {"tokenizer": self.tokenizer.hash, "engine": self.engine, "engine_version": self.engine_version}
        return engine | self.render.payload()


@dataclass(frozen=True, slots=True)
class EncoderKey:
    """What a worker builds its encoder of: an `EncodeSpec`, of which the long part lies in a store."""

    store: "Store"
    render: str
    """Name of the `RenderSpec` in the store."""
    engine: str
    engine_version: str
    """The version of the engine that the driver has; a worker with another one refuses the task."""

    @classmethod
    def of(cls, store: "Store", spec: EncodeSpec) -> "EncoderKey":
        """The key of a specification whose `RenderSpec` is saved in the store."""
        return cls(store, spec.render.name, spec.engine, spec.engine_version)
