"""The encode task: one block of one input file → one encoded part in the cache. What all tasks of a run share they find
in the cache, too.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from ...schemas.dataset.manifest import FileRecord
from ...schemas.errors import ConfigError, IntegrityError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.rows import ENCODED, Example
from ...stages.prep import Options, PreparedBlock
from ...stages.render.renderer import Renderer
from ...stages.template.chat_template import ChatTemplate
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import COLUMNS_NOT_READ, KEYS_NOT_READ, MOST_PLACES, REJECTED, EncodeCounts
from ...stages.tokenize.engine_check import SampledTexts
from ...stages.tokenize.engines import load_engine
from ...stages.tokenize.preference_tokens import encode_pairs
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.template_watchdog import note_row, rows_in_errors, watch_templates
from ..inputs.blocks import Block
from ..inputs.read import block_examples
from .parts import EncodeResult, PartRecord
from .spec import OF_TEMPLATES, EncoderKey, RenderSpec, load_render_spec

if TYPE_CHECKING:  # configurations, which a worker does not need
    from ...schemas.config.config import SourceConfig
    from ..inputs.source_formats import SourceFormat


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """How the blocks of a source are read, and whether their rows are conversations or pairs."""

    form: tuple[str, Options]
    """Name and options of the format."""
    max_row_bytes: int
    """Longer rows are rejected."""
    where: str | None
    """Condition that selects examples; None takes all."""
    conversational: bool
    """Whether the rows can be conversations; plain texts do not depend on a template."""
    pairs: bool
    """Whether the examples are preference pairs."""

    @classmethod
    def of(cls, source: "SourceConfig", form: "SourceFormat", *, pairs: bool) -> "SourceSettings":
        """The settings of a source whose format is known.

        Args:
            pairs: whether the run is of preference pairs.
        """
        is_conversational = not form.make().is_plain
        return cls(
            form=(form.name, form.options),
            max_row_bytes=source.max_row_bytes,
            where=source.where,
            conversational=is_conversational,
            pairs=pairs,
        )

    def hash(self, encoding: Mapping[str, Any]) -> str:
        """The hash of all that the source's parts depend on besides their blocks.

        Args:
            encoding: the payload of a `RenderSpec` or an `EncodeSpec`.
        """
        name, options = self.form
        # Plain texts do not depend on a template, so that another one leaves their parts as they are.
        relevant = {key: value for key, value in encoding.items() if self.conversational or key not in OF_TEMPLATES}
        return fingerprint(
            {
                "format": name,
                "options": options.payload(),
                "max_row_bytes": self.max_row_bytes,
                "encode": relevant,
                "where": [self.where, version("polars")] if self.where is not None else None,
                "pairs": self.pairs,
            }
        )


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """One block to encode. It is small: names and ranges, but no data."""

    block: Block
    source: SourceSettings
    encoder: EncoderKey
    settings_hash: str
    """The hash of all that the part depends on besides the block: how rows are read and encoded."""

    @property
    def key(self) -> str:
        """The part's address in the cache: a hash of the block's bytes, and of how rows are read and encoded."""
        return fingerprint([self.block.hash, self.settings_hash])

    @property
    def record(self) -> str:
        """Name of the part's record."""
        key = self.key
        return f"encoded/{key[:2]}/{key}.json"

    def run(self) -> EncodeResult:
        """Read, prepare, render and tokenize the rows, and put the part. The caller puts the record.

        Raises:
            IntegrityError: a traced template gave another text than jinja2.
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
            row: its number as `note_row` gets it, counted over the file.
        """
        return self.block.describe_row(row)

    def __str__(self) -> str:
        return str(self.block)


def _encode_block(task: EncodeTask) -> EncodeResult:
    """Encode the block of a task, and put its part into the cache.

    Raises:
        IntegrityError: a traced template gave another text than jinja2.
    """
    block = task.block
    source = task.source
    key = task.key
    store = task.encoder.store
    encoder = load_encoder(task.encoder)
    counts = EncodeCounts()
    sampled = SampledTexts()
    prepared = block_examples(block, source.form, source.max_row_bytes, source.where)
    # The renderer counts over all blocks of this worker.
    mismatches_before = encoder.renderer.mismatches if encoder.renderer is not None else 0
    with store.draft() as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), ENCODED) as writer:
            batches = encode_examples(
                encoder, prepared.examples, counts, sampled, first_line=block.first_line, pairs=source.pairs
            )
            for batch in batches:
                writer.write_batch(batch)
        if encoder.renderer is not None and encoder.renderer.mismatches > mismatches_before:
            raise IntegrityError(
                f"{task}: the chat template gave another text by the fast way than by jinja2; please report the "
                "template, and meanwhile use tokenizer.trace=false"
            )
        part = draft.size_and_hash
        # The content's hash is in the name, so that two runs never write different bytes under one name.
        name = f"encoded/{key[:2]}/{key}-{part.hash[:16]}.arrow"
        store.put_checked(draft, name)
    # Of the rejects, `counts` has only those of rows that gave examples so far; those of other rows come below.
    rows_used = len({example.line for example in prepared.examples}) - counts.total(REJECTED)
    _add_counts_of_rows(counts, prepared, encoder.renderer)
    record = PartRecord(
        FileRecord(name, part.bytes, part.hash),
        rows=prepared.rows + prepared.blank,
        blank=prepared.blank,
        bytes_read=block.end - block.start,
        rows_used=rows_used,
        counts=counts,
    )
    return EncodeResult(task.record, record, sampled.samples)


