"""What encoded parts depend on besides their blocks, as the tasks find it in the store; and what the first
look at the rows found.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.fingerprint import fingerprint
from ...stages.mask.sampling_proof import StopTokens
from ...stages.tokenize.encode import SpecialTokenAffixes
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engines import tokenizer_head
from ..store.checksummed import get_note, put_note
from ..store.open_store import Store

FORMAT = 15
"""Version of the encoding; increase it whenever the same block and settings would be encoded differently."""
PAIRS_FORMAT = 1
"""`FORMAT` of parts that hold preference pairs."""
OF_TEMPLATES = frozenset({"template", "jinja2_version", "date", "trace", "allow_lost", "generation_stops"})
"""Keys of an EncodeSpec's payload that matter only for conversations."""


@dataclass(frozen=True, slots=True)
class EncodeSpec:
    """Everything that an encoded part depends on, except the block and its format."""

    tokenizer_json: str
    tokenizer_hash: str
    engine: str
    engine_version: str
    jinja2_version: str
    """Version of jinja2, which renders templates; other versions may render differently."""
    template: str | None
    template_name: str
    variables: dict[str, Any]
    date: str | None
    trace: bool
    around: SpecialTokenAffixes
    allow_lost: tuple[str, ...] = ()
    """Kinds of content that a template may leave out (`tokenizer.allow_lost`), sorted, without repeats."""
    generation_stops: tuple[int, ...] = ()
    """Ids at which the model's generation stops; the sampling proof asks for them."""

    def payload(self) -> dict[str, Any]:
        """Return the fields for a part's key, with hashes instead of long texts."""
        fields = msgspec.to_builtins(self)
        tokenizer, template = fields.pop("tokenizer_hash"), [fields.pop("template"), fields.pop("variables")]
        for name in ("tokenizer_json", "template_name"):
            del fields[name]
        return {"format": FORMAT, "tokenizer": tokenizer, "template": fingerprint(template), **fields}

    def stop_tokens(self, template: Iterable[str]) -> StopTokens:
        """The tokens that end a generation.

        Args:
            template: the special tokens with which the chat template ends turns.
        """
        added = {token.content: token.id for token in tokenizer_head(self.tokenizer_json).added_tokens}
        return StopTokens.of(template, self.generation_stops, self.around.eos, added)

    def save(self, store: Store) -> str:
        """Put the specification into the store for the tasks; return its name."""
        name = self.name
        if self._read(store, name) is None:
            put_note(store, name, self)
        return name

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
        found = cls._read(store, name)
        if found is None:
            raise IntegrityError(f"{store.where(name)} vanished, or is damaged; run again")
        return found

    @classmethod
    def _read(cls, store: Store, name: str) -> "EncodeSpec | None":
        found = get_note(store, name, cls)
        return found if found is not None and found.name == name else None


@dataclass(frozen=True, slots=True)
class Look:
    """What the first look found."""

    engine: str
    version: str
    tokens_per_byte: float
    """Tokens per byte of input, for estimating disk space; 0 if nothing could be measured."""
    why: str = ""
    """Why the reference encodes although the fast engine was wanted, or ""."""
    header_stops: tuple[str, ...] = ()
    """The special tokens in the next message's header with which the chat template ends turns."""
    stops: tuple[str, ...] = ()
    """All special tokens with which it ends them."""
    counts: tuple[EncodeCounts, ...] = ()
    """What was found in the first rows of each source; see `first_look.first_blocks`."""
