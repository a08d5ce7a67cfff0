"""The first look at new data: the task that encodes the first rows of a source with the engine that is tried.

It gives texts with the engine's tokens, which the driver compares with those of the reference; what ends turns; and
whether turns are what a model would sample. Once for a tokenizer, it also encodes the texts on which tokenizers are
known to disagree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...schemas.rows import Example
from ...stages.mask.sampling_proof import Proof, prove
from ...stages.prep import make_format
from ...stages.template.call_arguments import CallArguments
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engine_check import EngineSample, SampledTexts, fuzz_texts, samples_of
from ...stages.tokenize.vocabulary import tokenizer_head
from ..execute.template_watchdog import rows_in_errors
from ..inputs.blocks import Block
from ..inputs.read import columns_of, read_rows
from .spec import EncoderKey, load_render_spec
from .task import SourceSettings, encode_examples, load_encoder

COMPLETION_TURNS = "turns_sampled"
"""The kind under which `EncodeCounts` has the turns of completions, by their outcome in the sampling proof. The detail
of a place is the number of the turn's message, from 1."""
EARLIER_TURNS = "turns_sampled_earlier"
"""The kind of turns before the completion, likewise."""
_ROWS = 64
"""First rows of every source that are looked at."""
_EXAMPLES = 8
"""First examples of every row that are looked at: those of one row have the same beginning."""
_CHARACTERS = 1 << 16
"""Characters of a source's rows that suffice: for a few megabytes, the reference needs a second."""
_ROW_BYTES = 1 << 20
"""Longer rows are not looked at: encoding one may need more memory than a worker is sure to have."""


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What the first rows of one source showed."""

    source: int
    stop_tokens: tuple[str, ...]
    """The special tokens with which the chat template ends turns."""
    counts: EncodeCounts
    samples: list[EngineSample]
    """The texts of the rows, and the known ones."""
    call_arguments: CallArguments | None
    """The form in which the chat template takes the arguments of tool calls; None if the rows are not rendered."""


@dataclass(frozen=True, slots=True)
class FirstLookTask:
    """Encode the first rows of one source."""

    source: int
    """Index of the source."""
    block: Block
    """Its first block."""
    settings: SourceSettings
    encoder: EncoderKey
    """With the engine that is tried."""
    known_texts: bool
    """Whether to encode the known texts, too."""

    def run(self) -> SourceLook:
        """Look at the source.

        Raises:
            TokenizerError: the engine refuses the tokenizer.
            IntegrityError: the engine gives other tokens than the reference on a text for which the reference had to
            tell where its tokens lie.
        """
        spec = load_render_spec(self.encoder.store, self.encoder.render)
        encoder = load_encoder(self.encoder)
        renderer = encoder.renderer if self.settings.conversational else None
        stop_tokens = renderer.profile.stop_tokens if renderer is not None else ()
        # The second result, with the stops of the template at which no generation would stop, is only for notes.
        stop_ids, _ = spec.stop_ids(stop_tokens)
        counts = EncodeCounts()
        # Every text is compared here, and one in 1,024 of all later ones.
        sampled = SampledTexts(every=True)
        with rows_in_errors(self.at):
            for examples in self._first_examples():
                batches = encode_examples(
                    encoder, examples, counts, sampled, first_line=self.block.first_line, pairs=self.settings.pairs
                )
                for batch in batches:
                    # A preference loss does not depend on turns. A batch may have only some of the examples: `prove`
                    # finds each by its line and number.
                    if renderer is not None and not self.settings.pairs:
                        turns = prove(batch, examples, renderer.template, encoder.engine, stop_ids)
                        _count_turns(turns, counts)
                # As much text as the reference compares in a moment.
                if sum(len(sample.text) for sample in sampled.samples) > _CHARACTERS:
                    break
        samples = sampled.samples
        if self.known_texts:
            added = [token.content for token in tokenizer_head(spec.tokenizer.json).added_tokens]
            samples += samples_of(encoder.engine, fuzz_texts(added))
        call_arguments = renderer.template.call_arguments if renderer is not None else None
        return SourceLook(self.source, stop_tokens, counts, samples, call_arguments)

    def _first_examples(self) -> Iterator[list[Example]]:
        """Yield the examples of each of the first rows of the block. Rows that cannot be used are left out: encoding
        will reject them, and name their lines.
        """
        form = make_format(*self.settings.form)
        block = self.block
        rows = read_rows(block, self.settings.max_row_bytes, columns=columns_of(form), limit=_ROWS)
        # A row of a table is decoded already; its size is not known.
        mean_bytes = (block.end - block.start) // max(block.lines, 1)
        for row in rows.records or rows.lines:  # a block has one of both
            content = row[1]  # behind its number
            row_bytes = len(content) if isinstance(content, bytes) else mean_bytes
            if row_bytes <= _ROW_BYTES:
                yield form.prepare([row]).examples[:_EXAMPLES]

    def at(self, row: int) -> str:
        """The file and the number of a row, for messages."""
        return self.block.describe_row(row)

    def __str__(self) -> str:
        return f"the first look at the rows of {self.block.path}"


def _count_turns(turns: Iterable[Proof], counts: EncodeCounts) -> None:
    """Count turns by their outcome, turns of completions apart from earlier ones, with the first place of each."""
    for turn in turns:
        kind = EARLIER_TURNS if turn.earlier else COMPLETION_TURNS
        counts.add(kind, turn.outcome.value, turn.line, turn.sub, detail=str(turn.message + 1))