def _add_counts_of_rows(counts: EncodeCounts, prepared: PreparedBlock, renderer: Renderer | None) -> None:
    """Add what reading the rows found to what encoding their examples found, and sort both: records of equal parts have
    equal bytes.
    """
    for reject in prepared.rejects:
        counts.add(REJECTED, reject.reason, reject.row, sub=-1, detail=reject.detail, places=MOST_PLACES)
    counts.by_kind["rows_filtered"] = dict(prepared.filtered)
    counts.by_kind["examples_skipped"] = dict(prepared.skipped)
    counts.add_names(COLUMNS_NOT_READ, prepared.unread_columns)
    # A key of messages that the format does not know may be one that the template reads.
    template_keys = renderer.read_names if renderer is not None else frozenset()
    unread_keys = {key: count for key, count in prepared.unread_keys.items() if key not in template_keys}
    counts.add_names(KEYS_NOT_READ, unread_keys)
    counts.by_kind = {kind: dict(sorted(names.items())) for kind, names in counts.by_kind.items()}
    counts.places.sort(key=lambda place: (place.line, place.sub, place.kind, place.name))


def encode_examples(
    encoder: Encoder,
    examples: Iterable[Example],
    counts: EncodeCounts,
    sampled: SampledTexts,
    *,
    first_line: int,
    pairs: bool,
) -> Iterator[pa.RecordBatch]:
    """Encode examples, after noting the row of each, which errors of its template name.

    Args:
        first_line: the number of line 0 of their block.
        pairs: whether they are preference pairs.
    """
    noted_examples = _note_rows(examples, first_line)
    if pairs:
        return encode_pairs(encoder, noted_examples, counts, sampled)
    return encoder.encode(noted_examples, counts, sampled)


def _note_rows(examples: Iterable[Example], first_line: int) -> Iterator[Example]:
    """The examples, each after its row was noted: a worker that the kernel kills cannot say any more which it was."""
    for example in examples:
        note_row(first_line + example.line)
        yield example


@lru_cache(maxsize=2)
def load_encoder(key: EncoderKey) -> Encoder:
    """The encoder of a key; cached, because loading a tokenizer takes a second. Every task of a worker has the same
    key, also the one that looks at the first rows, so a worker loads one.

    Raises:
        ConfigError: this machine has another version of a package than the driver.
        TokenizerError: the engine refuses the tokenizer.
    """
    spec = load_render_spec(key.store, key.render)
    _require_version(key.engine, key.engine_version)
    _require_version("jinja2", spec.jinja2_version)
    engine = load_engine(key.engine, spec.tokenizer.json)
    template = spec.tokenizer.chat_template
    renderer = make_renderer(spec, template) if template is not None else None
    return Encoder(spec.tokenizer.json, engine, renderer, spec.tokenizer.around)


def _require_version(package: str, planned: str) -> None:
    """Raise ConfigError if this machine does not have the planned version of a package."""
    installed = f"no {package}"
    with suppress(PackageNotFoundError):
        installed = f"{package} {version(package)}"
    if installed != f"{package} {planned}":
        raise ConfigError(
            f"this worker has {installed}, but the run was planned with {planned}; install the same version everywhere"
        )


def make_renderer(spec: RenderSpec, template: str) -> Renderer:
    """The renderer of a specification that has this template."""
    watch_templates()
    added = tokenizer_head(spec.tokenizer.json).added_tokens
    # None lets the template show whether it takes objects or only text.
    form: Literal["as_given"] | None = "as_given" if spec.call_arguments == "as_given" else None
    return Renderer(
        ChatTemplate(template, spec.variables, name=spec.tokenizer.template_name, date=spec.date, call_arguments=form),
        trace=spec.trace,
        special_tokens=[token.content for token in added if token.special],
        added_tokens=[token.content for token in added if not token.special],
        allow_lost=spec.allow_lost,
        generation_stops=spec.generation_stops,
    )
