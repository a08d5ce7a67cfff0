"""Encode: examples → rendered text → token ids and spans. One rendering and one tokenization per example.

1. Render each example to its text and its spans, which say what each part of the text is.
2. Encode the texts of a batch together (`Engine`), without special tokens.
3. Find the tokens where spans begin (`token_spans`).
4. Add the tokenizer's own tokens around plain texts, never twice.

Rows that are already tokens stay as they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import digests, lists, numbers, strings
from ...schemas.digests import text_digest, text_number
from ...schemas.errors import RowRejectedError
from ...schemas.ragged import lengths_of, offsets_of
from ...schemas.rows import ENCODED, Example, Messages, SpanKind
from ...schemas.tables.reasons import UNPROVED
from ..render.rendered import Rendered, Spans, text_for_digest
from ..render.renderer import Renderer
from ..template.call_arguments import call_arguments_not_json
from .encode_counts import COLUMNS_NOT_READ, MOST_PLACES, NOT_JSON, EncodeCounts, known_roles
from .engine_check import EngineSample, SampledTexts
from .engines import Engine
from .special_in_contents import SpecialTokenSearch
from .token_spans import TextSpans, locate_boundaries
from .vocabulary import SpecialTokenAffixes, id_count, tokenizer_head, vocabulary

BATCH_CHARACTERS = 1 << 20
"""Characters encoded at once; their tokens still fit into a core's cache."""
BATCH_EXAMPLES = 4096
ENGINE_CHECK = 0x3FF
"""One text in 1,024 is compared with the reference tokenizer: those of whose digest these bits are 0."""
SAMPLE_CHARACTERS = 1 << 20
"""Longer texts are not compared: the reference needs 200 bytes for each of their bytes, which nothing reckons with."""
NO_TURN = -1
"""The turn of spans outside of conversations."""
TEMPLATE_DROPPED = "template_dropped"
"""The ledger's field for what templates leave out."""


@dataclass(slots=True)
class Batch:
    """Rendered examples that wait for the engine."""

    examples: list[Example] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """What distinguishes examples of the same text."""
    characters: int = 0
    ended: int = 0
    """Texts that got an end-of-sequence token."""

    def add(self, example: Example, rendered: Rendered) -> None:
        """Append an example."""
        text, begin, spans, *_ = rendered
        if example.weight != 1:
            spans = spans._replace(weights=tuple(weight * example.weight for weight in spans.weights))
        self.examples.append(example)
        self.texts.append(text)
        self.spans.append(spans)
        self.characters += len(text)
        # The same text with other flags or weights is another example.
        if spans.weights.count(True) < len(spans.weights):
            begin ^= text_number(text_for_digest(spans).encode())
        self.seeds.append(begin)

    @property
    def full(self) -> bool:
        """Whether the batch is large enough to encode."""
        return self.characters >= BATCH_CHARACTERS or len(self.texts) >= BATCH_EXAMPLES


