"""The encoding step: what a run encodes, and how; and the loop that encodes the parts that are missing."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...schemas.config.config import SourceConfig
from ...schemas.errors import IntegrityError
from ...schemas.tables.engines import REFERENCE
from ...stages.tokenize.engine_check import describe_difference
from ...stages.tokenize.engines import TokenizersEngine
from ..contamination import ContaminationHits, Evaluation
from ..execute.executor import Executor, perform
from ..inputs.blocks import InputFile
from ..inputs.source_formats import SourceFormat
from ..observer import Observer
from ..store.local import LocalStore
from ..store.open_store import Store
from ..store.records import Records
from .engine_choice import EngineChoice
from .parts import EncodeResult, PartPlace, PartRecord, mark_used
from .preload import share_tokenizer
from .spec import EncoderKey, EncodeSpec
from .task import EncodeTask, SourceSettings


@dataclass(frozen=True, slots=True)
class Prepared:
    """Scanned inputs with known formats, and how their rows become tokens: the input of all later steps."""

    sources: tuple[SourceConfig, ...]
    files: tuple[InputFile, ...]
    """Input files, hashed and cut into blocks, in the order of the sources."""
    joined: tuple[InputFile, ...]
    """The same files as they are encoded: several small files of a source may be one with a single block."""
    formats: Mapping[str, SourceFormat]
    """The format of each source."""
    settings: Mapping[str, SourceSettings]
    """How the blocks of each source are read."""
    pairs: bool
    """Whether all sources are preference data."""
    choice: EngineChoice
    """The engine, and what the first rows showed when it was chosen."""
    spec: EncodeSpec
    """The encoding specification, with that engine."""
    evaluation: Evaluation | None = None
    """The evaluation data to compare with."""

    def tasks(self, cache: Store) -> list[EncodeTask]:
        """One task for each block of `joined`, in the order of sources, files and blocks.

        Args:
            cache: the store for parts; before the tasks run, `spec.render` must be saved there.
        """
        encoder = EncoderKey.of(cache, self.spec)
        # Hashed once for each source, of which there may be thousands of blocks.
        encoding = self.spec.payload()
        hashes = {name: settings.hash(encoding) for name, settings in self.settings.items()}
        return [
            EncodeTask(block, self.settings[file.source], encoder, hashes[file.source])
            for file in self.joined
            for block in file.blocks
        ]


@dataclass(frozen=True, slots=True)
class Encoded:
    """All blocks of all inputs, encoded."""

    spec: EncodeSpec
    cache: Store
    """The store that holds the parts."""
    places: tuple[PartPlace, ...]
    """One for each block, in the order of the run."""
    records: tuple[PartRecord, ...]
    """The record of each part in `places`."""
    not_taken: dict[str, int] = field(default_factory=dict)
    """Source → how many of its rows are beyond `max_rows`, and so not encoded."""
    contamination: ContaminationHits | None = None
    """What the examples share with evaluation rows; None if they are not compared."""


def encode(
    prepared: Prepared, parts: Records[PartRecord], executor: Executor, observer: Observer, *, shared: bool = False
) -> Encoded:
    """Encode what is missing in the cache, after checking the cached parts against their hashes.

    Args:
        shared: whether other drivers may be encoding the same blocks.

    Raises:
        InputError: an input has changed since it was scanned.
        IntegrityError: the engine or the trace was found wrong; or a part vanished from the cache.
    """
    cache = parts.store
    tasks = prepared.tasks(cache)
    # Equal blocks have equal parts: only the first of them is encoded.
    first_tasks: dict[str, EncodeTask] = {}
    for task in tasks:
        first_tasks.setdefault(task.record, task)
    # Without parts whose files no longer have their hashes: these are encoded again.
    records = parts.find_intact(first_tasks, observer)
    mark_used(cache, records)
    missing = {name: task for name, task in first_tasks.items() if name not in records}
    cache.sweep()  # drafts that dead workers left
    if missing:
        _encode_missing(missing, first_tasks.values(), prepared.spec, parts, executor, observer, shared=shared)
        records = parts.find_all(first_tasks)  # also those that other drivers have encoded meanwhile
    for task in tasks:
        if task.record not in records:
            raise IntegrityError(f"the encoded part of {task} vanished from the cache; run again")
    not_taken = Counter[str]()
    for file in prepared.files:
        not_taken[file.source] += file.not_taken
    records_in_order = tuple(records[task.record] for task in tasks)
    places = _part_places(prepared, cache, records_in_order)
    return Encoded(prepared.spec, cache, places, records_in_order, dict(not_taken))


def _part_places(prepared: Prepared, cache: Store, records: Sequence[PartRecord]) -> tuple[PartPlace, ...]:
    """Where each part is, in the order of the blocks. Equal blocks have one part, and each a place of its own.

    Args:
        records: one per block.
    """
    source_numbers = {source.name: number for number, source in enumerate(prepared.sources)}
    blocks = ((file, block) for file in prepared.joined for block in file.blocks)
    return tuple(
        PartPlace(cache, record.file, source_numbers[file.source], file.lines_of(block))
        for (file, block), record in zip(blocks, records, strict=True)
    )


def _encode_missing(
    missing: Mapping[str, EncodeTask],
    tasks: Iterable[EncodeTask],
    spec: EncodeSpec,
    parts: Records[PartRecord],
    executor: Executor,
    observer: Observer,
    *,
    shared: bool,
) -> None:
    """Encode the missing parts, and add their records.

    Args:
        missing: the tasks whose part is missing, by their records' names.
        tasks: all tasks, those with a part included: drivers that share the work divide the same list among themselves.
        shared: whether other drivers may be encoding the same blocks.

    Raises:
        InputError: an input has changed since it was scanned.
        IntegrityError: the engine or the trace was found wrong.
    """
    share_tokenizer(spec, parts.store)
    # Whether to look for a part once more as its task begins, because another run may have encoded the block meanwhile.
    # In a folder that costs nothing. In a remote store it takes a request for each block, which is only worth it if
    # other drivers share the work.
    looks_again = shared or isinstance(parts.store, LocalStore)

    def has_part(task: EncodeTask) -> bool:
        """Whether a task need not run: its part was there at the beginning, or is by now."""
        if task.record not in missing:
            return True
        return looks_again and parts.find(task.record) is not None

    # Progress is counted in bytes of the inputs.
    observer.begin("encode", sum(task.block.end - task.block.start for task in missing.values()), "B")
    for result in executor.map(perform, tasks, has_part):
        assert isinstance(result, EncodeResult)
        # Before the record, without which no run uses the part.
        _require_reference_tokens(result, spec)
        parts.add(result.name, result.record)
        observer.advance(result.record.bytes_read, rows=result.record.rows, tokens=result.record.counts.tokens)
    observer.end()


def _require_reference_tokens(result: EncodeResult, spec: EncodeSpec) -> None:
    """Raise IntegrityError if a sample of a part differs from what the reference gives; the part is not used then."""
    if spec.engine == REFERENCE or not result.samples:
        return
    # Engines share loaded tokenizers, so this loads the reference once in a process.
    deviation = describe_difference(result.samples, TokenizersEngine(spec.tokenizer.json))
    if deviation:
        raise IntegrityError(
            f"tokenizer engine {spec.engine} {spec.engine_version} gives other tokens than the reference "
            f"{deviation}; please report it, and use tokenizer.engine={REFERENCE}"
        )
