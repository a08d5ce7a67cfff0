"""Preference pairs: two texts with a common beginning → the tokens of a prompt and of two completions.

1. Render each pair twice, with the chosen and with the rejected completion.
2. Encode both texts, in one batch with those of other pairs.
3. Fold the two: the tokens that both begin with are the prompt, at most up to where the first of the two prompts ends.
   The rest of each text is its completion.

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
from .encode import NO_TURN, Batch, Encoder, two_spans
from .encode_counts import EncodeCounts
from .engine_check import SampledTexts
from .token_spans import span_lists

RUNS = (SpanKind.PROMPT, SpanKind.COMPLETION, SpanKind.REJECTED)
"""The spans of every pair."""


def encode_pairs(
    encoder: Encoder, examples: Iterable[Example], counts: EncodeCounts, sampled: SampledTexts | None = None
) -> Iterator[pa.RecordBatch]:
    """Record batches of `schemas.rows.ENCODED`, one row per pair, in the order of the examples.

    `counts` and `sampled` are filled as by `Encoder.encode`. A prompt's tokens are counted once.
    """
    batch = Batch()
    for example in examples:
        if batch.full:
            yield _finished(encoder, batch, counts, sampled)
            batch = Batch()
        ended = batch.ended
        try:
            sides = _sides(encoder, example, batch, counts)
        except RowRejectedError as error:
            batch.ended = ended
            counts.refuse(example, error)
            continue
        for side, rendered in sides:
            batch.add(side, rendered)
        encoder.count_special(example, counts)
    if batch.texts:
        yield _finished(encoder, batch, counts, sampled)


def _finished(encoder: Encoder, batch: Batch, counts: EncodeCounts, sampled: SampledTexts | None) -> pa.RecordBatch:
    folded, prompts, special = fold(encoder.finish(batch, counts, sampled))
    counts.examples -= len(prompts)
    counts.tokens -= int(prompts.sum())
    counts.special -= int(special.sum())
    return folded


def _sides(encoder: Encoder, example: Example, batch: Batch, counts: EncodeCounts) -> list[tuple[Example, Rendered]]:
    """The pair as two examples, each with its rendering. Rejects `not_a_pair`, `train_flags`, what is not rendered."""
    if example.rejected is None:
        raise RowRejectedError("not_a_pair", "there is no rejected completion, but the run is of preference pairs")
    out = []
    # What is found in a pair is counted once, with its chosen side.
    for completion, found in ((example.completion, counts), (example.rejected, EncodeCounts())):
        side = example._replace(completion=completion, rejected=None)
        rendered = encoder.rendered(side, batch, found)
        text, begin, spans = rendered[:3]
        if not all(train == 1 for end, train in zip(spans.ends, spans.weights, strict=True) if end > begin):
            raise RowRejectedError(
                "train_flags",
                "a message of a completion says `train: false` or has a `weight`, but a preference loss is over "
                "whole completions, all tokens alike; remove it, or the row",
            )
        out.append((side, rendered._replace(spans=two_spans(begin, len(text)))))
    return out


def fold(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.int64]]:
    """Fold 2N rows of `schemas.rows.ENCODED`, chosen and rejected in turn, into N rows of pairs.

    Returns:
        the rows; (N,) tokens of each prompt; and (N,) how many of these the tokenizer added before the text.
    """
    column, spans = batch.column("input_ids"), batch.column("spans")
    kind, ends, starts = view(spans.values.field("kind")), view(spans.values.field("end")), view(spans.offsets)
    first, last = starts[:-1], starts[1:] - 1  # of each side; the last is its completion, unless all of it is prompt
    begins = np.where(kind[last] == SpanKind.COMPLETION, begins_of(ends, starts)[last], ends[last])
    put = np.where(kind[first] == SpanKind.SPECIAL, ends[first], 0)
    tokens, offsets = view(column.values), view(column.offsets).tolist()
    ids, sizes = list[NDArray[np.int32]](), list[tuple[int, int, int]]()
    for at, limit in enumerate(begins.reshape(-1, 2).min(axis=1).tolist()):
        low, middle, high = offsets[2 * at : 2 * at + 3]
        chosen, rejected = tokens[low:middle], tokens[middle:high]
        differ = np.flatnonzero(chosen[:limit] != rejected[:limit])
        prompt = int(differ[0]) if len(differ) else limit
        ids += [chosen, rejected[prompt:]]
        sizes.append((prompt, len(chosen) - prompt, len(rejected) - prompt))
    pair_ends, count = np.cumsum(sizes, axis=1, dtype=np.int64), len(sizes)
    said = batch.column("digest").to_pylist()
    straddles = view(batch.column("straddles"))
    arrays = [
        lists(offsets_of(pair_ends[:, 2]), np.concatenate(ids), ENCODED.field("input_ids").type),
        span_lists(
            pair_ends.ravel(),
            np.tile(RUNS, count),
            np.full(3 * count, NO_TURN),
            np.ones(3 * count),
            np.arange(count + 1) * 3,
        ),
        strings(batch.column("group").to_pylist()[0::2]),
        digests([text_digest(a + b) for a, b in zip(said[0::2], said[1::2], strict=True)], 16),
        *(numbers(view(batch.column(name))[0::2]) for name in ("line", "sub")),
        numbers(straddles[0::2] + straddles[1::2]),
    ]
    prompts = pair_ends[:, 0]
    special = np.minimum(prompts, put.reshape(-1, 2).min(axis=1))
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED), prompts, special
