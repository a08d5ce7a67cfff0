"""Encode: examples → rendered text → token ids and runs. One rendering and one tokenization per example.

1. Render each example to its text and its runs, which say what each part of the text is.
2. Encode the texts of a batch together (`Engine`), without special tokens.
3. Find the tokens where runs begin (`token_spans`, `token_runs`).
4. Add the tokenizer's own tokens around plain texts, never twice.

Rows that are already tokens stay as they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.ragged import offsets_of
from ...schemas.rows import Example, Messages, RunKind
from ..template.render import Renderer
from ..template.rendered import Rendered, Runs, whole
from .byte_lengths import ByteLengths
from .content_check import ContentCheck
from .encode_counts import MOST_PLACES, EncodeCounts, Refused
from .encoded_rows import BATCH_CHARACTERS, BATCH_EXAMPLES, TokenBatch, encoded_batch
from .engine_check import EngineSample
from .engines import Engine, EngineTokens, reference_tokenizer, tokenizer_head
from .prompts_alone import PromptAlone, digest_bits, prompts_alone
from .token_runs import TextRuns
from .token_spans import locate_boundaries

ENGINE_CHECK = 0x3FF
"""One text in 1,024 is returned for comparison with the reference tokenizer."""
SAMPLE_CHARACTERS = 1 << 20
"""Longer texts are not returned: the reference needs 200 bytes for each of their bytes, which nothing reckons with."""
NO_TURN = -1
"""The turn of runs outside of conversations."""
DROPPED = "template_dropped"
"""The ledger's field for what templates leave out."""
UNPROVED = "unproved"
"""The ledger's reason for conversations whose turns could not be located, if the mask needs them."""
MIXED = "unproved_parts"
"""The ledger's reason for conversations with a turn whose parts could not be located, if the mask needs them."""


