"""Preference pairs: two texts with a common beginning → the tokens of a prompt and of two completions.

1. Render each pair twice, with the chosen and with the rejected completion.
2. Encode both texts, in one batch with those of other pairs.
3. Fold the two: the tokens that both begin with are the prompt, at most up to where the first of the two prompts ends.
   The rest of each text is its completion.

    chosen      "Is" " it" "?" " Yes" "."
    rejected    "Is" " it" "?" " No" "."       row: "Is" " it" "?" | " Yes" "." | " No" "."

So prompt and completion together are always the tokenization of one text; a token that spans the prompt's end belongs
to the completions. TRL's DPOTrainer tokenizes the prompt alone instead. If both texts begin with the tokens of the
prompt alone, the result is the same; else TRL's prompt may end earlier, but not later.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import digests, lists, numbers, strings, view
from ...schemas.digests import text_digest
from ...schemas.errors import RowRejectedError
from ...schemas.ragged import begins_of, offsets_of
from ...schemas.rows import ENCODED, Example, SpanKind
from ..render.rendered import Rendered
from .encode import Encoder
from .encode_counts import EncodeCounts
from .engine_check import SampledTexts
from .rendered_batch import NO_TURN, RenderedBatch, spans_without_turns
from .token_spans import span_lists

PAIR_KINDS = (SpanKind.PROMPT, SpanKind.COMPLETION, SpanKind.REJECTED)
"""The kinds of the three spans of every pair."""


def encode_pairs(
    encoder: Encoder, examples: Iterable[Example], counts: EncodeCounts, sampled: SampledTexts | None = None
) -> Iterator[pa.RecordBatch]:
    """Record batches of `schemas.rows.ENCODED`, one row per pair, in the order of the examples.

    `counts` and `sampled` are filled as by `Encoder.encode`. A prompt's tokens are counted once.
    """
    batch = RenderedBatch()
    for example in examples:
        if batch.is_full:
            yield _encode_batch(encoder, batch, counts, sampled)
            batch = RenderedBatch()
        added_eos_before = batch.added_eos
        try:
            sides = _render_sides(encoder, example, batch, counts)
        except RowRejectedError as error:
            # Rendering counts the end-of-sequence tokens that it adds, and the chosen side may have got one before the
            # rejected side was refused. Nothing else was counted: that is done below, for whole pairs.
            batch.added_eos = added_eos_before
            counts.refuse(example, error)
            continue
        for side, rendered in sides:
            batch.add(side, rendered)
        encoder.count_special(example, counts)
    if batch.texts:
        yield _encode_batch(encoder, batch, counts, sampled)


def _encode_batch(
    encoder: Encoder, batch: RenderedBatch, counts: EncodeCounts, sampled: SampledTexts | None
) -> pa.RecordBatch:
    """The record batch of the pairs whose sides are in `batch`, chosen and rejected in turn."""
    pairs, prompt_lengths, prefix_lengths = fold_sides(encoder.encode_batch(batch, counts, sampled))
    # The encoder has counted two examples for each pair, and the tokens of its prompt twice.
    counts.examples -= len(prompt_lengths)
    counts.tokens -= int(prompt_lengths.sum())
    counts.special -= int(prefix_lengths.sum())
    return pairs


def _render_sides(
    encoder: Encoder, example: Example, batch: RenderedBatch, counts: EncodeCounts
) -> list[tuple[Example, Rendered]]:
    """The pair as two examples, chosen and rejected, each with its rendering.

    Raises:
        RowRejectedError: `not_a_pair`, `train_flags`, or what `Encoder.render` raises.
    """
    if example.rejected is None:
        raise RowRejectedError("not_a_pair", "there is no rejected completion, but the run is of preference pairs")
    # Each side without `rejected`, because `Encoder.render` refuses what has one.
    chosen_side = example._replace(rejected=None)
    rejected_side = example._replace(completion=example.rejected, rejected=None)
    # Unknown roles and the like are counted once, with the chosen side: the counts of the rejected side are dropped.
    return [
        (chosen_side, _render_side(encoder, chosen_side, batch, counts)),
        (rejected_side, _render_side(encoder, rejected_side, batch, EncodeCounts())),
    ]


def _render_side(encoder: Encoder, side: Example, batch: RenderedBatch, counts: EncodeCounts) -> Rendered:
    """One side of a pair, rendered, with a span for its prompt and one for its completion: turns and their parts mean
    nothing to a preference loss.

    Raises:
        RowRejectedError: `train_flags`, or what `Encoder.render` raises.
    """
    rendered = encoder.render(side, batch, counts)
    completion_begin = rendered.completion_begin
    for end, weight in zip(rendered.spans.ends, rendered.spans.weights, strict=True):
        if end > completion_begin and weight != 1:
            raise RowRejectedError(
                "train_flags",
                "a message of a completion says `train: false` or has a `weight`, but a preference loss is over "
                "whole completions, all tokens alike; remove it, or the row",
            )
    return rendered._replace(spans=spans_without_turns(completion_begin, len(rendered.text)))


def fold_sides(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.int64]]:
    """Fold 2N rows of `schemas.rows.ENCODED`, chosen and rejected in turn, into N rows of pairs.

    Returns:
        the rows; (N,) tokens of each prompt; and (N,) how many of these the tokenizer added before the text.
    """
    prompt_limits, prefix_lengths = _side_prompts(batch)
    ids, lengths = _fold_ids(batch, prompt_limits)
    pair_count = len(lengths)
    # (pairs, 3) where the prompt, the completion and the rejected completion end.
    ends = np.cumsum(lengths, axis=1, dtype=np.int64)
    side_digests = batch.column("digest").to_pylist()
    pair_digests = [
        text_digest(chosen + rejected) for chosen, rejected in zip(side_digests[0::2], side_digests[1::2], strict=True)
    ]
    straddles = view(batch.column("straddles"))
    # In the order of the columns of ENCODED. Rows 0, 2, 4, ... are the chosen sides, which have the line and the group
    # of their pair, as the rejected ones do.
    arrays = [
        lists(offsets_of(ends[:, 2]), ids, ENCODED.field("input_ids").type),
        span_lists(
            ends=ends.ravel(),
            kinds=np.tile(PAIR_KINDS, pair_count),
            turns=np.full(3 * pair_count, NO_TURN),
            weights=np.ones(3 * pair_count),
            offsets=np.arange(pair_count + 1) * 3,
        ),
        strings(batch.column("group").to_pylist()[0::2]),
        digests(pair_digests, width=16),
        numbers(view(batch.column("line"))[0::2]),
        numbers(view(batch.column("sub"))[0::2]),
        numbers(straddles[0::2] + straddles[1::2]),
    ]
    prompt_lengths = ends[:, 0]
    # Of the tokens before the text, those that are in the folded prompt.
    return (
        pa.RecordBatch.from_arrays(arrays, schema=ENCODED),
        prompt_lengths,
        np.minimum(prompt_lengths, prefix_lengths),
    )


def _side_prompts(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) how many tokens the prompt of a pair may have: as many as stand before the completion on both of its sides;
    and (N,) how many tokens the tokenizer added before both sides.

    If the spans of one pair are SPECIAL to 1, PROMPT to 5, COMPLETION to 7, and SPECIAL to 1, PROMPT to 4, COMPLETION
    to 9, these are 4 and 1: a token that straddles the prompt's end may be one side's completion, and not the other's.
    """
    spans = batch.column("spans")
    offsets = view(spans.offsets)
    kinds = view(spans.values.field("kind"))
    ends = view(spans.values.field("end"))
    first_spans = offsets[:-1]
    last_spans = offsets[1:] - 1
    # The last span of a side is its completion, unless all of it is prompt.
    has_completion = kinds[last_spans] == SpanKind.COMPLETION
    prompt_ends = np.where(has_completion, begins_of(ends, offsets)[last_spans], ends[last_spans])
    prefix_ends = np.where(kinds[first_spans] == SpanKind.SPECIAL, ends[first_spans], 0)
    return prompt_ends.reshape(-1, 2).min(axis=1), prefix_ends.reshape(-1, 2).min(axis=1)


def _fold_ids(batch: pa.RecordBatch, prompt_limits: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The tokens of N pairs, and (N, 3) how many are of the prompt, the completion and the rejected completion.

    Args:
        batch: of 2N rows, chosen and rejected in turn.
        prompt_limits: (N,) how many tokens each prompt may have, from `_side_prompts`; both sides have as many.
    """
    column = batch.column("input_ids")
    tokens = view(column.values)
    offsets = view(column.offsets).tolist()
    pieces: list[NDArray[np.int32]] = []
    lengths: list[tuple[int, int, int]] = []
    for pair, limit in enumerate(prompt_limits.tolist()):
        chosen = tokens[offsets[2 * pair] : offsets[2 * pair + 1]]
        rejected = tokens[offsets[2 * pair + 1] : offsets[2 * pair + 2]]
        differences = np.flatnonzero(chosen[:limit] != rejected[:limit])
        prompt = int(differences[0]) if len(differences) else limit
        pieces += [chosen, rejected[prompt:]]
        lengths.append((prompt, len(chosen) - prompt, len(rejected) - prompt))
    return np.concatenate(pieces), np.array(lengths, np.int64)
