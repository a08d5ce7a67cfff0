"""Encoding the inputs: which parts are missing, who makes them, and what happens when an engine is caught lying."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ..schemas.config import RunConfig
from ..schemas.errors import EngineMismatchError, IntegrityError
from ..schemas.hints import setting
from ..schemas.jsontext import decode_note
from ..stages.encode import differing
from ..stages.engines import ENGINES, NOT_INSTALLED, Engine, make_engine
from .catalogue import PartPlace
from .checking import damaged
from .conditions import polars_version
from .encode import EncodeResult, EncodeSpec, EncodeTask, record_name
from .executors import Executor
from .formats import SourceFormat
from .inputs.elsewhere import origin_of
from .misses import FOLDER as HISTORY
from .misses import why_missing
from .observer import Observer
from .options import is_plain, needs_template
from .parts import PartFile, PartRecord
from .resolve import EngineChoice, ResolveTask, SampleSource, choice_key, guess_engine, make_spec
from .sealed import seal, unseal
from .sources import InputFile
from .store import LocalStore
from .stores import Store, ask_all, cache_beside, resolve_place
from .tokenizer import TokenizerSpec
from .worker import perform

REFERENCE = "tokenizers"
"""The engine that all others are held against."""


@dataclass(frozen=True, slots=True)
class EncodedInputs:
    """All blocks of all inputs, encoded."""

    spec: EncodeSpec
    cache: Store
    """Where the parts are."""
    places: tuple[PartPlace, ...]
    records: tuple[PartRecord, ...]
    """One a place."""
    busy: float
    """Seconds that workers spent on it, in all."""
    made: int = 0
    """Tokens that they encoded; all others the cache had."""
    not_taken: dict[str, int] = field(default_factory=dict)
    """Rows beyond `max_rows`, by source; they are not encoded."""


class DistrustedError(Exception):
    """An engine or a traced template differed from its reference; nothing made with it may be used."""

    def __init__(self, what: str, example: str) -> None:
        super().__init__(f"{what} differed from its reference on {example!r}")
        self.what = what


class Encoding:
    """The encoding of one run's inputs, apart from who runs the tasks."""

    def __init__(
        self,
        config: RunConfig,
        cache: Store,
        files: list[InputFile],
        tokenizer: TokenizerSpec,
        observer: Observer,
        formats: Mapping[str, SourceFormat],
        *,
        pairs: bool = False,
    ) -> None:
        self.config = config
        self.cache = cache
        self.files = files
        self.tokenizer = tokenizer
        self.observer = observer
        self.formats = formats
        self.pairs = pairs
        """Whether all sources are preference data."""
        self._names = [source.name for source in config.sources]
        self._sources = {source.name: source for source in config.sources}
        self._reference: Engine | None = None
        self._sure: set[str] = set()
        """Parts that this process has made or checked."""
        self._known: dict[str, PartRecord] = {}
        """Records that a store far away has."""

    def spec(self, engine: str, version: str) -> EncodeSpec:
        """The specification with an engine; the template is traced unless it was caught once."""
        spec = make_spec(
            self.tokenizer,
            engine,
            version,
            self.config.tokenizer.date,
            self.config.tokenizer.trace,
            any(needs_template(self.formats[source.name].options) for source in self.config.sources),
            self.config.tokenizer.variables,
            self.config.tokenizer.on_limit,
            self.config.tokenizer.allow_lost,
        )
        if spec.trace and self.cache.exists(_untraceable(spec)):
            spec = replace(spec, trace=False)
        return spec

    def distrusted(self) -> tuple[str, ...]:
        """Engines that were caught with this tokenizer, in these versions, by any run that shares the cache."""
        out = []
        for name in ENGINES:
            if name != REFERENCE and self.cache.exists(self._distrust_name(*guess_engine(name, ()))):
                out.append(name)
        return tuple(out)

    def choose(self, executor: Executor, spec_name: str) -> EngineChoice:
        """What `tokenizer.engine` means here: from the cache, or by holding engines against the reference."""
        requested = self.config.tokenizer.engine
        samples = []
        for source in self.config.sources:
            file = next(file for file in self.files if file.source == source.name)
            form = self.formats[source.name]
            block = file.blocks[0]
            origin = origin_of(file, source.max_row_bytes)
            samples.append(SampleSource(file.where(block), block, form.name, form.options, origin))
        name = f"engines/{choice_key(self.tokenizer.hash, requested, samples)}.json"
        kept = unseal(self.cache.read(name))
        distrusted = self.distrusted()
        if kept is not None:
            choice = decode_note(kept, EngineChoice)
            if requested != "auto" or choice.name not in distrusted:
                return choice
        task = ResolveTask(requested, spec_name, self.cache, tuple(samples), distrusted)
        # It takes seconds, and is said for what it is: the next run over these rows has the answer in the cache.
        self.observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
        (result,) = executor.map(perform, [task])
        assert isinstance(result, EngineChoice)
        self.observer.end()
        absent = [engine for engine, verdict in result.tried if NOT_INSTALLED in verdict]
        for engine, verdict in result.tried:
            if engine != result.name and engine not in absent:
                self.observer.note(f"tokenizer engine {engine} is not used: {verdict}")
        if absent and result.name == REFERENCE:
            self.observer.note(
                f"{' and '.join(absent)} could encode several times as fast: pip install 'packtrain[fast]'"
            )
        self.cache.replace_bytes(name, seal(msgspec.json.encode(result)))
        return result

    def tasks(self, spec: EncodeSpec) -> list[EncodeTask]:
        """One task a block, in the order of sources, files and blocks."""
        name, payload = spec.save(self.cache), spec.payload()
        out = []
        for file in self.files:
            source = self._sources[file.source]
            form = self.formats[file.source]
            conversational = not is_plain(form.options)
            out += [
                EncodeTask(
                    file.where(block),
                    block,
                    form.name,
                    form.options,
                    source.max_row_bytes,
                    self.cache,
                    name,
                    payload,
                    conversational,
                    (source.where, polars_version()) if source.where is not None else None,
                    self.pairs,
                    origin_of(file, source.max_row_bytes),
                )
                for block in file.blocks
            ]
        return out

    def missing(self, tasks: list[EncodeTask]) -> list[EncodeTask]:
        """Tasks whose parts the cache does not hold; equal blocks are made once."""
        first = {task.key: task for task in reversed(tasks)}
        records = self._records(tasks)
        return [first[key] for key, record in records.items() if record is None]

    def encode(self, executor: Executor, spec: EncodeSpec) -> EncodedInputs:
        """Encode what is missing.

        Raises:
            DistrustedError: an engine or a trace was caught; `distrust` it and call again with another spec.
        """
        tasks = self.tasks(spec)
        self.forget_damaged(executor, tasks)
        missing = self.missing(tasks)
        busy, made = 0.0, 0
        for folder in ("specs", "engines", HISTORY, *(("encoded", "blocks", "scans") if missing else ())):
            self.cache.sweep(folder)
        if missing:
            self.observer.begin("encode", sum(t.block.end - t.block.start for t in missing), "B")
            try:
                due = {task.key: task for task in missing}
                # Others may have the same blocks in hand: those that share the work, or just the cache.
                every = list({task.key: task for task in tasks}.values())
                # Of a store far away that costs a request a block, which only pays where others do surely share.
                look = isinstance(self.cache, LocalStore) or self.config.run.shard is not None
                there = lambda task: task.key not in due or (look and self._record(task.key) is not None)  # noqa: E731
                for result in executor.map(perform, executor.order(every, there)):
                    assert isinstance(result, EncodeResult)
                    self._accept(result, spec)
                    busy += result.seconds
                    record = result.record
                    made += record.tokens - record.end_of_sequence - record.special
                    self.observer.advance(record.bytes_read, rows=record.rows, tokens=record.tokens)
            except EngineMismatchError as error:
                raise DistrustedError(f"{spec.engine} {spec.engine_version}", str(error)) from error
            self.observer.end()
        records, found = [], self._records(tasks)
        for task in tasks:
            record_or_none = found[task.key]
            if record_or_none is None:
                raise IntegrityError(f"the encoded part of {task} vanished from the cache; run again")
            records.append(record_or_none)
        blocks = [(file, block) for file in self.files for block in file.blocks]
        places = tuple(
            PartPlace(
                self.cache,
                PartFile(record.part, record.bytes, record.hash),
                self._names.index(file.source),
                file.label,
                block.first_line,
            )
            for (file, block), record in zip(blocks, records, strict=True)
        )
        not_taken = Counter[str]()
        for file in self.files:
            not_taken[file.source] += file.not_taken
        return EncodedInputs(spec, self.cache, places, tuple(records), busy, made, dict(not_taken))

    def why_missing(self, tasks: list[EncodeTask], missing: list[EncodeTask]) -> list[str]:
        """In what parts of the same rows differ that the cache does hold, a sentence a source."""
        return list(why_missing(self.cache, self.files, tasks, missing))

    def forget_damaged(self, executor: Executor, tasks: list[EncodeTask]) -> None:
        """Hold parts of earlier runs against their hashes. What is damaged loses its record, and so is missing."""
        keys: dict[PartFile, str] = {}
        for key, record in self._records(tasks).items():
            if record is not None and record.part not in self._sure:
                keys[PartFile(record.part, record.bytes, record.hash)] = key
        found = damaged(executor, self.cache, keys)
        for file, key in keys.items():
            if file.name in found:
                self.cache.remove(record_name(key))
                self.observer.note(f"{self.cache.where(file.name)} is damaged, and is made anew")
            else:
                self._sure.add(file.name)

    def distrust(self, error: DistrustedError, spec: EncodeSpec) -> EncodeSpec:
        """Remember that an engine or a trace was caught, and fall back on the reference."""
        if error.what == "template":
            self.cache.put_bytes(_untraceable(spec), str(error).encode())
            self.observer.note("the traced chat template differed from jinja2; everything is encoded again with jinja2")
            return replace(spec, trace=False)
        self.cache.put_bytes(self._distrust_name(spec.engine, spec.engine_version), str(error).encode())
        if self.config.tokenizer.engine != "auto":
            raise IntegrityError(f"tokenizer engine {error}; use {setting('tokenizer.engine', 'auto')}")
        self.observer.note(f"tokenizer engine {error}; everything is encoded again with the reference")
        return self.spec(*guess_engine(REFERENCE, ()))

    def _distrust_name(self, engine: str, version: str) -> str:
        return f"distrusted/{self.tokenizer.hash}-{engine}-{version}"

    def _records(self, tasks: list[EncodeTask]) -> dict[str, PartRecord | None]:
        """The record of each task that has one, by key, in the order of the tasks."""
        keys = list(dict.fromkeys(task.key for task in tasks))
        unknown = [key for key in keys if key not in self._known]
        asked = dict(zip(unknown, ask_all(self.cache, self._record, unknown), strict=True))
        if not isinstance(self.cache, LocalStore):
            # To ask again costs two requests for every block; a folder is asked again, because parts may be removed.
            self._known.update((key, record) for key, record in asked.items() if record is not None)
        return {key: self._known.get(key) or asked[key] for key in keys}

    def _record(self, key: str) -> PartRecord | None:
        data = unseal(self.cache.read(record_name(key)))
        if data is None:
            return None
        # Without what the key was made from: of a million parts, that would be gigabytes.
        try:
            record = PartRecord.from_json({**decode_note(data, dict[str, Any]), "payload": {}})
        except (ValueError, KeyError, TypeError):  # of another shape: a part to make again
            return None
        # A record vouches for a part of this size; anything else is a part to make again.
        return record if self.cache.size(record.part) == record.bytes else None

    def _accept(self, result: EncodeResult, spec: EncodeSpec) -> None:
        """Hold the part's samples against the reference, then let it count."""
        if result.mismatches:
            raise DistrustedError("template", f"a row of {result.source}")
        if spec.engine != REFERENCE and result.samples:
            if self._reference is None:
                self._reference = make_engine(REFERENCE, self.tokenizer.json)
            sample = differing(self._reference, result.samples)
            if sample is not None:
                raise DistrustedError(f"{spec.engine} {spec.engine_version}", sample.text[:80])
        data = seal(msgspec.json.encode(result.record.to_json()))
        name = record_name(result.key)
        if not self.cache.put_bytes(name, data):
            there = unseal(self.cache.read(name))
            with suppress(ValueError, KeyError, TypeError):  # nothing, or of another shape: it is replaced
                earlier = PartRecord.from_json(decode_note(there, dict[str, Any]))
                if earlier.hash != result.record.hash:
                    raise IntegrityError(
                        f"encoding is not deterministic: {name} was made before with another content "
                        f"({earlier.hash[:16]} then, {result.record.hash[:16]} now); please report it with the input"
                    )
            self.cache.replace_bytes(name, data)
        self._sure.add(result.record.part)


def _untraceable(spec: EncodeSpec) -> str:
    payload = spec.payload()
    return f"untraceable/{payload['format']}-{payload['template']}"


def cache_root(config: RunConfig, out: str, base: Path) -> str:
    """Where encoded parts live: `cache:` of the configuration, or a folder beside the output. A path or a URL.

    Args:
        out: as `stores.resolve_place` gives it.
    """
    if config.cache is not None:
        return resolve_place(config.cache, base)
    return cache_beside(out)
