"""Resolving what `auto` means: which engine encodes, held against the reference on the person's own first rows."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..schemas.errors import RowRejectedError
from ..schemas.fingerprint import fingerprint
from ..schemas.rows import Example
from ..stages.encode import Around
from ..stages.engines import ENGINES
from ..stages.gate import resolve_engine
from ..stages.prep import Options, make_format
from ..stages.render import Renderer
from .encode import EncodeSpec, keep_engine, load_encoder, make_renderer
from .inputs.elsewhere import Origin, here
from .rendering_note import note, rows_of
from .sources import Block, columns_of, read_rows
from .stores import Store, scratch_of
from .tokenizer import TokenizerSpec
from .verdicts import UserVerdicts

SAMPLE_ROWS = 64
"""First rows of every source that the gate encodes twice."""
SAMPLE_CHARACTERS = 1 << 17
"""Of a source's sample: the reference needs a second for a few megabytes."""


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Where the gate finds the first rows of a source."""

    path: Path
    block: Block
    format: str
    options: Options
    origin: Origin | None = None
    """See `EncodeTask`."""


@dataclass(frozen=True, slots=True)
class ResolveTask:
    """Choose an engine."""

    requested: str
    spec: str
    """Name in the cache of an EncodeSpec whose tokenizer and template are meant; its engine is not looked at."""
    cache: Store
    samples: tuple[SampleSource, ...]
    distrusted: tuple[str, ...]
    """Engines that were caught before; `auto` passes them over."""

    def __str__(self) -> str:
        return f"choosing a tokenizer engine ({self.requested})"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The outcome, kept in the cache."""

    name: str
    version: str
    tried: tuple[tuple[str, str], ...]
    """(engine, verdict in one sentence)."""
    tokens_per_byte: float
    """Tokens that a byte of input became in the sample: for the estimate of the room needed."""


def choose_engine(task: ResolveTask) -> EngineChoice:
    """Run the task."""
    spec = EncodeSpec.load(task.cache, task.spec)
    texts, size = _sample_texts(task.samples, spec, scratch_of(task.cache).root)
    verdicts = UserVerdicts(spec.tokenizer_json)
    resolution = resolve_engine(task.requested, spec.tokenizer_json, texts, task.distrusted, verdicts.check)
    keep_engine(resolution.engine, spec.tokenizer_hash)
    tokens = len(resolution.engine.encode(texts).ids) if texts else 0
    return EngineChoice(resolution.name, resolution.version, resolution.tried, tokens / size if size else 0.0)


def warm_up(cache: Store, spec: str) -> None:
    """Load an encoder before there is work for it."""
    load_encoder(cache, spec)


def guess_engine(requested: str, distrusted: Sequence[str]) -> tuple[str, str]:
    """The engine that will most likely be chosen, and its version."""
    for name in ENGINES if requested == "auto" else [requested]:
        if name in distrusted:
            continue
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return "tokenizers", version("tokenizers")


def choice_key(tokenizer_hash: str, requested: str, samples: Sequence[SampleSource]) -> str:
    """What a choice depends on: the tokenizer, what is installed, and the data that it was tried on."""
    versions = {}
    for name in ENGINES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    data = [[one.block.hash, one.format, msgspec.to_builtins(one.options.payload())] for one in samples]
    return fingerprint({"tokenizer": tokenizer_hash, "requested": requested, "versions": versions, "samples": data})


def make_spec(
    tokenizer: TokenizerSpec,
    engine: str,
    engine_version: str,
    date: str | None,
    trace: bool,
    needs_template: bool,
    variables: Mapping[str, Any] | None = None,
    on_limit: Literal["error", "reject"] = "error",
    allow_lost: Iterable[str] = (),
) -> EncodeSpec:
    """The specification of a run's encoding.

    Args:
        variables: what the template sees besides the special tokens.
        on_limit: what becomes of a row on which the template takes too long or makes too much.
        allow_lost: what of a conversation the template may leave out.
    """
    template = tokenizer.require_template() if needs_template else tokenizer.chat_template
    special = tokenizer.special_tokens
    return EncodeSpec(
        tokenizer_json=tokenizer.json,
        tokenizer_hash=tokenizer.hash,
        engine=engine,
        engine_version=engine_version,
        jinja2_version=version("jinja2"),
        template=template,
        template_name=tokenizer.template_from or tokenizer.name,
        variables={**special, **(variables or {})},
        date=date,
        trace=trace,
        on_limit=on_limit,
        allow_lost=tuple(sorted(set(allow_lost))),
        around=Around(
            prefix=tokenizer.prefix_ids,
            suffix=tokenizer.suffix_ids,
            prefix_text=special.get("bos_token", "") if tokenizer.prefix_ids == (tokenizer.bos_id,) else "",
            suffix_text=special.get("eos_token", "") if tokenizer.suffix_ids == (tokenizer.eos_id,) else "",
            eos=tokenizer.eos_token or "",
        ),
    )


def _sample_texts(sources: Sequence[SampleSource], spec: EncodeSpec, scratch: Path) -> tuple[list[str], int]:
    """The sample's texts, and how many bytes of input they came from."""
    renderer = None
    if spec.template is not None:
        renderer = make_renderer(spec, spec.template)
    texts: list[str] = []
    size = 0
    for source in sources:
        if source.block.too_long:
            continue
        form = make_format(source.format, source.options)
        path = here(source.path, source.block, source.origin, scratch)
        rows = read_rows(path, source.block, sys.maxsize, columns_of(form), SAMPLE_ROWS)
        row_bytes = (source.block.end - source.block.start) // max(source.block.lines, 1)
        characters = 0
        for item in [*(rows.lines or ()), *(rows.records or ())]:
            size += len(item[1]) if rows.lines is not None else row_bytes
            prepared = form.prepare([item]) if rows.lines is not None else form.prepare_rows([item])
            with rows_of(source.path):
                for example in prepared.examples:
                    note.note_row(source.block.first_line + example.line)
                    text = _text(example, renderer)
                    if text is not None:
                        texts.append(text)
                        characters += len(text)
            if characters > SAMPLE_CHARACTERS:
                break
    return texts, size


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
        return None  # encoding meets the row again, and rejects it with its place
