"""Encode: examples → rendered text → token ids and spans. One rendering and one tokenization per example.

1. Render each example to its text and its spans, which say what each part of the text is.
2. Encode the texts of a batch together (`Engine`), without special tokens.
3. Find the tokens where spans begin (`token_spans`).
4. Add the tokenizer's own tokens around plain texts, never twice.

For a prompt "2 + 2 = " and a completion "4":

    text     "2 + 2 = 4"                   spans in characters  PROMPT to 8, COMPLETION to 9
    tokens   "2" " +" " 2" " =" " " "4"    spans in tokens      PROMPT to 5, COMPLETION to 6

Rows that are already tokens stay as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import digests, lists, numbers, strings
from ...schemas.digests import text_digest
from ...schemas.errors import RowRejectedError
from ...schemas.ragged import lengths_of, offsets_of
from ...schemas.rows import ENCODED, Example, Messages, SpanKind
from ...schemas.tables.reasons import UNPROVED
from ..render.rendered import Rendered, Spans
from ..render.renderer import Renderer
from ..template.call_arguments import call_arguments_not_json
from .encode_counts import COLUMNS_NOT_READ, MOST_PLACES, NOT_JSON, EncodeCounts, known_roles
from .engine_check import EngineSample, SampledTexts
from .engines import Engine, EngineTokens
from .rendered_batch import NO_TURN, RenderedBatch, spans_without_turns
from .special_in_contents import SpecialTokenSearch
from .token_boundaries import locate_boundaries
from .token_spans import CharacterSpans
from .vocabulary import SpecialTokenAffixes, id_count, tokenizer_head, vocabulary

ENGINE_CHECK = 0x3FF
"""Texts in whose digest these ten bits are 0, one in 1,024, are compared with the reference tokenizer."""
SAMPLE_CHARACTERS = 1 << 20
"""Longer texts are not compared: the reference needs 200 bytes for each of their bytes, and no limit of memory allows
for that."""
TEMPLATE_DROPPED = "template_dropped"
"""The ledger's field for what templates leave out."""
_NO_TOKENS = np.zeros(0, np.int32)


