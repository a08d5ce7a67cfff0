"""The first look at new data: which engine encodes it, and how many tokens its bytes become.

The fast engine is compared with the reference, on texts on which tokenizers are known to disagree and on the first rows
of every source. A worker reads, renders and encodes with the fast engine; the driver, which needs the reference anyway,
compares. The answer is kept in the cache, for later runs over the same first rows. That an engine agrees with the
reference on the known texts depends only on the tokenizer, and is kept in the user's cache for all data.
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
from ...stages.tokenize.engines import (
    ENGINES,
    REFERENCE,
    Engine,
    EngineTokens,
    load_engine,
    make_engine,
    tokenizer_head,
)
from ..execute.executor import Executor, perform
from ..execute.template_watchdog import note, rows_of
from ..inputs.blocks import Block
from ..inputs.elsewhere import InputOrigin, here, origin_of
from ..inputs.read import columns_of, read_rows
from ..observer import Observer
from ..store.checksummed import About, UserCache, seal, unseal
from ..store.open import Store, scratch_of
from .encode_spec import EncodeSpec
from .task import load_spec, make_renderer

if TYPE_CHECKING:
    from .prepared import Prepared  # brings the models of a configuration, which a worker does not need

LOOKS = "engines"
"""The folder of the cache that keeps the answers, and of the user's cache that keeps which engines agree."""
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
class Tried:
    """What an engine made of the texts that are to be compared."""

    look: Look
    """What will be found if all tokens are those of the reference."""
    texts: list[str]
    """Empty if the reference itself encodes."""
    tokens: EngineTokens


@dataclass(frozen=True, slots=True)
class LookTask:
    """Encode what is to be compared, and measure."""

    requested: str
    """An engine, or `auto`."""
    agreed: str
    """The version of the fast engine that is known to agree with the reference on the known texts, or ""."""
    spec: str
    """Name in the cache of an EncodeSpec with the tokenizer and template; its engine is ignored."""
    cache: Store
    sources: tuple[FirstRows, ...]

    def run(self) -> Tried:
        """Look at the sources.

        Raises:
            TokenizerError: an engine that was asked for by name refuses the tokenizer.
        """
        spec = load_spec(self.cache, self.spec)
        rows, size = _first_texts(self.sources, spec, scratch_of(self.cache).root)
        engine, why = _load(self.requested, spec.tokenizer_json)
        known: list[str] = []
        if engine.name != REFERENCE and engine.version != self.agreed:
            known = fuzz_texts([token.content for token in tokenizer_head(spec.tokenizer_json).added_tokens])
        texts = [*known, *rows]
        tokens = engine.encode(texts)
        of_rows = len(tokens.ids) - int(tokens.offsets[len(known)])
        look = Look(engine.name, engine.version, of_rows / size if size else 0.0, why)
        return Tried(look, texts if engine.name != REFERENCE else [], tokens)

    def __str__(self) -> str:
        return f"the first look at the rows, with the tokenizer engine {self.requested}"


def first_look(prepared: "Prepared", cache: Store, executor: Executor, observer: Observer) -> Look:
    """Return what the cache says about these inputs, or look at them.

    Args:
        prepared: inputs and tokenizer, with the engine to try first.

    Raises:
        TokenizerError: an engine that was asked for by name refuses the tokenizer, or is wrong; or `tokenizers` cannot
            load it.
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
    agreed, about = UserCache(LOOKS), _about(prepared.spec)
    known = prepared.spec.engine_version if agreed.read(about) is not None else ""
    task = LookTask(prepared.engine, known, prepared.spec.save(cache), cache, tuple(sources))
    (tried,) = executor.map(perform, [task])
    assert isinstance(tried, Tried)
    look = _compared(tried, prepared)
    if tried.texts and (look.engine, look.version) == (about["engine"], about["version"]):
        agreed.keep(about, b"true")
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


def _about(spec: EncodeSpec) -> About:
    """Everything that the comparison on the known texts depends on."""
    return {
        "format": _FORMAT,
        "tokenizer": spec.tokenizer_hash,
        "engine": spec.engine,
        "version": spec.engine_version,
        "reference": version(REFERENCE),
    }


def _load(requested: str, tokenizer_json: str) -> tuple[Engine, str]:
    """The engine to try, and why it is not the fast one."""
    try:
        return load_engine(next(iter(ENGINES)) if requested == "auto" else requested, tokenizer_json), ""
    except TokenizerError as error:
        if requested != "auto":
            raise
        return make_engine(REFERENCE, tokenizer_json), str(error)


def _compared(tried: Tried, prepared: "Prepared") -> Look:
    """What is found, after the comparison with the reference.

    It stays loaded in this process (see `reference_tokenizer`) for the samples of the parts and for the report.
    """
    if not tried.texts:
        return tried.look
    reference = make_engine(REFERENCE, prepared.spec.tokenizer_json)
    found = compare(tried.tokens, reference, tried.texts)
    if not found.differing:
        return tried.look
    why = (
        f"{tried.look.engine} differs from {REFERENCE} on {found.differing:,} of {len(tried.texts):,} texts, "
        f"first {found.first}"
    )
    if prepared.engine != "auto":
        raise TokenizerError(f"the tokenizer engine {why}; use tokenizer.engine=auto")
    return Look(REFERENCE, reference.version, tried.look.tokens_per_byte, why)


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
