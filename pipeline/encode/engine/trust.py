"""Decides which engine a run uses: chosen on the first rows, and replaced if an engine or a trace is found wrong.

Wrong engines and traces are noted in the cache, by tokenizer and versions, for every run that shares it.
"""

from contextlib import suppress
from dataclasses import replace

import msgspec

from ....schemas.config.hints import setting
from ....schemas.errors import IntegrityError
from ....schemas.jsontext import decode_note
from ....stages.tokenize.engines import ENGINES, NOT_INSTALLED, guess_engine
from ...execute.executor import Executor
from ...inputs.fetch import origin_of
from ...observer import Observer
from ...store.checksummed import seal, unseal
from ...store.open import Store
from ..encode_spec import EncodeSpec
from ..prepared import Prepared
from .choice import EngineChoice, SampleSource, choice_key, choose_engine

REFERENCE = "tokenizers"
"""The engine that all others are compared with."""


class DistrustedError(Exception):
    """An engine or a traced template differed from its reference; its results must not be used."""

    def __init__(self, what: str, example: str) -> None:
        super().__init__(f"{what} differed from its reference on {example!r}")
        self.what = what


def distrusted_engines(cache: Store, tokenizer_hash: str) -> tuple[str, ...]:
    """Engines that a run with the same cache, tokenizer and versions found wrong."""
    others = [guess_engine(name, ()) for name in ENGINES if name != REFERENCE]
    return tuple(name for name, version in others if cache.exists(_distrust_note(tokenizer_hash, name, version)))


def trusted_trace(cache: Store, spec: EncodeSpec) -> EncodeSpec:
    """The specification, without tracing if a trace of its template was found wrong."""
    return replace(spec, trace=False) if spec.trace and cache.exists(_trace_note(spec)) else spec


def choose_on_first_rows(prepared: Prepared, cache: Store, executor: Executor, observer: Observer) -> EngineChoice:
    """Choose the engine for these inputs, from the cache or by comparing engines with the reference.

    Args:
        prepared: inputs and tokenizer; their guessed engine is ignored.
    """
    engine, spec = prepared.engine, prepared.spec
    samples = []
    for source in prepared.sources:
        file = next(file for file in prepared.files if file.source == source.name)
        form = prepared.formats[source.name]
        block = file.blocks[0]
        origin = origin_of(file, source.max_row_bytes)
        samples.append(SampleSource(file.where(block), block, form.name, form.options, origin))
    name = f"engines/{choice_key(spec.tokenizer_hash, engine, samples)}.json"
    kept = unseal(cache.read(name), name)
    distrusted = distrusted_engines(cache, spec.tokenizer_hash)
    with suppress(msgspec.MsgspecError):  # missing, or of another version
        choice = decode_note(kept, EngineChoice)
        if engine != "auto" or choice.name not in distrusted:
            return choice
    # The check takes seconds; the next run over these rows finds the result in the cache.
    observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
    result = choose_engine(engine, spec, tuple(samples), distrusted, cache, executor)
    observer.end()
    absent = [other for other, verdict in result.tried if NOT_INSTALLED in verdict]
    for other, verdict in result.tried:
        if other != result.name and other not in absent:
            observer.note(f"tokenizer engine {other} is not used: {verdict}")
    if absent and result.name == REFERENCE:
        observer.note(f"{' and '.join(absent)} could encode several times as fast: pip install 'packtrain[fast]'")
    cache.replace_bytes(name, seal(msgspec.json.encode(result), name))
    return result


def fall_back(prepared: Prepared, error: DistrustedError, cache: Store, observer: Observer) -> Prepared:
    """Record that an engine or a trace was wrong, and use the reference instead.

    Raises:
        IntegrityError: the configuration names the wrong engine.
    """
    spec = prepared.spec
    if error.what == "template":
        cache.put_bytes(_trace_note(spec), str(error).encode())
        observer.note("the traced chat template differed from jinja2; everything is encoded again with jinja2")
        return replace(prepared, spec=replace(spec, trace=False))
    cache.put_bytes(_distrust_note(spec.tokenizer_hash, spec.engine, spec.engine_version), str(error).encode())
    if prepared.engine != "auto":
        raise IntegrityError(f"tokenizer engine {error}; use {setting('tokenizer.engine', 'auto')}")
    observer.note(f"tokenizer engine {error}; everything is encoded again with the reference")
    name, version = guess_engine(REFERENCE, ())
    return replace(prepared, spec=replace(spec, engine=name, engine_version=version))


def _distrust_note(tokenizer_hash: str, engine: str, version: str) -> str:
    return f"distrusted/{tokenizer_hash}-{engine}-{version}"


def _trace_note(spec: EncodeSpec) -> str:
    payload = spec.payload()
    return f"untraceable/{payload['format']}-{payload['template']}"