class Encoder:
    """Turns examples into record batches; built once in a worker. Keeps nothing of what it encoded.

    Args:
        tokenizer_json: the content of the tokenizer.json of which `engine` was made.
        renderer: None without a chat template; every conversation is then refused.
        affixes: what the tokenizer adds around plain texts.
    """

    def __init__(
        self, tokenizer_json: str, engine: Engine, renderer: Renderer | None, affixes: SpecialTokenAffixes
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self._affixes = affixes
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
        # Neighbours of one kind form batches, so that the order of the examples stays.
        for has_ids, neighbours in groupby(examples, lambda example: example.ids is not None):
            if has_ids:
                yield from self._encode_ids(neighbours, counts)
            else:
                yield from self._encode_texts(neighbours, counts, sampled)

    def _encode_texts(
        self, examples: Iterable[Example], counts: EncodeCounts, sampled: SampledTexts | None
    ) -> Iterator[pa.RecordBatch]:
        """The batches of examples that are texts or messages, not ids. One that cannot be rendered is left out, and
        counted.
        """
        batch = RenderedBatch()
        for example in examples:
            if batch.is_full:
                yield self.encode_batch(batch, counts, sampled)
                batch = RenderedBatch()
            try:
                batch.add(example, self.render(example, batch, counts))
            except RowRejectedError as error:
                counts.refuse(example, error)
                continue
            self.count_special(example, counts)
        if batch.examples:
            yield self.encode_batch(batch, counts, sampled)

    def _encode_ids(self, examples: Iterable[Example], counts: EncodeCounts) -> Iterator[pa.RecordBatch]:
        """A batch of the examples that were given as tokens, if there are any whose ids the tokenizer has."""
        accepted: list[Example] = []
        ids_of_examples: list[NDArray[np.int32]] = []
        spans: list[Spans] = []
        hashes: list[bytes] = []
        last_id = self._id_count - 1
        for example in examples:
            ids = np.asarray(example.ids, np.int64)
            unknown_ids = ids[(ids < 0) | (ids > last_id)]
            if len(unknown_ids):
                detail = f"the tokenizer has no id {unknown_ids[0]:,}: its ids are 0 to {last_id:,}"
                counts.refuse(example, RowRejectedError("bad_ids", detail))
                continue
            flags = None if example.trained is None else np.asarray(example.trained, np.bool_)
            # Within the limits of int32, which ids from a file need not be before the check above.
            accepted.append(example)
            ids_of_examples.append(ids.astype(np.int32))
            spans.append(_spans_of_ids(len(ids), flags, example.weight))
            hashes.append(_digest_of_ids(ids_of_examples[-1], flags, example.weight))
        if not accepted:
            return
        offsets = offsets_of(lengths_of(ids_of_examples))
        counts.examples += len(accepted)
        counts.tokens += int(offsets[-1])
        # These spans are in tokens already, although the class is of characters: no token can straddle them.
        token_spans = CharacterSpans.of_documents(spans).to_arrow()
        straddles = np.zeros(len(accepted), np.int64)
        yield encoded_batch(accepted, np.concatenate(ids_of_examples), offsets, token_spans, hashes, straddles)

    @cached_property
    def _special(self) -> SpecialTokenSearch:
        """Finds the tokenizer's special tokens in contents."""
        return SpecialTokenSearch(tokenizer_head(self._json).added_tokens, self._affixes)

    @cached_property
    def _id_count(self) -> int:
        """One more than the highest id of the tokenizer, with its added tokens."""
        return id_count(vocabulary(self._json), tokenizer_head(self._json).added_tokens)

    def render(self, example: Example, batch: RenderedBatch, counts: EncodeCounts) -> Rendered:
        """An example's text and spans. If an end-of-sequence token is added to the text, `batch.added_eos` counts it.

        Raises:
            RowRejectedError: the example cannot be used, or the template refuses it.
        """
        if example.rejected is not None:
            raise RowRejectedError(
                "preference", "a preference pair in a run of other examples; pack pairs in a separate run"
            )
        if example.text is not None:
            text = example.text
            prompt_length = 0
        elif not isinstance(example.prompt, str):
            return self._render_conversation(example, counts)
        elif isinstance(example.completion, str):
            text = example.prompt + example.completion
            prompt_length = len(example.prompt)
        else:
            raise RowRejectedError("wrong_type", "the prompt is a text, but the completion is not")
        # Added as text, so that one that the data has already is seen, and not doubled.
        eos = self._affixes.eos
        if eos and not text.endswith(eos):
            text += eos
            batch.added_eos += 1
        spans = spans_without_turns(prompt_length, len(text), is_plain_text=example.prompt is None)
        return Rendered(text, prompt_length, spans, unproved="")  # there are no turns to locate

    def count_special(self, example: Example, counts: EncodeCounts) -> None:
        """Count the special tokens that stand in the contents of an example."""
        tokens = self._special.find(example)
        if tokens:
            counts.add_special(example, tokens)

    def _render_conversation(self, example: Example, counts: EncodeCounts) -> Rendered:
        """A conversation's text and spans, by its chat template. What the template may not understand, what it leaves
        out, and turns that cannot be located are counted.

        Raises:
            RowRejectedError: there is no template, or it refuses the conversation.
        """
        if self.renderer is None:
            raise RowRejectedError("no_template", "a conversation needs a chat template")
        # Lists of messages both: a format gives prompt and completion in the same form, and `render` handles texts.
        prompt: Messages = example.prompt or []  # type: ignore[assignment]
        completion: Messages = example.completion or []  # type: ignore[assignment]
        # Counted before rendering, so that rows which the template refuses count, too.
        self._count_unusual(self.renderer, example, prompt, completion, counts)
        renderer = self.renderer.for_row(example.variables, example.documents)
        rendered = renderer(prompt, completion, example.tools)
        for lost_part in rendered.lost:
            counts.add(TEMPLATE_DROPPED, lost_part, example.line)
        if rendered.unproved:
            detail = f"chat template '{self.renderer.template.name}': {rendered.unproved}"
            counts.add(UNPROVED, "", example.line, example.sub, detail, places=MOST_PLACES)
        return rendered

    def _count_unusual(
        self, renderer: Renderer, example: Example, prompt: Messages, completion: Messages, counts: EncodeCounts
    ) -> None:
        """Count what of a conversation its template may not understand."""
        messages = [*prompt, *completion]
        unknown_roles = {message["role"] for message in messages} - self._roles
        if unknown_roles:
            counts.add_roles(unknown_roles, example.line)
        # Examples of one row share their prompt: each counts the calls of its own turn.
        bad_call_count = call_arguments_not_json(messages if example.sub < 0 else completion)
        if bad_call_count:
            counts.add(NOT_JSON, "", example.line, example.sub, count=bad_call_count)
        for name in example.variables or ():
            if name not in renderer.variable_names:
                counts.add_names(COLUMNS_NOT_READ, {f"chat_template_kwargs.{name}": 1})

    def encode_batch(
        self, batch: RenderedBatch, counts: EncodeCounts, sampled: SampledTexts | None = None
    ) -> pa.RecordBatch:
        """The record batch of rendered examples, at least one. Its counts and samples are added, as by `encode`."""
        counts.examples += len(batch.examples)
        # Whole texts are tokenized, never spans alone: a model sees the tokens of whole texts in use.
        tokens = self.engine.encode(batch.texts)
        character_spans = CharacterSpans.of_documents(batch.spans)
        boundaries, boundary_offsets = character_spans.boundaries()
        token_boundaries = locate_boundaries(
            tokens, self.engine.byte_lengths, batch.texts, boundaries, boundary_offsets, self._json
        )
        # By these digests, equal examples are found and splits are drawn.
        texts_and_seeds = zip(batch.texts, batch.seeds, strict=True)
        hashes = [text_digest(text.encode(), seed) for text, seed in texts_and_seeds]
        if sampled is not None:
            _take_samples(sampled, batch, tokens, hashes)
        ids, offsets, prefix_lengths = self._with_affixes(batch, tokens)
        counts.tokens += len(ids)
        # `ids` are those of the engine, and the tokens that were added around texts.
        counts.special += len(ids) - len(tokens.ids)
        counts.end_of_sequence += batch.added_eos
        lengths = np.diff(offsets).astype(np.int64)
        token_spans, straddles = character_spans.over_tokens(token_boundaries, lengths, prefix_lengths)
        counts.straddles += int(straddles.sum())
        return encoded_batch(batch.examples, ids, offsets, token_spans, hashes, straddles)

    def _with_affixes(
        self, batch: RenderedBatch, tokens: EngineTokens
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """The ids and offsets of N texts, with the tokenizer's own tokens around plain ones, and (N,) how many of these
        come before each text: 0 where none was added.
        """
        affixes = self._affixes
        prefix = np.array(affixes.prefix, np.int32)
        suffix = np.array(affixes.suffix, np.int32)
        if not len(prefix) and not len(suffix):
            return tokens.ids, tokens.offsets, np.zeros(len(batch.texts), np.int64)
        pieces: list[NDArray[np.int32]] = []
        for index, (example, text) in enumerate(zip(batch.examples, batch.texts, strict=True)):
            # Templates write the tokens around conversations themselves.
            is_plain = example.prompt is None or isinstance(example.prompt, str)
            # A text that was exported from another tool may have them already.
            has_prefix = bool(affixes.prefix_text) and text.startswith(affixes.prefix_text)
            has_suffix = bool(affixes.suffix_text) and text.endswith(affixes.suffix_text)
            pieces.append(prefix if is_plain and not has_prefix else _NO_TOKENS)
            pieces.append(tokens.ids_of(index))
            pieces.append(suffix if is_plain and not has_suffix else _NO_TOKENS)
        # (N, 3): prefix, text and suffix of each document.
        lengths = lengths_of(pieces).reshape(-1, 3)
        return np.concatenate(pieces), offsets_of(lengths.sum(axis=1)), lengths[:, 0]


def _take_samples(sampled: SampledTexts, batch: RenderedBatch, tokens: EngineTokens, hashes: Sequence[bytes]) -> None:
    """Add the texts of a batch to compare with the reference tokenizer, chosen by the first 16 bits of their digests:
    by what they are, so that the choice does not depend on blocks or workers.
    """
    # Without a bit to check, every text is taken.
    checked_bits = 0 if sampled.every else ENGINE_CHECK
    # (N, 8) the digests of 16 bytes as numbers of 2 bytes.
    first_bits = np.frombuffer(b"".join(hashes), "<u2").reshape(-1, 8)[:, 0]
    for index in np.flatnonzero((first_bits & checked_bits) == 0).tolist():
        text = batch.texts[index]
        if len(text) <= SAMPLE_CHARACTERS:
            sampled.samples.append(EngineSample(text, tokens.ids_of(index).tolist()))


def _spans_of_ids(length: int, flags: NDArray[np.bool_] | None, weight: float) -> Spans:
    """The spans of a document given as tokens, in tokens.

    Args:
        flags: (length,) which tokens are trained; None for all.
    """
    if flags is None or not length:
        return Spans(ends=(length,), kinds=(SpanKind.COMPLETION,), turns=(NO_TURN,), weights=(weight,))
    # flags 0 0 1 1 0: the last tokens of the spans are 1, 3 and 4, their ends 2, 4 and 5.
    last_tokens = [*np.flatnonzero(flags[1:] != flags[:-1]).tolist(), length - 1]
    kinds = [SpanKind.COMPLETION if flag else SpanKind.PROMPT for flag in flags[last_tokens].tolist()]
    ends = [token + 1 for token in last_tokens]
    return Spans(ends=tuple(ends), kinds=tuple(kinds), turns=(NO_TURN,) * len(ends), weights=(weight,) * len(ends))


def _digest_of_ids(ids: NDArray[np.int32], flags: NDArray[np.bool_] | None, weight: float) -> bytes:
    """The digest of a document given as tokens, by which equal ones are found.

    The seed says whether flags follow the ids: else the last ids of one document could pass for the flags of another.

    Args:
        flags: which tokens are trained; None for all.
    """
    seed = 1 if flags is None else 2
    flag_bytes = b"" if flags is None else flags.tobytes()
    weight_bytes = b"" if weight == 1 else repr(weight).encode()
    return text_digest(ids.tobytes() + flag_bytes + weight_bytes, seed)


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
        ids, offsets: (T,) the tokens of all examples, and (N + 1,) where each example's begin.
        spans: the spans of each example.
        hashes: (N,) digests of 16 bytes.
        straddles: (N,) tokens that span a boundary.
    """
    # In the order of the columns of ENCODED.
    arrays = [
        lists(offsets, ids, ENCODED.field("input_ids").type),
        spans,
        strings([example.group for example in examples]),
        digests(hashes, width=16),
        numbers(np.array([example.line for example in examples], np.int32)),
        numbers(np.array([example.sub for example in examples], np.int32)),
        # Above what the column's type holds, its highest number stands for all.
        numbers(np.minimum(straddles, np.iinfo(np.int16).max).astype(np.int16)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED)
