"""What encoded parts depend on besides their blocks, as the tasks find it in the store; and what the first
look at the rows found.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.fingerprint import fingerprint, version
from ...stages.tokenize.encode import SpecialTokenAffixes
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.vocabulary import tokenizer_head
from ..store.open_store import Store
from ..store.sealed_notes import get_note, put_note
from .tokenizer import TokenizerSpec

if TYPE_CHECKING:
    from ...schemas.config.config import TokenizerConfig  # which a worker does not need

FORMAT = 16
"""Version of the encoding; increase it whenever the same block and settings would be encoded differently."""
PAIRS_FORMAT = 1
"""`FORMAT` of parts that hold preference pairs."""
OF_TEMPLATES = frozenset({"template", "jinja2_version", "date", "trace", "allow_lost", "generation_stops"})
"""Keys of an EncodeSpec's payload that matter only for conversations."""


@dataclass(frozen=True, slots=True)
class EncodeSpec:
    """Everything that an encoded part depends on, except the block and its format."""

    tokenizer: TokenizerSpec
    engine: str
    engine_version: str
    jinja2_version: str
    """Version of jinja2, which renders templates; other versions may render differently."""
    variables: dict[str, Any]
    """Those that templates get."""
    date: str | None
    trace: bool
    allow_lost: tuple[str, ...] = ()
    """Kinds of content that a template may leave out (`tokenizer.allow_lost`), sorted, without repeats."""

    @classmethod
    def of(cls, tokenizer: TokenizerSpec, section: "TokenizerConfig", engine: str, engine_version: str) -> "EncodeSpec":
        """The specification of a run's encoding, with this engine, whatever the section says."""
        return cls(
            tokenizer,
            engine,
            engine_version,
            version("jinja2"),
            {**tokenizer.special_tokens, **section.variables},
            section.date,
            section.trace,
            tuple(sorted(set(section.allow_lost))),
        )

    @property
    def around(self) -> SpecialTokenAffixes:
        """The tokens around a plain text."""
        one, special = self.tokenizer, self.tokenizer.special_tokens
        return SpecialTokenAffixes(
            prefix=one.prefix_ids,
            suffix=one.suffix_ids,
            prefix_text=special.get("bos_token", "") if one.prefix_ids == (one.bos_id,) else "",
            suffix_text=special.get("eos_token", "") if one.suffix_ids == (one.eos_id,) else "",
            eos=special.get("eos_token", ""),
        )

    def payload(self) -> dict[str, Any]:
        """Return the fields for a part's key, with hashes instead of long texts."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        hashed = {
            "format": FORMAT,
            "tokenizer": self.tokenizer.hash,
            "template": fingerprint([self.tokenizer.chat_template, fields.pop("variables")]),
            "generation_stops": list(self.tokenizer.generation_stops),
        }
        return fields | hashed

    def stop_ids(self, template: Iterable[str]) -> tuple[frozenset[int], tuple[int, ...]]:
        """The ids that end a generation: those of the template and of generation_config.json, or the end-of-sequence
        token if neither names one; and those of the template at which a generation would not stop.

        Args:
            template: the special tokens with which the chat template ends turns.
        """
        added = {token.content: token.id for token in tokenizer_head(self.tokenizer.json).added_tokens}
        own = [added[text] for text in template if text in added]
        given, eos = self.tokenizer.generation_stops, self.tokenizer.eos_id
        others = given or (() if eos is None else (eos,))
        return frozenset((*own, *given) or others), tuple(id for id in own if others and id not in others)

    def save(self, store: Store) -> str:
        """Put the specification into the store for the tasks; return its name."""
        if get_note(store, self.name, EncodeSpec) is None:
            put_note(store, self.name, self)
        return self.name

    @property
    def name(self) -> str:
        """The specification's name in a store: a fingerprint of its content."""
        return f"specs/{fingerprint(self.payload())}.json"

    @classmethod
    def load(cls, store: Store, name: str) -> "EncodeSpec":
        """Load the specification saved under a name.

        Raises:
            IntegrityError: the specification is missing or damaged.
        """
        found = get_note(store, name, cls)
        if found is None:
            raise IntegrityError(f"{store.where(name)} vanished, or is damaged; run again")
        return found


@dataclass(frozen=True, slots=True)
class Look:
    """What the first look found."""

    engine: str
    version: str
    why: str = ""
    """Why the reference encodes although the fast engine was wanted, or ""."""
    stops: tuple[str, ...] = ()
    """The special tokens with which the chat template ends turns."""
    counts: tuple[EncodeCounts, ...] = ()
    """What was found in the first rows of each source; see `first_look.first_blocks`."""
