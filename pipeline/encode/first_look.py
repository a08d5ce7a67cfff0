"""The first look at new data: which engine encodes it, what ends turns, and whether turns are what a model would
sample.

A worker encodes texts on which tokenizers are known to disagree, and the first rows of every source, with the engine
and with the reference. The driver keeps the answer in the cache, for later runs over the same first rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.template_watchdog import rows_of
from ..inputs.read import columns_of, read_rows
from ..store.sealed_notes import get_user_note, put_user_note
from .task import EncodeSpec, EncodeTask, encoded, load_spec, make_encoder

FORMAT = 7
"""Version of the look; increase it when other texts are compared."""
AGREED = "engines"
"""The folder of the user's cache that keeps which engines agree on the known texts."""
SAMPLED, EARLIER = "turns_sampled", "turns_sampled_earlier"
"""The kinds of turns of completions, and of those before; see `EncodeCounts.found`. Names are outcomes, and details the
numbers of messages."""
_SHIFT = 40
"""Rows are noted with the number of their task, shifted left by this many bits."""
_ROWS = 64
"""First rows of every source that are looked at."""
_CHARACTERS = 1 << 17
"""Characters of a source's rows that suffice: for a few megabytes, the reference needs a second."""
_ROW_BYTES = 1 << 20
"""Longer rows are not looked at: encoding one may need more memory than a worker is sure to have."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the first look found."""

    engine: str
    why: str = ""
    """Why the reference encodes although the fast engine was wanted, or ""."""
    stops: tuple[str, ...] = ()
    """The special tokens with which the chat template ends turns."""
    counts: tuple[EncodeCounts, ...] = ()
    """What was found in the first rows of each source."""


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
        spec = load_spec(self.tasks[0].cache, self.tasks[0].source.spec)
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
        if encoder.renderer is not None and any(task.source.conversational for task in self.tasks):
            endings = encoder.renderer.manner.stop_tokens
        stops, _ = spec.stop_ids(endings)
        counts = tuple(EncodeCounts() for _ in self.tasks)
        with rows_of(self.at):
            for number, (task, counted) in enumerate(zip(self.tasks, counts, strict=True)):
                _encode_first(task, encoder, stops, counted, number << _SHIFT)
        if engine is not reference:
            # The known texts take a third of a second, and depend on the tokenizer alone.
            about = [str(FORMAT), spec.tokenizer.hash, *(f"{one} {version(one)}" for one in (engine.name, REFERENCE))]
            agreed = f"{AGREED}/{fingerprint(about)}.json"
            known = get_user_note(agreed, dict) is not None
            added = [token.content for token in tokenizer_head(spec.tokenizer.json).added_tokens]
            samples = [] if known else samples_of(engine, fuzz_texts(added))
            if found := difference([*samples, *encoder.samples], reference):
                raise TokenizerError(f"the tokenizer engine {engine.name} differs from {REFERENCE} {found}")
            if not known:
                put_user_note(agreed, {"agree": about})
        return Look(engine.name, "", endings, counts)

    def at(self, number: int) -> str:
        """The file and the number of a row, for messages."""
        return self.tasks[number >> _SHIFT].at(number & (1 << _SHIFT) - 1)

    def __str__(self) -> str:
        return "the first look at the rows"


def _encode_first(task: EncodeTask, encoder: Encoder, stops: frozenset[int], counts: EncodeCounts, base: int) -> None:
    """Encode the first rows of a block, and count whether their turns are what a model would sample, which stops at one
    of `stops`. Rows that cannot be used are left out: encoding will reject them, and name their lines.
    """
    source, block, form = task.source, task.block, make_format(*task.source.form)
    rows = read_rows(task.path, block, source.max_row_bytes, columns_of(form), _ROWS)
    mean = (block.end - block.start) // max(block.lines, 1)
    seen = len(encoder.samples)
    for one in rows.records or rows.lines:
        if (len(one[1]) if isinstance(one[1], bytes) else mean) > _ROW_BYTES:
            continue
        examples = form.prepare([one]).examples
        for batch in encoded(encoder, examples, counts, base + block.first_line, pairs=source.pairs):
            if not source.pairs:  # a preference loss does not depend on turns
                _count_turns(batch, examples, encoder, stops, counts)
        if sum(len(sample.text) for sample in encoder.samples[seen:]) > _CHARACTERS:
            break


def _count_turns(
    batch: pa.RecordBatch, examples: Sequence[Example], encoder: Encoder, stops: frozenset[int], counts: EncodeCounts
) -> None:
    """Count whether the turns of a batch, made of these examples, are what a model would sample; see `prove`."""
    if encoder.renderer is None:
        return
    made = {(one.line, one.sub): one for one in examples}
    places = list(zip(batch["line"].to_pylist(), batch["sub"].to_pylist(), strict=True))
    for proof in prove(batch, [made[place] for place in places], encoder.renderer.template, encoder.engine, stops):
        kind = EARLIER if proof.earlier else SAMPLED
        counts.add(kind, proof.outcome.value, *places[proof.document], str(proof.message + 1))
