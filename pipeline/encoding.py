"""Encoding the inputs: which parts are missing, who makes them, and what happens when an engine is caught lying."""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ..schemas.config import RunConfig
from ..schemas.errors import EngineMismatchError, IntegrityError
from ..stages.encode import differing
from ..stages.engines import Engine, make_engine
from .catalogue import PartPlace
from .encode import EncodeResult, EncodeSpec, EncodeTask, record_name
from .executors import Executor
from .observer import Observer
from .options import format_options, needs_template
from .parts import PartRecord
from .resolve import EngineChoice, ResolveTask, SampleSource, choice_key, make_spec
from .sources import InputFile
from .store import LocalStore
from .tokenizer import TokenizerSpec
from .worker import perform


@dataclass(frozen=True, slots=True)
class EncodedInputs:
    """All blocks of all inputs, encoded."""

    spec: EncodeSpec
    places: tuple[PartPlace, ...]
    records: tuple[PartRecord, ...]
    """One a place."""
    made: int
    """Parts that this run encoded; the others were in the cache."""


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
        cache: LocalStore,
        files: list[InputFile],
        tokenizer: TokenizerSpec,
        observer: Observer,
    ) -> None:
        self.config = config
        self.cache = cache
        self.files = files
        self.tokenizer = tokenizer
        self.observer = observer
        self._names = [source.name for source in config.sources]
        self._sources = {source.name: source for source in config.sources}
        self._reference: Engine | None = None

    def spec(self, engine: str, version: str) -> EncodeSpec:
        """The specification with an engine; the template is traced unless it was caught once."""
        spec = make_spec(
            self.tokenizer,
            engine,
            version,
            self.config.tokenizer.date,
            self.config.tokenizer.trace,
            any(needs_template(source) for source in self.config.sources),
        )
        if spec.trace and self.cache.exists(_untraceable(spec)):
            spec = replace(spec, trace=False)
        return spec

    def choose(self, executor: Executor, spec_name: str) -> EngineChoice:
        """What `tokenizer.engine` means here: from the cache, or by holding engines against the reference."""
        requested = self.config.tokenizer.engine
        name = f"engines/{choice_key(self.tokenizer.hash, requested)}.json"
        kept = self.cache.read(name)
        if kept is not None:
            return msgspec.json.decode(kept, type=EngineChoice)
        samples = []
        for source in self.config.sources:
            file = next(file for file in self.files if file.source == source.name)
            samples.append(SampleSource(file.path, file.blocks[0], source.format, format_options(source)))
        task = ResolveTask(requested, spec_name, self.cache.root, tuple(samples))
        (choice,) = executor.map(perform, [task])
        assert isinstance(choice, EngineChoice)
        for engine, verdict in choice.tried:
            if engine != choice.name:
                self.observer.note(f"tokenizer engine {engine} is not used: {verdict}")
        self.cache.put_bytes(name, msgspec.json.encode(choice))
        return choice

    def tasks(self, spec: EncodeSpec) -> list[EncodeTask]:
        """One task a block, in the order of sources, files and blocks."""
        name, payload = spec.save(self.cache), spec.payload()
        out = []
        for file in self.files:
            source = self._sources[file.source]
            options = format_options(source)
            out += [
                EncodeTask(
                    file.path,
                    block,
                    source.format,
                    options,
                    source.max_row_bytes,
                    self.cache.root,
                    name,
                    payload,
                )
                for block in file.blocks
            ]
        return out

    def missing(self, tasks: list[EncodeTask]) -> list[EncodeTask]:
        """Tasks whose parts the cache does not hold; equal blocks are made once."""
        seen: set[str] = set()
        out = []
        for task in tasks:
            key = task.key
            if key not in seen and self._record(key) is None:
                out.append(task)
            seen.add(key)
        return out

    def encode(self, executor: Executor, spec: EncodeSpec) -> EncodedInputs:
        """Encode what is missing.

        Raises:
            DistrustedError: an engine or a trace was caught; `distrust` it and call again with another spec.
        """
        tasks = self.tasks(spec)
        missing = self.missing(tasks)
        if missing:
            self.observer.begin("encode", sum(t.block.end - t.block.start for t in missing), "B")
            try:
                for result in executor.map(perform, missing):
                    assert isinstance(result, EncodeResult)
                    self._accept(result, spec)
                    record = result.record
                    self.observer.advance(record.bytes_read, rows=record.rows, tokens=record.tokens)
            except EngineMismatchError as error:
                raise DistrustedError(f"{spec.engine} {spec.engine_version}", str(error)) from error
            finally:
                self.observer.end()
        records = []
        for task in tasks:
            record_or_none = self._record(task.key)
            if record_or_none is None:
                raise IntegrityError(f"the encoded part of {task} vanished from the cache; run again")
            records.append(record_or_none)
        blocks = [(file, block) for file in self.files for block in file.blocks]
        places = tuple(
            PartPlace(
                self.cache.path(record.part).absolute(),
                self._names.index(file.source),
                file.label,
                block.first_line,
            )
            for (file, block), record in zip(blocks, records, strict=True)
        )
        return EncodedInputs(spec, places, tuple(records), len(missing))

    def distrust(self, error: DistrustedError, spec: EncodeSpec) -> EncodeSpec:
        """Remember that an engine or a trace was caught, and fall back on the reference."""
        if error.what == "template":
            self.cache.put_bytes(_untraceable(spec), str(error).encode())
            self.observer.note("the traced chat template differed from jinja2; everything is encoded again with jinja2")
            return replace(spec, trace=False)
        if self.config.tokenizer.engine != "auto":
            raise IntegrityError(
                f"tokenizer engine {spec.engine} {spec.engine_version}: {error}; set tokenizer.engine to tokenizers"
            )
        reference = make_engine("tokenizers", self.tokenizer.json)
        choice = EngineChoice(
            reference.name,
            reference.version,
            ((spec.engine, str(error)), (reference.name, "the reference")),
            0.3,
        )
        name = f"engines/{choice_key(self.tokenizer.hash, 'auto')}.json"
        self.cache.replace_bytes(name, msgspec.json.encode(choice))
        self.observer.note(f"tokenizer engine {error}; everything is encoded again with the reference")
        return self.spec(reference.name, reference.version)

    def _record(self, key: str) -> PartRecord | None:
        data = self.cache.read(record_name(key))
        if data is None:
            return None
        record = PartRecord.from_json(msgspec.json.decode(data))
        # A record vouches for a part of this size; anything else is a part to make again.
        return record if self.cache.size(record.part) == record.bytes else None

    def _accept(self, result: EncodeResult, spec: EncodeSpec) -> None:
        """Hold the part's samples against the reference, then let it count."""
        if result.suspects:
            raise DistrustedError("template", result.record.part)
        if spec.engine != "tokenizers" and result.samples:
            if self._reference is None:
                self._reference = make_engine("tokenizers", self.tokenizer.json)
            sample = differing(self._reference, result.samples)
            if sample is not None:
                raise DistrustedError(f"{spec.engine} {spec.engine_version}", sample.text[:80])
        data = msgspec.json.encode(result.record.to_json())
        name = record_name(result.key)
        if not self.cache.put_bytes(name, data):
            earlier = PartRecord.from_json(msgspec.json.decode(self.cache.read(name) or b"{}"))
            if earlier.hash != result.record.hash:
                raise IntegrityError(
                    f"encoding is not deterministic: {name} was made before with another content "
                    f"({earlier.hash[:16]} then, {result.record.hash[:16]} now); please report it with the input"
                )
            self.cache.replace_bytes(name, data)


def _untraceable(spec: EncodeSpec) -> str:
    return f"untraceable/{spec.payload()['template']}"


def cache_root(config: RunConfig, out: Path, base: Path) -> Path:
    """Where encoded parts live: `cache:` of the configuration, or a folder beside the output."""
    if config.cache is not None:
        return (base / config.cache).absolute()
    return out.absolute().parent / ".packtrain-cache"
