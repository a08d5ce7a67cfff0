"""The first look at new data: which engine encodes it, what ends turns, and whether turns are what a model would
sample.

A worker encodes texts on which tokenizers are known to disagree, and the first rows of every source, with the engine
and with the reference. The answer is kept in the cache, for later runs over the same first rows. That an engine agrees
with the reference on the known texts depends only on the tokenizer, and is kept in the user's cache for all data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from ...schemas.errors import IntegrityError, TokenizerError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.rows import Example
from ...stages.mask.sampling_proof import prove
from ...stages.prep import make_format
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engine_check import difference, fuzz_texts, samples_of
from ...stages.tokenize.engines import REFERENCE, Engine, load_engine, make_engine
from ...stages.tokenize.preference_tokens import encode_pairs
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.executor import Executor, perform
from ..execute.template_watchdog import rows_of
from ..inputs.blocks import InputFile
from ..inputs.read import columns_of, read_rows
from ..observer import Observer
from ..store.checksummed import get_note, get_user_note, put_note, put_user_note
from ..store.open_store import Store, scratch_of
from .encode_spec import EncodeSpec, Look
from .preload import share_tokenizer
from .task import EncodeTask, load_spec, make_encoder, noted

if TYPE_CHECKING:
    from .prepared import Prepared  # brings the models of a configuration, which a worker does not need

LOOKS = "engines"
"""The folder of the cache that keeps the answers, and of the user's cache that keeps which engines agree."""
SAMPLED, EARLIER = "turns_sampled", "turns_sampled_earlier"
"""The kinds of turns of completions, and of those before; see `EncodeCounts.found`. Names are outcomes, and details the
numbers of messages."""
_FORMAT = 6
"""Version of the look; increase it when other texts are compared."""
_SHIFT = 40
"""Rows are noted with the number of their task, shifted left by this many bits."""
_ROWS = 64
"""First rows of every source that are looked at."""
_CHARACTERS = 1 << 17
"""Characters of a source's rows that suffice: for a few megabytes, the reference needs a second."""
_ROW_BYTES = 1 << 20
"""Longer rows are not looked at: encoding one may need more memory than a worker is sure to have."""


@dataclass(frozen=True, slots=True)
class LookTask:
    """Encode the known texts and the first rows, and compare with the reference."""

    tasks: tuple[EncodeTask, ...]
    """The task of the first block of each source."""

    def run(self) -> Look:
        """Look at the sources, with the reference if the fast engine refuses the tokenizer, or is wrong.

        Raises:
            TokenizerError: `tokenizers` cannot load the tokenizer.
        """
        spec = load_spec(self.tasks[0].cache, self.tasks[0].spec)
        reference, why = make_engine(REFERENCE, spec.tokenizer.json), ""
        if spec.engine != REFERENCE:
            try:
                return self._look(spec, load_engine(spec.engine, spec.tokenizer.json), reference)
            except (TokenizerError, IntegrityError) as error:
                why = str(error)
        return replace(self._look(spec, reference, reference), why=why)

    def _look(self, spec: EncodeSpec, engine: Engine, reference: Engine) -> Look:
        encoder = make_encoder(spec, engine, look=True)
        endings: tuple[str, ...] = ()
        if encoder.renderer is not None and any(task.conversational for task in self.tasks):
            endings = encoder.renderer.manner.stop_tokens
        stops, _ = spec.stop_ids(endings)
        counts = tuple(EncodeCounts() for _ in self.tasks)
        with rows_of(self.at):
            for number, (task, counted) in enumerate(zip(self.tasks, counts, strict=True)):
                _encode_first(task, encoder, stops, counted, number << _SHIFT)
        if engine is not reference:
            engines = f"{engine.name} {engine.version}, {REFERENCE} {reference.version}"
            about = {"format": str(_FORMAT), "tokenizer": spec.tokenizer.hash, "engines": engines}
            agreed = f"{LOOKS}/{fingerprint(about)}.json"
            known = get_user_note(agreed, dict) is not None
            added = [token.content for token in tokenizer_head(spec.tokenizer.json).added_tokens]
            samples = [] if known else samples_of(engine, fuzz_texts(added))
            found = difference([*samples, *encoder.samples], reference)
            if found:
                raise TokenizerError(f"the tokenizer engine {engine.name} differs from {REFERENCE} {found}")
            if not known:
                put_user_note(agreed, about)
        return Look(engine.name, engine.version, "", endings, counts)

    def at(self, number: int) -> str:
        """The file and the number of a row, for messages."""
        return self.tasks[number >> _SHIFT].at(number & (1 << _SHIFT) - 1)

    def __str__(self) -> str:
        return "the first look at the rows"


