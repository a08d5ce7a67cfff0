"""Encode: examples → rendered text → token ids and runs. One rendering and one tokenization per example.

1. Render each example to its text and its runs, which say what each part of the text is.
2. Encode the texts of a batch together (`Engine`), without special tokens.
3. Find the tokens where runs begin (`spans`, `runs`).
4. Add the tokenizer's own tokens around plain texts, never twice.

Rows that are already tokens stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from .encode_counts import MOST_PLACES, EncodeCounts
from .encoded_rows import BATCH_CHARACTERS, BATCH_EXAMPLES, TokenBatch, encoded_batch
from .engines import Engine, EngineTokens
from .prompts_alone import PromptAlone, digest_bits, prompts_alone
from .token_runs import RunBatch
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


@dataclass(frozen=True, slots=True)
class EngineSample:
    """A text and the engine's tokens, for comparison with the reference."""

    text: str
    ids: list[int]


@dataclass(slots=True)
class Refused:
    """An example that could not be rendered."""

    line: int
    sub: int
    reason: str
    detail: str


class Encoder:
    """Everything that turns examples into record batches; built once in a worker.

    Args:
        renderer: None without a chat template; every conversation is then refused.
        table: how many bytes of text each token stands for.
        reference: returns the reference tokenizer, needed for the few texts whose boundaries only it can find.
        prove: whether the prompts of all turns are rendered alone too, not only those of a sample.
        special: the tokenizer's special tokens, to count those in contents.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer | None,
        table: ByteLengths,
        around: SpecialTokenAffixes,
        reference: Callable[[], Any],
        *,
        prove: bool = False,
        special: Iterable[str] = (),
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.table = table
        self.around = around
        self.reference = reference
        self.prove = prove
        self._contents = ContentCheck(special, renderer.template.source if renderer is not None else "")

    def encode(
        self,
        examples: Iterable[Example],
        counts: EncodeCounts,
        refused: list[Refused],
        samples: list[EngineSample],
        alone: list[PromptAlone] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `schemas.rows.ENCODED`, in the order of the examples.

        `counts`, `refused` and `samples` are filled while batches are made.

        Args:
            alone: gets the prompts of some turns of the last batch, rendered and tokenized alone; of all turns, with
                `prove`.
        """
        batch = Batch()
        tokens = TokenBatch()
        for example in examples:
            if example.ids is not None:
                if batch.texts:  # examples stay in the order of rows
                    yield self.finish(batch, counts, samples, alone)
                    batch = Batch()
                try:
                    tokens.add(example, self._vocabulary())
                except RowRejectedError as error:
                    refused.append(Refused(example.line, example.sub, error.reason, error.detail))
                if tokens.full:
                    yield counts.given(tokens.finish())
                    tokens = TokenBatch()
                continue
            if tokens.examples:
                yield counts.given(tokens.finish())
                tokens = TokenBatch()
            try:
                full = batch.add(example, self.rendered(example, batch, counts))
            except RowRejectedError as error:
                refused.append(Refused(example.line, example.sub, error.reason, error.detail))
                continue
            if full:
                yield self.finish(batch, counts, samples, alone)
                batch = Batch()
        if tokens.examples:
            yield counts.given(tokens.finish())
        if batch.texts:
            yield self.finish(batch, counts, samples, alone)

    def rendered(self, example: Example, batch: "Batch", counts: EncodeCounts) -> Rendered:
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
        kind = RunKind.COMPLETION if prompt is not None else RunKind.TEXT
        if start:
            runs = Runs((start, len(text)), (RunKind.PROMPT, kind), (NO_TURN, NO_TURN), (True, True))
        else:
            runs = Runs((len(text),), (kind,), (NO_TURN,), (True,))
        return Rendered(text, start, runs, "")

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

    def _vocabulary(self) -> int:
        """Number of token ids of the tokenizer."""
        if self.table.supported:
            return len(self.table.lengths)
        return int(self.reference().get_vocab_size(with_added_tokens=True))

    def finish(
        self,
        batch: "Batch",
        counts: EncodeCounts,
        samples: list[EngineSample],
        alone: list[PromptAlone] | None = None,
    ) -> pa.RecordBatch:
        """Tokenize the batch; see `encode`."""
        texts = batch.texts
        ids, offsets = self.engine.encode(texts)
        bounds, bound_offsets = batch.runs.bounds()
        found = locate_boundaries(EngineTokens(ids, offsets), self.table, texts, bounds, bound_offsets, self.reference)
        counts.boundaries += len(bounds) - batch.runs.divisions
        hashes = [xxhash.xxh3_128_digest(one.encode(), seed=seed) for one, seed in zip(texts, batch.seeds, strict=True)]
        for index in np.flatnonzero(digest_bits(hashes, 0) & ENGINE_CHECK == 0).tolist():
            if len(texts[index]) <= SAMPLE_CHARACTERS:
                samples.append(EngineSample(texts[index], ids[offsets[index] : offsets[index + 1]].tolist()))

        counts.examples += len(texts)
        counts.tokens += len(ids)
        counts.end_of_sequence += batch.ended
        prefix = np.zeros(len(texts), dtype=np.int64)
        if (self.around.prefix or self.around.suffix) and any(plain := batch.plain()):
            before = len(ids)
            ids, offsets, prefix = self._put_around(texts, plain, ids, offsets)
            counts.tokens += len(ids) - before
            counts.special += len(ids) - before

        runs, straddles = batch.runs.tokens(found, np.diff(offsets).astype(np.int64), prefix)
        counts.straddles += int(straddles.sum())
        if alone is not None and self.renderer is not None:
            alone[:] = prompts_alone(batch.examples, hashes, self.renderer, self.engine, every=self.prove)
        return encoded_batch(batch.examples, ids, offsets, runs, hashes, straddles)

    def _put_around(
        self, texts: list[str], plain: list[bool], ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and offsets including the tokenizer's own tokens around plain texts, and (N,) how many of these
        come before each text.
        """
        around = self.around
        left = [
            one and not (around.prefix_text and text.startswith(around.prefix_text))
            for one, text in zip(plain, texts, strict=True)
        ]
        right = [
            one and not (around.suffix_text and text.endswith(around.suffix_text))
            for one, text in zip(plain, texts, strict=True)
        ]
        begin = np.array(left) * len(around.prefix)
        end = np.array(right) * len(around.suffix)
        pieces: list[NDArray[np.int32]] = []
        prefix = np.array(around.prefix, dtype=np.int32)
        suffix = np.array(around.suffix, dtype=np.int32)
        for index, (has_left, has_right) in enumerate(zip(left, right, strict=True)):
            if has_left:
                pieces.append(prefix)
            pieces.append(ids[offsets[index] : offsets[index + 1]])
            if has_right:
                pieces.append(suffix)
        sizes = np.diff(offsets) + begin + end
        return np.concatenate(pieces), offsets_of(sizes), begin


@dataclass(slots=True)
class Batch:
    """Rendered examples that wait for the engine."""

    examples: list[Example] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    runs: RunBatch = field(default_factory=RunBatch)
    characters: int = 0
    ended: int = 0

    def add(self, example: Example, rendered: Rendered) -> bool:
        """Append an example; return whether the batch is large enough to encode."""
        text, begin, runs, *_ = rendered
        if example.weight != 1:
            runs = runs._replace(trains=tuple(weight * example.weight for weight in runs.trains))
        self.examples.append(example)
        self.texts.append(text)
        self.runs.add(runs)
        self.characters += len(text)
        if runs.trains.count(True) < len(runs.trains):  # the same text with other flags or weights is another example
            begin ^= xxhash.xxh3_64_intdigest(repr(whole(runs)).encode())
        self.seeds.append(begin)
        return self.characters >= BATCH_CHARACTERS or len(self.texts) >= BATCH_EXAMPLES

    def plain(self) -> list[bool]:
        """Return whether each example is a plain text; the tokenizer adds its own tokens around these."""
        return [one.prompt is None or isinstance(one.prompt, str) for one in self.examples]


def differing(reference: Engine, samples: Sequence[EngineSample]) -> EngineSample | None:
    """Return the first sample that the reference encodes differently, or None."""
    if not samples:
        return None
    ids, offsets = reference.encode([sample.text for sample in samples])
    for index, sample in enumerate(samples):
        if ids[offsets[index] : offsets[index + 1]].tolist() != sample.ids:
            return sample
    return None
