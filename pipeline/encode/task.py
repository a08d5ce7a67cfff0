"""The encode task: one block of one input file → one encoded part in the cache. What all tasks of a run share they find
in the cache, too.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from ...schemas.dataset.manifest import FileRecord
from ...schemas.errors import ConfigError, IntegrityError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.rows import ENCODED, Example
from ...stages.prep import Options
from ...stages.render.renderer import Renderer
from ...stages.template.chat_template import ChatTemplate
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import COLUMNS_NOT_READ, KEYS_NOT_READ, MOST_PLACES, REJECTED, EncodeCounts
from ...stages.tokenize.engines import load_engine
from ...stages.tokenize.preference_tokens import encode_pairs
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.template_watchdog import note_row, rows_in_errors, watch_templates
from ..inputs.blocks import Block
from ..inputs.read import block_examples
from ..store.open_store import Store
from ..store.sealed_notes import get_note, put_note
from .parts import EncodeResult, PartRecord
from .tokenizer import TokenizerSpec

if TYPE_CHECKING:
    from ...schemas.config.config import TokenizerConfig  # which a worker does not need

FORMAT = 22
"""Version of the encoding; increase it whenever the same block and settings would be encoded differently."""
OF_TEMPLATES = frozenset(
    {"template", "jinja2_version", "date", "trace", "allow_lost", "call_arguments", "generation_stops"}
)
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
    call_arguments: Literal["object", "as_given"] = "object"
    """The form in which the template gets the arguments of tool calls. `object`: text if it takes only that, which
    depends on the template alone."""

    @classmethod
    def of(cls, tokenizer: TokenizerSpec, section: "TokenizerConfig", engine: str) -> "EncodeSpec":
        """The specification of a run's encoding, with this engine, whatever the section says."""
        return cls(
            tokenizer,
            engine,
            version(engine),
            version("jinja2"),
            {**tokenizer.special_tokens, **section.variables},
            section.date,
            section.trace,
            tuple(sorted(set(section.allow_lost))),
            section.call_arguments,
        )

    def with_engine(self, name: str) -> "EncodeSpec":
        """The same with another engine."""
        return replace(self, engine=name, engine_version=version(name))

    def payload(self) -> dict[str, Any]:
        """The fields for a part's key, with hashes instead of long texts."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        hashed = {
            "format": FORMAT,
            "tokenizer": self.tokenizer.hash,
            "template": fingerprint([self.tokenizer.chat_template, fields.pop("variables")]),
            "generation_stops": list(self.tokenizer.generation_stops),
        }
        return fields | hashed

    @property
    def generation_stops(self) -> tuple[str, ...]:
        """The added tokens at which a generation stops: those of generation_config.json, or the end-of-sequence token
        if it names none.
        """
        stops, eos = self.tokenizer.generation_stops, self.tokenizer.eos_id
        ids = stops or (() if eos is None else (eos,))
        return tuple(token.content for token in tokenizer_head(self.tokenizer.json).added_tokens if token.id in ids)

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

    @property
    def name(self) -> str:
        """The specification's name in a store: a fingerprint of its content."""
        return f"specs/{fingerprint(self.payload())}.json"

    def save(self, store: Store) -> str:
        """Put the specification into the store for the tasks; return its name."""
        if get_note(store, self.name, EncodeSpec) is None:
            put_note(store, self.name, self)
        return self.name

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
class SourceSettings:
    """How the blocks of a source are read and encoded."""

    form: tuple[str, Options]
    """Name and options of the format."""
    max_row_bytes: int
    where: str | None
    """Condition that selects examples."""
    conversational: bool
    """Whether the rows can be conversations; plain texts do not depend on a template."""
    pairs: bool
    """Whether the examples are preference pairs."""
    spec: str
    """Name of the EncodeSpec in the cache."""
    hash: str
    """Of all of this that a part depends on."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """One block to encode. It is small: names and ranges, but no data."""

    block: Block
    source: SourceSettings
    cache: Store

    @property
    def key(self) -> str:
        """The part's address in the cache: a hash of the block's bytes, and of how rows are read and encoded."""
        return fingerprint([self.block.hash, self.source.hash])

    @property
    def record(self) -> str:
        """Name of the part's record."""
        return f"encoded/{self.key[:2]}/{self.key}.json"

    def run(self) -> EncodeResult:
        """Read, prepare, render and tokenize the rows, and put the part. The caller puts the record.

        Raises:
            IntegrityError: rows were rendered differently by a fast way than by jinja2.
        """
        # A block makes many small objects but no cycles, so garbage collection would only cost time, up to four times
        # as much.
        gc.disable()
        try:
            with rows_in_errors(self.at):
                return _encode_block(self)
        finally:
            gc.enable()

    def at(self, row: int) -> str:
        """The file and the number of a row, for messages.

        Args:
            row: its number in the file, from 0; in small files that share the block, over all of them.
        """
        path, line = self.block.at(row)
        return f"{path}, row {line:,}"

    def __str__(self) -> str:
        return str(self.block)