def first_blocks(files: Sequence[InputFile]) -> list[InputFile]:
    """The first file of each source, with only its first block."""
    first = {file.source: file for file in reversed(files)}
    return [replace(one, blocks=one.blocks[:1]) for one in reversed(first.values())]


def first_look(prepared: "Prepared", cache: Store, executor: Executor, observer: Observer) -> Look:
    """Return what the cache says about these inputs, or look at them.

    Args:
        prepared: inputs and tokenizer, with the engine to try first.

    Raises:
        TokenizerError: see `LookTask.run`.
    """
    tasks = prepared.tasks(cache, first_blocks(prepared.joined))
    about = [_FORMAT, version(REFERENCE), *[task.key for task in tasks]]
    name = f"{LOOKS}/{fingerprint(about)}.json"
    if (known := get_note(cache, name, Look)) is not None:
        return known
    observer.begin("check the tokenizer's engine against the reference, once for these inputs", 0, "")
    prepared.spec.save(cache)
    share_tokenizer(prepared.spec, scratch_of(cache))
    (look,) = executor.map(perform, [LookTask(tuple(tasks))])
    assert isinstance(look, Look)
    observer.end()
    if look.why:
        observer.note(f"{REFERENCE} encodes, which takes several times as long as the fast engine: {look.why}")
    put_note(cache, name, look)
    return look


def _encode_first(task: EncodeTask, encoder: Encoder, stops: frozenset[int], counts: EncodeCounts, base: int) -> None:
    """Encode the first rows of a block, and count whether their turns are what a model would sample. Rows that cannot
    be used are left out: encoding will reject them, and name their lines.

    Args:
        stops: ids that end a generation.
        base: added to the numbers of rows that are noted.
    """
    form, block = make_format(task.format, task.options), task.block
    rows = read_rows(task.path, block, task.max_row_bytes, columns_of(form), _ROWS)
    mean = (block.end - block.start) / max(block.lines, 1)
    lines = (form.prepare([one]) for one in rows.lines or () if len(one[1]) <= _ROW_BYTES)
    records = (form.prepare([one]) for one in rows.records or () if mean <= _ROW_BYTES)
    before = len(encoder.samples)
    for prepared in chain(lines, records):
        examples = noted(base + block.first_line, prepared.examples)
        if task.pairs:  # a preference loss does not depend on turns
            list(encode_pairs(encoder, examples, counts))
        else:
            for batch in encoder.encode(examples, counts):
                _count_turns(batch, prepared.examples, encoder, stops, counts)
        if sum(len(sample.text) for sample in encoder.samples[before:]) > _CHARACTERS:
            break


def _count_turns(
    batch: pa.RecordBatch, examples: Sequence[Example], encoder: Encoder, stops: frozenset[int], counts: EncodeCounts
) -> None:
    """Count whether the turns of a batch are what a model would sample; see `prove`.

    Args:
        examples: those that the batch was made of, refused ones included.
    """
    if encoder.renderer is None:
        return
    made = {(one.line, one.sub): one for one in examples}
    places = list(zip(batch["line"].to_pylist(), batch["sub"].to_pylist(), strict=True))
    for proof in prove(batch, [made[place] for place in places], encoder.renderer.template, encoder.engine, stops):
        kind = EARLIER if proof.earlier else SAMPLED
        counts.add(kind, proof.outcome.value, *places[proof.document], str(proof.message + 1))