class Encoder:
    """Turns examples into record batches; built once in a worker. Keeps nothing of what it encoded.

    Args:
        tokenizer_json: the content of the tokenizer.json of which `engine` was made.
        renderer: None without a chat template; every conversation is then refused.
    """

    def __init__(
        self, tokenizer_json: str, engine: Engine, renderer: Renderer | None, around: SpecialTokenAffixes
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.around = around
        self._json = tokenizer_json
        self._roles = known_roles(renderer.template.source if renderer is not None else "")

    def encode(
        self, examples: Iterable[Example], counts: EncodeCounts, sampled: SampledTexts | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `schemas.rows.ENCODED`, in the order of the examples.

        Args:
            counts: filled while the batches are made.
            sampled: likewise, with texts to compare with the reference; None takes none.
        """
        for given, some in groupby(examples, lambda example: example.ids is not None):
            if given:
                yield from self._given(some, counts)
                continue
            batch = Batch()
            for example in some:
                if batch.full:
                    yield self.finish(batch, counts, sampled)
                    batch = Batch()
                try:
                    batch.add(example, self.rendered(example, batch, counts))
                except RowRejectedError as error:
                    counts.refuse(example, error)
                    continue
                self.count_special(example, counts)
            if batch.examples:
                yield self.finish(batch, counts, sampled)

    def _given(self, examples: Iterable[Example], counts: EncodeCounts) -> Iterator[pa.RecordBatch]:
        """A batch of the examples that were given as tokens, if there are some whose ids the tokenizer has."""
        kept, tokens, spans, hashes = list[Example](), list[NDArray[np.int32]](), list[Spans](), list[bytes]()
        last = self._id_count - 1
        for example in examples:
            ids = np.asarray(example.ids, np.int64)
            wrong = ids[(ids < 0) | (ids > last)]
            if len(wrong):
                detail = f"the tokenizer has no id {wrong[0]:,}: its ids are 0 to {last:,}"
                counts.refuse(example, RowRejectedError("bad_ids", detail))
                continue
            flags, weight = None if example.trained is None else np.asarray(example.trained, np.bool_), example.weight
            said = (b"" if flags is None else flags.tobytes()) + (b"" if weight == 1 else repr(weight).encode())
            kept.append(example)
            tokens.append(ids.astype(np.int32))
            spans.append(_given_spans(len(ids), flags, weight))
            hashes.append(text_digest(tokens[-1].tobytes() + said, 1 + (flags is not None)))
        if kept:
            offsets = offsets_of(lengths_of(tokens))
            counts.examples += len(kept)
            counts.tokens += int(offsets[-1])
            found, straddles = TextSpans.of(spans).lists(), np.zeros(len(kept), np.int64)
            yield encoded_batch(kept, np.concatenate(tokens), offsets, found, hashes, straddles)

    @cached_property
    def _special(self) -> SpecialTokenSearch:
        return SpecialTokenSearch(tokenizer_head(self._json).added_tokens, self.around)

    @cached_property
    def _id_count(self) -> int:
        return id_count(vocabulary(self._json), tokenizer_head(self._json).added_tokens)

    def rendered(self, example: Example, batch: Batch, counts: EncodeCounts) -> Rendered:
        """An example's text and spans. Counts an added end-of-sequence token in `batch`."""
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
        return Rendered(text, start, two_spans(start, len(text), text_only=prompt is None), "")

    def count_special(self, example: Example, counts: EncodeCounts) -> None:
        """Count the special tokens that stand in the contents of an example."""
        if special := self._special.find(example):
            counts.add_special(example, special)

    def _conversation(self, example: Example, counts: EncodeCounts) -> Rendered:
        if self.renderer is None:
            raise RowRejectedError("no_template", "a conversation needs a chat template")
        prompt, completion = example.prompt or [], example.completion or []
        messages: Messages = [*prompt, *completion]
        if unknown := {message["role"] for message in messages} - self._roles:
            counts.add_roles(unknown, example.line)  # also of rows that the template refuses
        # Examples of one row share their prompt: each counts the calls of its own turn.
        if count := call_arguments_not_json(messages if example.sub < 0 else completion):  # type: ignore[arg-type]
            counts.add(NOT_JSON, "", example.line, example.sub, count=count)
        for name in example.variables or ():
            if name not in self.renderer.variable_names:
                counts.add_names(COLUMNS_NOT_READ, {f"chat_template_kwargs.{name}": 1})
        renderer = self.renderer.for_row(example.variables, example.documents)
        rendered = renderer(prompt, completion, example.tools)  # type: ignore[arg-type]
        for what in rendered.lost:
            counts.add(TEMPLATE_DROPPED, what, example.line)
        if rendered.unproved:
            detail = f"chat template '{self.renderer.template.name}': {rendered.unproved}"
            counts.add(UNPROVED, "", example.line, example.sub, detail, places=MOST_PLACES)
        return rendered

    def finish(self, batch: Batch, counts: EncodeCounts, sampled: SampledTexts | None = None) -> pa.RecordBatch:
        """Tokenize a batch with at least one example; see `encode`."""
        counts.examples += len(batch.examples)
        texts, spans = batch.texts, TextSpans.of(batch.spans)
        tokens = self.engine.encode(texts)
        bounds, bound_offsets = spans.bounds()
        places = locate_boundaries(tokens, self.engine.table, texts, bounds, bound_offsets, self._json)
        hashes = [text_digest(text.encode(), seed) for text, seed in zip(texts, batch.seeds, strict=True)]
        if sampled is not None:
            checked_bits = 0 if sampled.every else ENGINE_CHECK
            is_sampled = np.frombuffer(b"".join(hashes), "<u2").reshape(-1, 8)[:, 0] & checked_bits == 0
            for index in np.flatnonzero(is_sampled).tolist():
                if len(texts[index]) <= SAMPLE_CHARACTERS:
                    text_ids = tokens.ids[tokens.offsets[index] : tokens.offsets[index + 1]]
                    sampled.samples.append(EngineSample(texts[index], text_ids.tolist()))

        ids, offsets, prefix = self._put_around(batch, tokens.ids, tokens.offsets)
        counts.tokens += len(ids)
        counts.special += len(ids) - len(tokens.ids)
        counts.end_of_sequence += batch.ended
        token_spans, straddles = spans.tokens(places, np.diff(offsets).astype(np.int64), prefix)
        counts.straddles += int(straddles.sum())
        return encoded_batch(batch.examples, ids, offsets, token_spans, hashes, straddles)

    def _put_around(
        self, batch: Batch, ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Ids and offsets with the tokenizer's own tokens around plain texts, and (N,) how many come before each."""
        around, nothing = self.around, np.zeros(0, np.int32)
        prefix, suffix = np.array(around.prefix, np.int32), np.array(around.suffix, np.int32)
        if not len(prefix) and not len(suffix):
            return ids, offsets, np.zeros(len(batch.texts), np.int64)
        pieces: list[NDArray[np.int32]] = []
        for index, (example, text) in enumerate(zip(batch.examples, batch.texts, strict=True)):
            plain = example.prompt is None or isinstance(example.prompt, str)
            begins = not plain or (around.prefix_text and text.startswith(around.prefix_text))
            ends = not plain or (around.suffix_text and text.endswith(around.suffix_text))
            own = ids[offsets[index] : offsets[index + 1]]
            pieces += [nothing if begins else prefix, own, nothing if ends else suffix]
        sizes = lengths_of(pieces).reshape(-1, 3)
        return np.concatenate(pieces), offsets_of(sizes.sum(axis=1)), sizes[:, 0]


def two_spans(begin: int, length: int, *, text_only: bool = False) -> Spans:
    """The spans of a text without turns: its prompt, if there is one, and what follows.

    Args:
        begin: where the prompt ends, in characters.
        text_only: whether it is a plain text, without a prompt.
    """
    kind = SpanKind.TEXT if text_only else SpanKind.COMPLETION
    if not begin:
        return Spans((length,), (kind,), (NO_TURN,), (True,))
    return Spans((begin, length), (SpanKind.PROMPT, kind), (NO_TURN, NO_TURN), (True, True))


def _given_spans(length: int, trained: NDArray[np.bool_] | None, weight: float) -> Spans:
    """The spans of a document given as tokens, in tokens; all are trained if `trained` is None."""
    if trained is None or not length:
        return Spans((length,), (SpanKind.COMPLETION,), (NO_TURN,), (weight,))
    last = [*np.flatnonzero(trained[1:] != trained[:-1]).tolist(), length - 1]
    kinds = tuple([SpanKind.COMPLETION if flag else SpanKind.PROMPT for flag in trained[last].tolist()])
    return Spans(tuple([place + 1 for place in last]), kinds, (NO_TURN,) * len(last), (weight,) * len(last))


def encoded_batch(
    examples: list[Example],
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    spans: pa.ListArray,
    hashes: list[bytes],
    straddles: NDArray[np.int64],
) -> pa.RecordBatch:
    """A batch of `schemas.rows.ENCODED`: N examples with T tokens.

    Args:
        ids, offsets: (T,) and (N + 1,); see `EngineTokens`.
        hashes: (N,) digests of 16 bytes.
        straddles: (N,) tokens that span a boundary.
    """
    arrays = [
        lists(offsets, ids, ENCODED.field("input_ids").type),
        spans,
        strings([example.group for example in examples]),
        digests(hashes, 16),
        numbers(np.array([example.line for example in examples], np.int32)),
        numbers(np.array([example.sub for example in examples], np.int32)),
        numbers(np.minimum(straddles, np.iinfo(np.int16).max).astype(np.int16)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED)