def _encode_block(task: EncodeTask) -> EncodeResult:
    store, key, source, block = task.cache, task.key, task.source, task.block
    encoder, counts = load_encoder(store, source.spec), EncodeCounts()
    prepared = block_examples(block, source.form, source.max_row_bytes, source.where)
    encoder.samples = []
    before = encoder.renderer.mismatches if encoder.renderer is not None else 0  # of other blocks
    with store.draft() as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), ENCODED) as writer:
            for batch in encoded(encoder, prepared.examples, counts, block.first_line, pairs=source.pairs):
                writer.write_batch(batch)
        if encoder.renderer is not None and encoder.renderer.mismatches > before:
            raise IntegrityError(
                f"{task}: the chat template gave another text by the fast way than by jinja2; please report the "
                "template, and meanwhile use tokenizer.trace=false"
            )
        put = draft.size_and_hash
        name = f"encoded/{key[:2]}/{key}-{put.hash[:16]}.arrow"
        store.put(draft, name)
    used = len({example.line for example in prepared.examples}) - counts.of(REJECTED)
    for line, reason, detail in prepared.rejects:
        counts.add(REJECTED, reason, line, -1, detail, places=MOST_PLACES)
    counts.found |= {"rows_filtered": dict(prepared.filtered), "examples_skipped": dict(prepared.skipped)}
    counts.add_names(COLUMNS_NOT_READ, prepared.unread_columns)
    in_template = encoder.renderer.read_names if encoder.renderer is not None else frozenset()
    keys = {key: count for key, count in prepared.unread_keys.items() if key not in in_template}
    counts.add_names(KEYS_NOT_READ, keys)
    counts.found = {kind: dict(sorted(names.items())) for kind, names in counts.found.items()}
    counts.places.sort(key=lambda place: (place.line, place.sub, place.kind, place.name))
    rows, size = prepared.rows + prepared.blank, block.end - block.start
    record = PartRecord(FileRecord(name, put.bytes, put.hash), rows, prepared.blank, size, used, counts)
    return EncodeResult(task.record, record, encoder.samples)


def encoded(
    encoder: Encoder, examples: Iterable[Example], counts: EncodeCounts, first: int, *, pairs: bool
) -> Iterator[pa.RecordBatch]:
    """Encode examples, after noting each one's row, which errors of its template name.

    Args:
        first: the number of line 0 of their block.
    """

    def noted() -> Iterator[Example]:
        for example in examples:
            note_row(first + example.line)
            yield example

    return encode_pairs(encoder, noted(), counts) if pairs else encoder.encode(noted(), counts)


load_spec = lru_cache(maxsize=2)(EncodeSpec.load)
"""`EncodeSpec.load`, with the last ones kept."""


@lru_cache(maxsize=2)
def load_encoder(store: Store, name: str) -> Encoder:
    """The encoder of a specification in a store; cached, because loading a tokenizer takes a second.

    Raises:
        ConfigError: this machine has another version of a package than the driver.
        TokenizerError: the engine refuses the tokenizer.
    """
    spec = load_spec(store, name)
    for package, wanted in ((spec.engine, spec.engine_version), ("jinja2", spec.jinja2_version)):
        here = f"no {package}"
        with suppress(PackageNotFoundError):
            here = f"{package} {version(package)}"
        if here != f"{package} {wanted}":
            raise ConfigError(
                f"this worker has {here}, but the run was planned with {wanted}; install the same version everywhere"
            )
    engine, template = load_engine(spec.engine, spec.tokenizer.json), spec.tokenizer.chat_template
    renderer = make_renderer(spec, template) if template is not None else None
    return Encoder(spec.tokenizer.json, engine, renderer, spec.tokenizer.around)


def make_renderer(spec: EncodeSpec, template: str) -> Renderer:
    """The renderer of a specification that has this template."""
    watch_templates()
    added = tokenizer_head(spec.tokenizer.json).added_tokens
    given: Literal["as_given"] | None = "as_given" if spec.call_arguments == "as_given" else None
    return Renderer(
        ChatTemplate(template, spec.variables, spec.tokenizer.template_name, spec.date, given),
        trace=spec.trace,
        special_tokens=[token.content for token in added if token.special],
        added_tokens=[token.content for token in added if not token.special],
        allow_lost=spec.allow_lost,
        generation_stops=spec.generation_stops,
    )
