"""Resolves `auto`: chooses an engine by comparing it with the reference on the user's first rows."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import msgspec

from ....schemas.errors import RowRejectedError
from ....schemas.fingerprint import fingerprint
from ....schemas.rows import Example
from ....schemas.versions import version
from ....stages.prep import Options, make_format
from ....stages.template.render import Renderer
from ....stages.tokenize.engine_check import resolve_engine
from ....stages.tokenize.engines import ENGINES, EngineTokens, load_engine
from ...execute.executor import Executor, never, perform
from ...execute.rendering_note import note, rows_of
from ...inputs.blocks import Block
from ...inputs.fetch import InputOrigin, here
from ...inputs.read import columns_of, read_rows
from ...store.open import Store, scratch_of
from ..encode_spec import EncodeSpec
from ..task import load_encoder, load_spec, make_renderer
from .verdicts import UserVerdicts

SAMPLE_ROWS = 64
"""First rows of every source that the engine check encodes twice."""
SAMPLE_CHARACTERS = 1 << 17
"""Maximum number of characters of a source's sample, and of one of its texts, which is cut: for a few megabytes, the
reference needs a second, and hundreds of times the memory.
"""


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Where the engine check finds the first rows of a source."""

    path: Path
    block: Block
    format: str
    options: Options
    origin: InputOrigin | None = None
    """Format of the source; see `EncodeTask`."""


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Render the first rows."""

    spec: str
    """Name in the cache of an EncodeSpec with the tokenizer and template."""
    cache: Store
    samples: tuple[SampleSource, ...]

    def run(self) -> tuple[list[str], int]:
        """The texts, long ones cut, and their number of input bytes."""
        return _sample_texts(self.samples, load_spec(self.cache, self.spec), scratch_of(self.cache).root)

    def __str__(self) -> str:
        return "rendering the first rows"


@dataclass(frozen=True, slots=True)
class EngineTask:
    """Load an engine, and encode some texts with it."""

    engine: str
    spec: str
    """Name in the cache of an EncodeSpec with the tokenizer; its engine is ignored."""
    cache: Store
    texts: tuple[str, ...] = ()

    def run(self) -> tuple[str, EngineTokens]:
        """The engine's version, and the tokens.

        Raises:
            TokenizerError: see `make_engine`.
        """
        engine = load_engine(self.engine, load_spec(self.cache, self.spec).tokenizer_json)
        return engine.version, engine.encode(self.texts)

    def __str__(self) -> str:
        return f"choosing a tokenizer engine ({self.engine})"


class WorkersEngine:
    """An engine that runs in a worker, where it may crash and is loaded already when encoding begins.

    Raises:
        TokenizerError: see `make_engine`.
    """

    def __init__(self, name: str, spec: str, cache: Store, executor: Executor) -> None:
        self.name = name
        self._spec, self._cache, self._executor = spec, cache, executor
        self.version = self._run(())[0]

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        """See Engine."""
        return self._run(tuple(texts))[1]

    def _run(self, texts: tuple[str, ...]) -> tuple[str, EngineTokens]:
        task = EngineTask(self.name, self._spec, self._cache, texts)
        (result,) = self._executor.map(perform, [task])
        assert isinstance(result, tuple)
        return result


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The chosen engine, as stored in the cache."""

    name: str
    version: str
    tried: tuple[tuple[str, str], ...]
    """(engine, verdict in one sentence)."""
    tokens_per_byte: float
    """Tokens per byte of input in the sample, for estimating disk space."""


def choose_engine(
    requested: str,
    spec: EncodeSpec,
    samples: tuple[SampleSource, ...],
    distrusted: Sequence[str],
    cache: Store,
    executor: Executor,
) -> EngineChoice:
    """Choose an engine. The reference runs in this process, which needs it later too; workers do the rest.

    Args:
        requested: an engine, or `auto`.
        spec: the tokenizer and template; its engine is ignored.
        distrusted: engines found wrong before, which `auto` skips.

    Raises:
        TokenizerError: see `resolve_engine`.
    """
    name, json = spec.save(cache), spec.tokenizer_json
    with closing(executor.queue(perform, never)) as queue:
        rendered = queue.submit(SampleTask(name, cache, samples))

        @lru_cache(maxsize=1)
        def sample() -> tuple[list[str], int]:
            (found,) = [*rendered, *queue.drain()]
            assert isinstance(found, tuple)
            return found

        resolution = resolve_engine(
            requested, json, lambda: sample()[0], distrusted, UserVerdicts(json).check,
            lambda engine, _: WorkersEngine(engine, name, cache, executor),
        )  # fmt: skip
        texts, size = sample()
    tokens = len(resolution.engine.encode(texts).ids) if texts else 0
    return EngineChoice(resolution.name, resolution.version, resolution.tried, tokens / size if size else 0.0)


def warm_up(cache: Store, spec: str) -> None:
    """Load an encoder in advance."""
    load_encoder(cache, spec)


def choice_key(tokenizer_hash: str, requested: str, samples: Sequence[SampleSource]) -> str:
    """Return a hash of everything that the choice depends on: the tokenizer, the installed packages, and the sample."""
    versions = {}
    for name in ENGINES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    data = [[one.block.hash, one.format, msgspec.to_builtins(one.options.payload())] for one in samples]
    return fingerprint({"tokenizer": tokenizer_hash, "requested": requested, "versions": versions, "samples": data})


def _sample_texts(sources: Sequence[SampleSource], spec: EncodeSpec, scratch: Path) -> tuple[list[str], int]:
    """The sample's texts, long ones cut, and their number of input bytes."""
    renderer = None
    if spec.template is not None:
        renderer = make_renderer(spec, spec.template)
    texts: list[str] = []
    size = 0.0
    for source in sources:
        if source.block.too_long:
            continue
        form = make_format(source.format, source.options)
        path = here(source.path, source.block, source.origin, scratch)
        rows = read_rows(path, source.block, sys.maxsize, columns_of(form), SAMPLE_ROWS)
        row_bytes = (source.block.end - source.block.start) // max(source.block.lines, 1)
        characters = 0
        for item in [*(rows.lines or ()), *(rows.records or ())]:
            row_size, whole, before = len(item[1]) if rows.lines is not None else row_bytes, 0, characters
            prepared = form.prepare([item]) if rows.lines is not None else form.prepare_rows([item])
            with rows_of(source.path):
                for example in prepared.examples:
                    note.note_row(source.block.first_line + example.line)
                    text = _text(example, renderer)
                    if text is not None:
                        texts.append(text[:SAMPLE_CHARACTERS])
                        characters += len(texts[-1])
                        whole += len(text)
            size += row_size * ((characters - before) / whole if whole else 1)
            if characters > SAMPLE_CHARACTERS:
                break
    return texts, int(size)


def _text(example: Example, renderer: Renderer | None) -> str | None:
    if example.text is not None:
        return example.text
    if isinstance(example.prompt, str) and isinstance(example.completion, str):
        return example.prompt + example.completion
    if renderer is None or example.prompt is None:
        return None
    try:
        return renderer(example.prompt, example.completion, example.tools)[0]  # type: ignore[arg-type]
    except RowRejectedError:
        return None  # encoding will reject the row, and name its line