@dataclass(frozen=True, slots=True)
class SpecialTokenAffixes:
    """The tokens that the tokenizer adds around a plain text. Templates write their own, so chats get none."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    prefix_text: str = ""
    """The text of `prefix`; a text that already begins with it gets no prefix."""
    suffix_text: str = ""
    eos: str = ""
    """A token appended to a text or completion that does not end with it."""


@dataclass(slots=True)
class Batch:
    """Rendered examples that wait for the engine."""

    examples: list[Example] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    runs: list[Runs] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """What distinguishes examples of the same text."""
    characters: int = 0
    ended: int = 0
    """Texts that got an end-of-sequence token."""

    def add(self, example: Example, rendered: Rendered) -> None:
        """Append an example."""
        text, begin, runs, *_ = rendered
        if example.weight != 1:
            runs = runs._replace(trains=tuple(weight * example.weight for weight in runs.trains))
        self.examples.append(example)
        self.texts.append(text)
        self.runs.append(runs)
        self.characters += len(text)
        if runs.trains.count(True) < len(runs.trains):  # the same text with other flags or weights is another example
            begin ^= xxhash.xxh3_64_intdigest(repr(whole(runs)).encode())
        self.seeds.append(begin)

    @property
    def full(self) -> bool:
        """Whether the batch is large enough to encode."""
        return self.characters >= BATCH_CHARACTERS or len(self.texts) >= BATCH_EXAMPLES


class Encoder:
    """Turns examples into record batches; built once in a worker.

    Args:
        tokenizer_json: the content of the tokenizer.json of which `engine` was made.
        renderer: None without a chat template; every conversation is then refused.
        prove: whether the prompts of all turns are rendered alone too, not only those of a sample.
    """

    def __init__(
        self,
        tokenizer_json: str,
        engine: Engine,
        renderer: Renderer | None,
        around: SpecialTokenAffixes,
        *,
        prove: bool = False,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.around = around
        self.prove = prove
        self._json = tokenizer_json
        self._table = ByteLengths.from_json(tokenizer_json)
        special = [token.content for token in tokenizer_head(tokenizer_json).added_tokens if token.special]
        self._contents = ContentCheck(special, renderer.template.source if renderer is not None else "")

    def encode(
        self,
        examples: Iterable[Example],
        counts: EncodeCounts,
        refused: list[Refused],
        samples: list[EngineSample],
        alone: list[PromptAlone] | None = None,
        *,
        every: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `schemas.rows.ENCODED`, in the order of the examples.

        `counts`, `refused` and `samples` are filled while batches are made.

        Args:
            alone: gets the prompts of some turns of the last batch, rendered and tokenized alone; of all turns, with
                `prove`.
            every: whether `samples` gets all texts.
        """
        batch: Batch | TokenBatch = Batch()
        for example in examples:
            kind = Batch if example.ids is None else TokenBatch
            if batch.full or (batch.examples and type(batch) is not kind):  # examples stay in the order of rows
                yield self._finished(batch, counts, samples, alone, every=every)
                batch = kind()
            try:
                if example.ids is not None:
                    batch = batch if isinstance(batch, TokenBatch) else TokenBatch()
                    batch.add(example, self._vocabulary())
                else:
                    batch = batch if isinstance(batch, Batch) else Batch()
                    batch.add(example, self.rendered(example, batch, counts))
            except RowRejectedError as error:
                refused.append(Refused(example.line, example.sub, error.reason, error.detail))
        if batch.examples:
            yield self._finished(batch, counts, samples, alone, every=every)

    def _finished(
        self,
        batch: Batch | TokenBatch,
        counts: EncodeCounts,
        samples: list[EngineSample],
        alone: list[PromptAlone] | None,
        *,
        every: bool,
    ) -> pa.RecordBatch:
        if isinstance(batch, Batch):
            return self.finish(batch, counts, samples, alone, every=every)
        made = batch.finish()
        counts.examples += made.num_rows
        counts.tokens += len(made.column("input_ids").values)
        return made

    def rendered(self, example: Example, batch: Batch, counts: EncodeCounts) -> Rendered:
        """An example's text and runs. Counts an added end-of-sequence token in `batch`."""
        prompt, completion, text = example.prompt, example.completion, example.text
        if example.rejected is not None:
            raise RowRejectedError(
                "preference", "a preference pair in a run of other examples; pack pairs in a separate run"
            )
        if text is None and not isinstance(prompt, str):
            return self._conversation(example, counts)
        start = 0
        if text is None:
            assert isinstance(prompt, str)
            if not isinstance(completion, str):
                raise RowRejectedError("wrong_type", "the prompt is a text, but the completion is not")
            text, start = prompt + completion, len(prompt)
        if self.around.eos and not text.endswith(self.around.eos):
            text += self.around.eos
            batch.ended += 1
        return Rendered(text, start, two_runs(start, len(text), text_only=prompt is None), "")

    def _conversation(self, example: Example, counts: EncodeCounts) -> Rendered:
        if self.renderer is None:
            raise RowRejectedError("no_template", "a conversation needs a chat template")
        prompt, completion = example.prompt or [], example.completion or []
        messages: Messages = [*prompt, *completion]
        self._contents.count_roles(example.line, messages, counts)  # also of rows that the template refuses
        rendered = self.renderer(prompt, completion, example.tools)  # type: ignore[arg-type]
        self._contents.count_tokens(example.line, messages, example.tools, counts)
        for what in rendered.dropped:
            counts.add(DROPPED, what, example.line)
        for kind, why in ((UNPROVED, rendered.unproved), (MIXED, rendered.mixed)):
            if why:
                detail = f"chat template '{self.renderer.template.name}': {why}"
                counts.add(kind, "", example.line, example.sub, detail, places=MOST_PLACES)
        return rendered

    def _reference(self) -> Any:
        """The reference tokenizer, needed for the few texts whose boundaries only it can find."""
        return reference_tokenizer(self._json)

    def _vocabulary(self) -> int:
        """Number of token ids of the tokenizer."""
        if self._table is not None:
            return len(self._table.lengths)
        return int(self._reference().get_vocab_size(with_added_tokens=True))

    def finish(
        self,
        batch: Batch,
        counts: EncodeCounts,
        samples: list[EngineSample],
        alone: list[PromptAlone] | None = None,
        *,
        every: bool = False,
    ) -> pa.RecordBatch:
        """Tokenize the batch; see `encode`."""
        texts, runs = batch.texts, TextRuns.of(batch.runs)
        ids, offsets = self.engine.encode(texts)
        bounds, bound_offsets = runs.bounds()
        found = locate_boundaries(
            EngineTokens(ids, offsets), self._table, texts, bounds, bound_offsets, self._reference
        )
        counts.boundaries += len(bounds) - runs.divisions
        hashes = [xxhash.xxh3_128_digest(one.encode(), seed=seed) for one, seed in zip(texts, batch.seeds, strict=True)]
        chosen = np.arange(len(texts)) if every else np.flatnonzero(digest_bits(hashes, 0) & ENGINE_CHECK == 0)
        for index in chosen.tolist():
            if len(texts[index]) <= SAMPLE_CHARACTERS:
                samples.append(EngineSample(texts[index], ids[offsets[index] : offsets[index + 1]].tolist()))

        counts.examples += len(texts)
        counts.tokens += len(ids)
        counts.end_of_sequence += batch.ended
        prefix = np.zeros(len(texts), dtype=np.int64)
        if self.around.prefix or self.around.suffix:
            before = len(ids)
            ids, offsets, prefix = self._put_around(batch, ids, offsets)
            counts.tokens += len(ids) - before
            counts.special += len(ids) - before

        token_runs, straddles = runs.tokens(found, np.diff(offsets).astype(np.int64), prefix)
        counts.straddles += int(straddles.sum())
        if alone is not None and self.renderer is not None:
            alone[:] = prompts_alone(batch.examples, hashes, self.renderer, self.engine, every=self.prove)
        return encoded_batch(batch.examples, ids, offsets, token_runs, hashes, straddles)

    def _put_around(
        self, batch: Batch, ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and offsets including the tokenizer's own tokens around plain texts, and (N,) how many of these
        come before each text.
        """
        around, nothing = self.around, np.zeros(0, np.int32)
        prefix, suffix = np.array(around.prefix, np.int32), np.array(around.suffix, np.int32)
        pieces: list[NDArray[np.int32]] = []
        for index, (example, text) in enumerate(zip(batch.examples, batch.texts, strict=True)):
            plain = example.prompt is None or isinstance(example.prompt, str)
            begins = not plain or (around.prefix_text and text.startswith(around.prefix_text))
            ends = not plain or (around.suffix_text and text.endswith(around.suffix_text))
            own = ids[offsets[index] : offsets[index + 1]]
            pieces += [nothing if begins else prefix, own, nothing if ends else suffix]
        sizes = np.array([len(piece) for piece in pieces], np.int64).reshape(-1, 3)
        return np.concatenate(pieces), offsets_of(sizes.sum(axis=1)), sizes[:, 0]


def two_runs(begin: int, length: int, *, text_only: bool = False) -> Runs:
    """The runs of a text without turns: its prompt, if there is one, and what follows.

    Args:
        begin: where the prompt ends, in characters.
        text_only: whether it is a plain text, without a prompt.
    """
    kind = RunKind.TEXT if text_only else RunKind.COMPLETION
    if not begin:
        return Runs((length,), (kind,), (NO_TURN,), (True,))
    return Runs((begin, length), (RunKind.PROMPT, kind), (NO_TURN, NO_TURN), (True, True))
