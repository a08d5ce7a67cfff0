"""The first look at new data: which engine encodes it, and how many tokens its bytes become.

A worker compares the fast engine with the reference, on texts on which tokenizers are known to disagree and on the
first rows of every source. The answer is kept in the cache, for later runs over the same first rows.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...schemas.errors import RowRejectedError, TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.jsontext import decode_note
from ...schemas.rows import Example
from ...stages.prep import Options, make_format
from ...stages.template.render import Renderer
from ...stages.tokenize.engine_check import compare, fuzz_texts
from ...stages.tokenize.engines import ENGINES, REFERENCE, Engine, load_engine, make_engine, tokenizer_head
from ..execute.executor import Executor, perform
from ..execute.rendering_note import note, rows_of
from ..inputs.blocks import Block
from ..inputs.elsewhere import InputOrigin, here, origin_of
from ..inputs.read import columns_of, read_rows
from ..observer import Observer
from ..store.checksummed import seal, unseal
from ..store.open import Store, scratch_of
from .encode_spec import EncodeSpec
from .task import load_spec, make_renderer

if TYPE_CHECKING:
    from .prepared import Prepared  # brings the models of a configuration, which a worker does not need

LOOKS = "engines"
"""The folder of the cache that keeps the answers."""
_FORMAT = 1
"""Version of the look; increase it when other texts are compared."""
_ROWS = 64
"""First rows of every source that are looked at."""
_CHARACTERS = 1 << 17
"""Maximum number of characters of a source's rows, and of one of its texts, which is cut: for a few megabytes, the
reference needs a second, and hundreds of times the memory.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """What the first look found."""

    engine: str
    version: str
    tokens_per_byte: float
    """Tokens per byte of input, for estimating disk space; 0 if nothing could be measured."""
    why: str = ""
    """Why the reference encodes although the fast engine was wanted, or ""."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Where the first rows of a source are."""

    path: Path
    block: Block
    format: str
    options: Options
    origin: InputOrigin | None = None
    """See `EncodeTask`."""


@dataclass(frozen=True, slots=True)
class LookTask:
    """Compare the engines, and measure."""

    requested: str
    """An engine, or `auto`."""
    spec: str
    """Name in the cache of an EncodeSpec with the tokenizer and template; its engine is ignored."""
    cache: Store
    sources: tuple[FirstRows, ...]

    def run(self) -> Look:
        """Look at the sources.

        Raises:
            TokenizerError: an engine that was asked for by name refuses the tokenizer, or is wrong.
        """
        spec = load_spec(self.cache, self.spec)
        texts, size = _first_texts(self.sources, spec, scratch_of(self.cache).root)
        engine, why = _choose(self.requested, spec.tokenizer_json, texts)
        tokens = len(engine.encode(texts).ids) if texts else 0
        return Look(engine.name, engine.version, tokens / size if size else 0.0, why)

    def __str__(self) -> str:
        return f"the first look at the rows, with the tokenizer engine {self.requested}"


def first_look(prepared: "Prepared", cache: Store, executor: Executor, observer: Observer) -> Look:
    """Return what the cache says about these inputs, or let a worker look at them.

    Args:
        prepared: inputs and tokenizer, with the engine to try first.

    Raises:
        TokenizerError: see `LookTask`; or `tokenizers` cannot load the tokenizer.
    """
    sources = []
    for source in prepared.sources:
        file = next(file for file in prepared.files if file.source == source.name)
        form, block = prepared.formats[source.name], file.blocks[0]
        origin = origin_of(file, source.max_row_bytes)
        sources.append(FirstRows(file.where(block), block, form.name, form.options, origin))
    name = f"{LOOKS}/{_key(prepared, sources)}.json"
    with suppress(msgspec.MsgspecError):  # missing, or damaged
        return decode_note(unseal(cache.read(name), name), Look)
    observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
    task = LookTask(prepared.engine, prepared.spec.save(cache), cache, tuple(sources))
    (look,) = executor.map(perform, [task])
    assert isinstance(look, Look)
    observer.end()
    if look.why:
        observer.note(f"{REFERENCE} encodes, which takes several times as long as the fast engine: {look.why}")
    cache.replace_bytes(name, seal(msgspec.json.encode(look), name))
    return look


def _key(prepared: "Prepared", sources: Sequence[FirstRows]) -> str:
    """A hash of everything that the answer depends on."""
    versions = {}
    for name in ENGINES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    data = [[one.block.hash, one.format, msgspec.to_builtins(one.options.payload())] for one in sources]
    spec = prepared.spec.payload()
    about = {"format": _FORMAT, "tokenizer": spec["tokenizer"], "template": spec["template"], "versions": versions}
    return fingerprint({**about, "requested": prepared.engine, "sources": data})


def _choose(requested: str, tokenizer_json: str, texts: Sequence[str]) -> tuple[Engine, str]:
    """The engine that encodes, and why it is not the fast one."""
    reference = make_engine(REFERENCE, tokenizer_json)
    if requested == REFERENCE:
        return reference, ""
    name = next(iter(ENGINES)) if requested == "auto" else requested
    try:
        engine = load_engine(name, tokenizer_json)
    except TokenizerError as error:
        if requested != "auto":
            raise
        return reference, str(error)
    added = [token.content for token in tokenizer_head(tokenizer_json).added_tokens]
    compared = [*fuzz_texts(added), *texts]
    found = compare(engine, reference, compared)
    if not found.differing:
        return engine, ""
    why = f"{name} differs from {REFERENCE} on {found.differing:,} of {len(compared):,} texts, first {found.first}"
    if requested != "auto":
        raise TokenizerError(f"the tokenizer engine {why}; use tokenizer.engine=auto")
    return reference, why


def _first_texts(sources: Sequence[FirstRows], spec: EncodeSpec, scratch: Path) -> tuple[list[str], int]:
    """The texts of the first rows, long ones cut, and their number of input bytes."""
    renderer = make_renderer(spec, spec.template) if spec.template is not None else None
    texts: list[str] = []
    size = 0.0
    for source in sources:
        if source.block.too_long:
            continue
        form = make_format(source.format, source.options)
        path = here(source.path, source.block, source.origin, scratch)
        rows = read_rows(path, source.block, sys.maxsize, columns_of(form), _ROWS)
        row_bytes = (source.block.end - source.block.start) // max(source.block.lines, 1)
        characters = 0
        for item in [*(rows.lines or ()), *(rows.records or ())]:
            row_size, whole, before = len(item[1]) if rows.lines is not None else row_bytes, 0, characters
            prepared = form.prepare([item]) if rows.lines is not None else form.prepare_rows([item])
            with rows_of(source.path):
                for example in prepared.examples:
                    note.row = source.block.first_line + example.line
                    text = _text(example, renderer)
                    if text is not None:
                        texts.append(text[:_CHARACTERS])
                        characters += len(texts[-1])
                        whole += len(text)
            size += row_size * ((characters - before) / whole if whole else 1)
            if characters > _CHARACTERS:
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
