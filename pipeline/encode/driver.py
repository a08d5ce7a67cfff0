"""The encoding step: what a run encodes, and how; the first look at new rows; and the parts that are missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import cast

from ...schemas.config.config import SourceConfig
from ...schemas.errors import IntegrityError, TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.tables.engines import REFERENCE
from ...stages.template.call_arguments import CallArguments
from ...stages.tokenize.engine_check import difference
from ...stages.tokenize.engines import TokenizersEngine
from ..contamination import ContaminationHits, Evaluation
from ..execute.executor import Executor, perform
from ..inputs.blocks import InputFile
from ..inputs.source_formats import SourceFormat
from ..observer import Observer
from ..store.local import LocalStore
from ..store.open_store import Store
from ..store.records import Records
from ..store.sealed_notes import get_note, get_user_note, put_note, put_user_note
from .first_look import Look, LookTask, SourceLook
from .parts import EncodeResult, PartPlace, PartRecord, mark_used
from .preload import share_tokenizer
from .task import OF_TEMPLATES, EncodeSpec, EncodeTask, SourceSettings

FORMAT = 9
"""Version of the look; increase it when other texts are compared, or something else is learnt."""
_LOOKS = "engines"
"""The folder of the cache that keeps what first looks found."""
AGREED = "engines"
"""The folder of the user's cache that keeps which engines agree on the known texts."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Scanned inputs with known formats, and how their rows become tokens: the input of all later steps."""

    sources: tuple[SourceConfig, ...]
    files: tuple[InputFile, ...]
    """Input files, hashed and cut into blocks, in the order of the sources."""
    joined: tuple[InputFile, ...]
    """The same as they are encoded: small files may be joined, see `join_small`."""
    formats: Mapping[str, SourceFormat]
    """The format of each source."""
    pairs: bool
    """Whether all sources are preference data."""
    spec: EncodeSpec
    """The encoding specification, with the chosen engine."""
    look: Look
    """What the first look at the rows found."""
    evaluation: Evaluation | None = None
    """The evaluation data to compare with."""

    def tasks(self, cache: Store) -> list[EncodeTask]:
        """One task for each block of `joined`, in the order of sources, files and blocks.

        Args:
            cache: the store for parts; before the tasks run, the specification must be saved there.
        """
        settings = {source.name: self._settings(source) for source in self.sources}
        return [EncodeTask(block, settings[file.source], cache) for file in self.joined for block in file.blocks]

    def _settings(self, source: SourceConfig) -> SourceSettings:
        form, where = self.formats[source.name], source.where
        conversational = not form.make().is_plain
        depends = {
            **form.payload(),
            "max_row_bytes": source.max_row_bytes,
            "encode": {k: v for k, v in self.spec.payload().items() if conversational or k not in OF_TEMPLATES},
            "where": [where, version("polars")] if where is not None else None,
            "pairs": self.pairs,
        }
        how = (form.name, form.options), source.max_row_bytes, where, conversational, self.pairs
        return SourceSettings(*how, self.spec.name, fingerprint(depends))


@dataclass(frozen=True, slots=True)
class Encoded:
    """All blocks of all inputs, encoded."""

    spec: EncodeSpec
    cache: Store
    """The store that holds the parts."""
    places: tuple[PartPlace, ...]
    records: tuple[PartRecord, ...]
    """The record of each part in `places`."""
    not_taken: dict[str, int] = field(default_factory=dict)
    """By source, rows beyond `max_rows`; these are not encoded."""
    contamination: ContaminationHits | None = None
    """What the examples share with evaluation rows; None if they are not compared."""


