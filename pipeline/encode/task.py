"""The encode task: one block of one input file → one encoded part in the cache."""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from ...schemas.errors import TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.rows import ENCODED, Example
from ...stages.prep import Options, PreparedBlock
from ...stages.template.chat_template import ChatTemplate
from ...stages.template.render import Renderer
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import MOST_PLACES, REJECTED, EncodeCounts
from ...stages.tokenize.engine_check import EngineSample
from ...stages.tokenize.engines import Engine, load_engine
from ...stages.tokenize.preference_tokens import encode_pairs
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.template_watchdog import note_row, rows_of, watch_templates
from ..inputs.blocks import Block
from ..inputs.read import block_examples
from ..store.local import Put
from ..store.open_store import Store
from .encode_spec import EncodeSpec
from .parts import PartRecord


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """One block to encode. It is small: names and ranges, but no data."""

    path: Path
    block: Block
    format: str
    options: Options
    max_row_bytes: int
    cache: Store
    spec: str
    """Name of the EncodeSpec in the cache."""
    settings: str
    """Hash of how rows are read and encoded."""
    conversational: bool
    """Whether the rows can be conversations; plain texts do not depend on a template."""
    where: str | None = None
    """Condition that selects examples."""
    pairs: bool = False
    """Whether the examples are preference pairs."""

    @property
    def key(self) -> str:
        """The part's address in the cache: a hash of the block's bytes, and of how rows are read and encoded."""
        return fingerprint([self.block.hash, self.settings])

    def run(self) -> "EncodeResult":
        """Read, prepare, render and tokenize the rows, and put the part. The caller puts the record."""
        # A block makes many small objects but no cycles, so garbage collection would only cost time, up to four times
        # as much.
        gc.disable()
        try:
            with rows_of(self.at):
                return _encode_block(self)
        finally:
            gc.enable()

    def at(self, row: int) -> str:
        """The file and the number of a row, for messages.

        Args:
            row: its number in the file, from 0; in small files that share the block, over all of them.
        """
        path, line = self.block.at(self.path, row)
        return f"{path}, row {line:,}"

    def __str__(self) -> str:
        return self.block.named(self.path)


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """An encoded part without a record yet."""

    key: str
    record: PartRecord
    samples: list[EngineSample]
    """Texts to compare with the reference before the record is written."""
    mistaken: bool
    """Whether rows were rendered differently by a fast way than by jinja2; if so, the part must not be used."""
    source: str
    """The block, as named in messages."""


def _encode_block(task: EncodeTask) -> EncodeResult:
    store = task.cache
    encoder = load_encoder(store, task.spec)
    key = task.key
    prepared = block_examples(task.path, task.block, (task.format, task.options), task.max_row_bytes, task.where)
    counts, encoder.samples = EncodeCounts(), []
    before = encoder.renderer.mismatches if encoder.renderer is not None else 0  # of other blocks
    folder = f"encoded/{key[:2]}"
    with store.draft(folder) as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), ENCODED) as writer:
            examples = noted(task.block.first_line, prepared.examples)
            for batch in encode_pairs(encoder, examples, counts) if task.pairs else encoder.encode(examples, counts):
                writer.write_batch(batch)
        put = draft.result
        name = f"{folder}/{key}-{put.hash[:16]}.arrow"
        store.put(draft, name)
    mistaken = encoder.renderer is not None and encoder.renderer.mismatches > before
    return EncodeResult(key, _record(task, prepared, counts, name, put), encoder.samples, mistaken, str(task))


def noted(first: int, examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples, after noting each one's row, which errors of its template name.

    Args:
        first: the number of line 0 of their block.
    """
    for example in examples:
        note_row(first + example.line)
        yield example


load_spec = lru_cache(maxsize=2)(EncodeSpec.load)
"""`EncodeSpec.load`, with the last ones kept."""


@lru_cache(maxsize=2)
def load_encoder(store: Store, name: str) -> Encoder:
    """The encoder of a specification in a store; cached, because loading a tokenizer takes a second.

    Raises:
        TokenizerError: this machine has another version of a package than the driver.
    """
    spec = load_spec(store, name)
    engine = load_engine(spec.engine, spec.tokenizer.json)
    for package, here, wanted in (
        (spec.engine, engine.version, spec.engine_version),
        ("jinja2", version("jinja2"), spec.jinja2_version),
    ):
        if here != wanted:
            raise TokenizerError(
                f"this worker has {package} {here}, but the run was planned with {wanted}; install the same version "
                "everywhere"
            )
    return make_encoder(spec, engine)


def make_encoder(spec: EncodeSpec, engine: Engine, *, look: bool = False) -> Encoder:
    """The encoder of a specification, with this engine.

    Args:
        look: whether it is for the first look, where all texts are compared.
    """
    template = spec.tokenizer.chat_template
    renderer = make_renderer(spec, template) if template is not None else None
    return Encoder(spec.tokenizer.json, engine, renderer, spec.around, every=look)


def make_renderer(spec: EncodeSpec, template: str) -> Renderer:
    """The renderer of a specification that has this template."""
    watch_templates()
    added = tokenizer_head(spec.tokenizer.json).added_tokens
    return Renderer(
        ChatTemplate(template, spec.variables, spec.tokenizer.template_name, spec.date),
        trace=spec.trace,
        stops=[token.content for token in added if token.special],
        others=[token.content for token in added if not token.special],
        allow_lost=spec.allow_lost,
    )


def _record(task: EncodeTask, prepared: PreparedBlock, counts: EncodeCounts, name: str, put: Put) -> PartRecord:
    used = len({example.line for example in prepared.examples}) - counts.of(REJECTED)
    for line, reason, detail in prepared.rejects:
        counts.add(REJECTED, reason, line, -1, detail, places=MOST_PLACES)
    counts.found |= {"rows_filtered": dict(prepared.filtered), "examples_skipped": dict(prepared.skipped)}
    counts.found = {kind: dict(sorted(names.items())) for kind, names in counts.found.items()}
    counts.places.sort(key=lambda place: (place.line, place.sub, place.kind, place.name))
    return PartRecord(
        part=name,
        bytes=put.bytes,
        hash=put.hash,
        rows=prepared.rows + prepared.blank,
        blank=prepared.blank,
        bytes_read=task.block.end - task.block.start,
        rows_used=used,
        counts=counts,
    )
