"""The first look at new data: which engine encodes it, how many tokens its bytes become, and what ends turns.

A worker encodes texts on which tokenizers are known to disagree, and the first rows of every source; the driver, which
needs the reference tokenizer anyway, compares. The answer is kept in the cache, for later runs over the same first
rows. That an engine agrees with the reference on the known texts depends only on the tokenizer, and is kept in the
user's cache for all data.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from ...schemas.errors import EngineMismatchError, TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.jsontext import decode_note
from ...stages.prep import make_format
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import EncodeCounts, Refused
from ...stages.tokenize.engine_check import EngineSample, compare, fuzz_texts
from ...stages.tokenize.engines import REFERENCE, load_engine, make_engine, tokenizer_head
from ...stages.tokenize.preference import encode_pairs
from ..execute.executor import Executor, perform
from ..execute.template_watchdog import rows_of
from ..inputs.elsewhere import here
from ..inputs.read import columns_of, read_rows
from ..observer import Observer
from ..store.checksummed import About, UserCache, seal, unseal
from ..store.open import Store, scratch_of
from .encode_spec import EncodeSpec, Look
from .task import EncodeTask, load_encoder, load_spec, make_encoder, noted

if TYPE_CHECKING:
    from .prepared import Prepared  # brings the models of a configuration, which a worker does not need

LOOKS = "engines"
"""The folder of the cache that keeps the answers, and of the user's cache that keeps which engines agree."""
_FORMAT = 2
"""Version of the look; increase it when other texts are compared."""
_ROWS = 64
"""First rows of every source that are looked at."""
_CHARACTERS = 1 << 17
"""Characters of a source's rows that suffice: for a few megabytes, the reference needs a second."""
_ROW_BYTES = 1 << 20
"""Longer rows are not looked at: encoding one may need more memory than a worker is sure to have."""


@dataclass(frozen=True, slots=True)
class LookTask:
    """Encode what is to be compared, and measure."""

    requested: str
    """An engine, or `auto`."""
    agreed: bool
    """Whether the fast engine is known to agree with the reference on the known texts."""
    tasks: tuple[EncodeTask, ...]
    """The task of the first block of each source."""

    def run(self) -> tuple[Look, list[EngineSample]]:
        """Look at the sources.

        Returns:
            What is found if all tokens are those of the reference; and the texts to compare, with the engine's tokens.

        Raises:
            TokenizerError: an engine that was asked for by name refuses the tokenizer.
        """
        cache, name = self.tasks[0].cache, self.tasks[0].spec
        spec, why = load_spec(cache, name), ""
        try:
            load_engine(spec.engine, spec.tokenizer_json)
        except TokenizerError as error:
            if self.requested != "auto" or spec.engine == REFERENCE:
                raise
            why = str(error)
        encoder = load_encoder(cache, name) if not why else _by_reference(spec)
        texts: list[str] = []
        if encoder.engine.name != REFERENCE and not self.agreed:
            texts = fuzz_texts([token.content for token in tokenizer_head(spec.tokenizer_json).added_tokens])
        ids, offsets = encoder.engine.encode(texts)
        samples = [EngineSample(text, ids[offsets[i] : offsets[i + 1]].tolist()) for i, text in enumerate(texts)]
        size, tokens = 0.0, 0
        try:
            for task in self.tasks:
                for row_size, row_tokens in _first_rows(task, encoder, samples):
                    size += row_size
                    tokens += row_tokens
        except EngineMismatchError as error:  # found by the reference that places the boundaries of an unusual text
            samples.append(EngineSample(str(error), []))
        header: tuple[str, ...] = ()
        stops: tuple[str, ...] = ()
        if encoder.renderer is not None and any(task.conversational for task in self.tasks):
            header, stops = encoder.renderer.manner.header_stops, encoder.renderer.stop_tokens
        look = Look(encoder.engine.name, encoder.engine.version, tokens / size if size else 0.0, why, header, stops)
        return look, samples if look.engine != REFERENCE else []

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
    first = {file.source: file for file in reversed(prepared.joined)}
    tasks = prepared.tasks(cache, [replace(one, blocks=one.blocks[:1]) for one in reversed(first.values())])
    about = [_FORMAT, prepared.engine, version(REFERENCE), *[task.key for task in tasks]]
    name = f"{LOOKS}/{fingerprint(about)}.json"
    with suppress(msgspec.MsgspecError):  # missing, or damaged
        return decode_note(unseal(cache.read(name), name), Look)
    observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
    prepared.spec.save(cache)
    agreed, known = UserCache(LOOKS), _about(prepared.spec)
    task = LookTask(prepared.engine, agreed.read(known) is not None, tuple(tasks))
    (found,) = executor.map(perform, [task])
    assert isinstance(found, tuple)
    look, samples = _compared(found[0], found[1], prepared), found[1]
    if samples and (look.engine, look.version) == (known["engine"], known["version"]):
        agreed.keep(known, b"true")
    observer.end()
    if look.why:
        observer.note(f"{REFERENCE} encodes, which takes several times as long as the fast engine: {look.why}")
    cache.replace_bytes(name, seal(msgspec.json.encode(look), name))
    return look