def first_blocks(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """The first file of each source, with only its first block: what the first look sees."""
    first = {file.source: file for file in reversed(files)}
    return tuple(replace(one, blocks=one.blocks[:1]) for one in reversed(first.values()))


def first_look(prepared: Prepared, cache: Store, executor: Executor, observer: Observer) -> Look:
    """Return what the cache says about these inputs, or look at them: with the reference if the engine to try first
    refuses the tokenizer, or is wrong.

    Args:
        prepared: inputs and tokenizer, with the engine to try first.

    Raises:
        TokenizerError: `tokenizers` cannot load the tokenizer.
    """
    tasks = replace(prepared, joined=first_blocks(prepared.joined)).tasks(cache)
    about = [FORMAT, version(REFERENCE), *[task.key for task in tasks]]
    name = f"{_LOOKS}/{fingerprint(about)}.json"
    if (known := get_note(cache, name, Look)) is not None:
        return known
    observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
    try:
        look = _look(prepared.spec, tasks, cache, executor)
    except (TokenizerError, IntegrityError) as error:
        if prepared.spec.engine == REFERENCE:
            raise
        look = replace(_look(prepared.spec.with_engine(REFERENCE), tasks, cache, executor), why=str(error))
    observer.end()
    if look.why:
        observer.note(f"{REFERENCE} encodes, which takes several times as long as the fast engine: {look.why}")
    put_note(cache, name, look)
    return look


def _look(spec: EncodeSpec, tasks: Sequence[EncodeTask], cache: Store, executor: Executor) -> Look:
    """Have the first rows of each source encoded, and compare the tokens with those of the reference.

    Args:
        tasks: the task of each source's first block.

    Raises:
        TokenizerError: an engine refuses the tokenizer, or gives other tokens than the reference.
        IntegrityError: the same, or a block has changed.
    """
    # The known texts take a third of a second, and depend on the tokenizer alone.
    about = [str(FORMAT), spec.tokenizer.hash, *(f"{one} {version(one)}" for one in (spec.engine, REFERENCE))]
    agreed = f"{AGREED}/{fingerprint(about)}.json"
    new = spec.engine != REFERENCE and get_user_note(agreed, dict) is None
    name = share_tokenizer(spec, cache)
    executor.start()
    reference = TokenizersEngine(spec.tokenizer.json)  # kept for all comparisons, and loaded while workers load theirs
    looks = [LookTask(number, task, name, new and not number) for number, task in enumerate(tasks)]
    seen = cast("list[SourceLook]", sorted(executor.map(perform, looks), key=attrgetter("source")))
    samples = [sample for one in seen for sample in one.samples] if spec.engine != REFERENCE else []
    if found := difference(samples, reference):
        raise TokenizerError(f"the tokenizer engine {spec.engine} differs from {REFERENCE} {found}")
    if new:
        put_user_note(agreed, {"agree": about})
    stops = next((one.stops for one in seen if one.stops), ())
    form: CallArguments = next((one.call_arguments for one in seen if one.call_arguments is not None), "object")
    return Look(spec.engine, "", stops, tuple(one.counts for one in seen), form)


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
    cache, tasks = parts.store, prepared.tasks(parts.store)
    names = [task.record for task in tasks]
    first: dict[str, EncodeTask] = {}  # of equal blocks only the first is encoded
    for name, task in zip(names, tasks, strict=True):
        first.setdefault(name, task)
    found = parts.find_intact(first, observer)
    mark_used(cache, found)
    missing = {name: task for name, task in first.items() if name not in found}
    cache.sweep()
    if missing:
        share_tokenizer(prepared.spec, cache)
        observer.begin("encode", sum(task.block.end - task.block.start for task in missing.values()), "B")
        # Others that share the work or the cache may be encoding the same blocks. For a remote store this costs a
        # request per block, which is only worth it if other drivers share the work.
        look = shared or isinstance(cache, LocalStore)
        for result in executor.map(
            perform,
            first.values(),
            lambda task: task.record not in missing or (look and parts.find(task.record) is not None),
        ):
            assert isinstance(result, EncodeResult)
            _check(result, prepared.spec)
            record = result.record
            parts.add(result.name, record)
            observer.advance(record.bytes_read, rows=record.rows, tokens=record.counts.tokens)
        observer.end()
        found = parts.find_all(first)
    for name, task in zip(names, tasks, strict=True):
        if name not in found:
            raise IntegrityError(f"the encoded part of {task} vanished from the cache; run again")
    not_taken = Counter[str]()
    for file in prepared.files:
        not_taken[file.source] += file.not_taken
    numbers = {source.name: number for number, source in enumerate(prepared.sources)}
    blocks = ((file, block) for file in prepared.joined for block in file.blocks)
    records = tuple(found[name] for name in names)
    places = tuple(
        PartPlace(cache, record.file, numbers[file.source], file.lines_of(block))
        for (file, block), record in zip(blocks, records, strict=True)
    )
    return Encoded(prepared.spec, cache, places, records, dict(not_taken))


def _check(result: EncodeResult, spec: EncodeSpec) -> None:
    """Raise IntegrityError if a sample of a part differs from what the reference gives; the part is not used then."""
    if spec.engine != REFERENCE and result.samples:
        found = difference(result.samples, TokenizersEngine(spec.tokenizer.json))  # loaded once in a process
        if found:
            raise IntegrityError(
                f"tokenizer engine {spec.engine} {spec.engine_version} gives other tokens than the reference "
                f"{found}; please report it, and use tokenizer.engine={REFERENCE}"
            )
