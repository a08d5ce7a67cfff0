"""The first look at new data: texts with an engine's tokens, what ends turns, and whether turns are what a model would
sample.

A worker encodes the first rows of a source, and once for a tokenizer the texts on which tokenizers are known to
disagree. The driver compares the tokens with the reference, and keeps in the cache what was found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...schemas.rows import Example
from ...stages.mask.sampling_proof import prove
from ...stages.prep import make_format
from ...stages.template.call_arguments import CallArguments
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engine_check import EngineSample, fuzz_texts, samples_of
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.template_watchdog import rows_in_errors
from ..inputs.read import columns_of, read_rows
from .task import EncodeTask, encoded, load_encoder, load_spec

SAMPLED, EARLIER = "turns_sampled", "turns_sampled_earlier"
"""The kinds of turns of completions, and of those before; see `EncodeCounts.found`. Names are outcomes, and details the
numbers of messages."""
_ROWS = 64
"""First rows of every source that are looked at."""
_EXAMPLES = 8
"""First examples of every row that are looked at: those of one row have the same beginning."""
_CHARACTERS = 1 << 16
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
    call_arguments: CallArguments = "object"
    """The form in which the chat template gets the arguments of tool calls."""


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What was found in the first rows of one source."""

    source: int
    stops: tuple[str, ...]
    counts: EncodeCounts
    samples: list[EngineSample]
    """The texts of the rows, and the known ones."""
    call_arguments: CallArguments | None
    """The form that the chat template takes; None if the rows are not rendered."""


@dataclass(frozen=True, slots=True)
class LookTask:
    """Encode the first rows of one source."""

    source: int
    """Index of the source."""
    first: EncodeTask
    """The task of its first block."""
    spec: str
    """Name of the specification in the cache."""
    known_texts: bool
    """Whether to encode the known texts, too."""

    def run(self) -> SourceLook:
        """Look at the source.

        Raises:
            TokenizerError: the engine refuses the tokenizer.
            IntegrityError: the engine gives other tokens than the reference, where that was asked for places.
        """
        first, source, counts = self.first, self.first.source, EncodeCounts()
        spec, encoder = load_spec(first.cache, self.spec), load_encoder(first.cache, self.spec)
        renderer = encoder.renderer if source.conversational else None
        endings = renderer.profile.stop_tokens if renderer is not None else ()
        stops, _ = spec.stop_ids(endings)
        sampled, encoder.sampled, encoder.samples = encoder.sampled, 0, []
        with rows_in_errors(first.at):
            for examples in _first_rows(first, encoder.samples):
                for batch in encoded(encoder, examples, counts, first.block.first_line, pairs=source.pairs):
                    if renderer is None or source.pairs:  # a preference loss does not depend on turns
                        continue
                    for one in prove(batch, examples, renderer.template, encoder.engine, stops):
                        kind = EARLIER if one.earlier else SAMPLED
                        counts.add(kind, one.outcome.value, one.line, one.sub, str(one.message + 1))
        encoder.sampled, samples = sampled, encoder.samples
        if self.known_texts:
            added = [token.content for token in tokenizer_head(spec.tokenizer.json).added_tokens]
            samples += samples_of(encoder.engine, fuzz_texts(added))
        form = renderer.template.call_arguments if renderer is not None else None
        return SourceLook(self.source, endings, counts, samples, form)

    def at(self, row: int) -> str:
        """See `EncodeTask.at`."""
        return self.first.at(row)

    def __str__(self) -> str:
        return f"the first look at the rows of {self.first.block.path}"


def _first_rows(task: EncodeTask, samples: Sequence[EngineSample]) -> Iterator[list[Example]]:
    """Yield the examples of each of the first rows of a block, until there are enough samples. Rows that cannot be used
    are left out: encoding will reject them, and name their lines.
    """
    source, block, form = task.source, task.block, make_format(*task.source.form)
    rows = read_rows(block, source.max_row_bytes, columns_of(form), _ROWS)
    mean = (block.end - block.start) // max(block.lines, 1)
    for one in rows.records or rows.lines:
        if (len(one[1]) if isinstance(one[1], bytes) else mean) <= _ROW_BYTES:
            yield form.prepare([one]).examples[:_EXAMPLES]
        if sum(len(sample.text) for sample in samples) > _CHARACTERS:
            break