def _about(spec: EncodeSpec) -> About:
    """Everything that the comparison on the known texts depends on."""
    return {
        "format": _FORMAT,
        "tokenizer": spec.tokenizer_hash,
        "engine": spec.engine,
        "version": spec.engine_version,
        "reference": version(REFERENCE),
    }


def _by_reference(spec: EncodeSpec) -> Encoder:
    """An encoder with the reference, for a tokenizer that the fast engine refuses."""
    return make_encoder(spec, make_engine(REFERENCE, spec.tokenizer_json))


def _compared(look: Look, samples: list[EngineSample], prepared: "Prepared") -> Look:
    """What is found, after the comparison with the reference.

    It stays loaded in this process (see `reference_tokenizer`) for the samples of the parts and for the report.
    """
    if not samples:
        return look
    reference = make_engine(REFERENCE, prepared.spec.tokenizer_json)
    found = compare(samples, reference)
    if not found.differing:
        return look
    texts = f"{found.differing:,} of {len(samples):,} texts, first {found.first}"
    why = f"{look.engine} differs from {REFERENCE} on {texts}"
    if prepared.engine != "auto":
        raise TokenizerError(f"the tokenizer engine {why}; use tokenizer.engine=auto")
    return replace(look, engine=REFERENCE, version=reference.version, why=why)


def _first_rows(task: EncodeTask, encoder: Encoder, samples: list[EngineSample]) -> Iterator[tuple[float, int]]:
    """Encode the first rows of a block; yield the bytes and tokens of each. Rows that cannot be used are left out:
    encoding will reject them, and name their lines.

    Args:
        samples: gets all their texts.
    """
    form, block = make_format(task.format, task.options), task.block
    path = here(task.path, block, task.origin, scratch_of(task.cache).root)
    rows = read_rows(path, block, task.max_row_bytes, columns_of(form), _ROWS)
    mean = (block.end - block.start) / max(block.lines, 1)
    lines = ((len(one[1]), form.prepare([one])) for one in rows.lines or () if len(one[1]) <= _ROW_BYTES)
    records = ((mean, form.prepare_rows([one])) for one in rows.records or () if mean <= _ROW_BYTES)
    counts, refused, characters = EncodeCounts(), list[Refused](), 0
    encode = partial(encode_pairs, encoder) if task.pairs else encoder.encode
    with rows_of(task.at):
        for size, prepared in chain(lines, records):
            before, done = counts.tokens, len(samples)
            for _ in encode(noted(task, prepared.examples), counts, refused, samples, every=True):
                pass
            yield size, counts.tokens - before
            characters += sum(len(sample.text) for sample in samples[done:])
            if characters > _CHARACTERS:
                return
