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
import xxhash
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.ragged import offsets_of, ranges, starts_of
from ...schemas.rows import ENCODED, Example, RunKind
from ..arrays import digests, lists, numbers, strings, view
from ..template.rendered import Rendered
from .content_check import ROLES, TOKENS, count_names
from .encode import DROPPED, NO_TURN, Batch, Encoder, two_runs
from .encode_counts import EncodeCounts, Findings, Refused
from .token_runs import completion_starts, run_lists

RUNS = (RunKind.PROMPT, RunKind.COMPLETION, RunKind.REJECTED)
"""The runs of every pair."""


def encode_pairs(encoder: Encoder, examples: Iterable[Example], found: Findings) -> Iterator[pa.RecordBatch]:
    """Record batches of `schemas.rows.ENCODED`, one row per pair, in the order of the examples.

    `found` is filled as by `Encoder.encode`. A prompt's tokens are counted once.
    """
    batch = Batch()
    for example in examples:
        if batch.full:
            yield _finished(encoder, batch, found)
            batch = Batch()
        ended = batch.ended
        try:
            sides = _sides(encoder, example, batch, found.counts)
        except RowRejectedError as error:
            batch.ended = ended
            found.refused.append(Refused(example.line, example.sub, error.reason, error.detail))
            continue
        for side, rendered in sides:
            batch.add(side, rendered)
    if batch.texts:
        yield _finished(encoder, batch, found)


def _finished(encoder: Encoder, batch: Batch, found: Findings) -> pa.RecordBatch:
    folded, prompts, special = fold(encoder.finish(batch, found))
    found.counts.examples -= len(prompts)
    found.counts.tokens -= int(prompts.sum())
    found.counts.special -= int(special.sum())
    return folded


def _sides(encoder: Encoder, example: Example, batch: Batch, counts: EncodeCounts) -> list[tuple[Example, Rendered]]:
    """Return the pair as two examples, each with its rendering.

    Raises:
        RowRejectedError: `not_a_pair`, `train_flags`, or the template refused one of the two.
    """
    if example.rejected is None:
        raise RowRejectedError("not_a_pair", "there is no rejected completion, but the run is of preference pairs")
    out = []
    # A preference loss does not depend on turns, so they need not be located.
    unused = EncodeCounts()
    for completion in (example.completion, example.rejected):
        side = example._replace(completion=completion, rejected=None)
        rendered = encoder.rendered(side, batch, unused)
        text, begin, runs = rendered[:3]
        if not all(train == 1 for end, train in zip(runs.ends, runs.trains, strict=True) if end > begin):
            raise RowRejectedError(
                "train_flags",
                "a message of a completion says `train: false` or has a `weight`, but a preference loss is over "
                "whole completions, all tokens alike; remove it, or the row",
            )
        out.append((side, rendered._replace(runs=two_runs(begin, len(text)))))
    for what in unused.found.get(DROPPED, ()):  # located with either completion
        counts.add(DROPPED, what, example.line)
    for kind in (ROLES, TOKENS):
        count_names(counts, kind, unused.found.get(kind, ()), example.line)
    return out


def fold(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.int64]]:
    """Fold 2N rows of `schemas.rows.ENCODED`, chosen and rejected in turn, into N rows of pairs.

    Returns:
        the rows; (N,) tokens of each prompt; and (N,) how many of these the tokenizer added before the text.
    """
    column, runs = batch.column("input_ids"), batch.column("runs")
    ids, offsets = view(column.values), view(column.offsets).astype(np.int64)
    kind, ends = view(runs.values.field("kind")), view(runs.values.field("end"))
    run_offsets = view(runs.offsets)
    begins = completion_starts(kind, ends, run_offsets).astype(np.int64)
    lengths = np.diff(offsets)
    prompts = common_prefixes(ids, offsets[:-1], np.minimum(begins[0::2], begins[1::2]))

    first = run_offsets[:-1]
    put = np.where(kind[first] == RunKind.SPECIAL, ends[first], 0).astype(np.int64)
    special = np.minimum(np.minimum(put[0::2], put[1::2]), prompts)

    # The rejected text already follows the chosen one; only its prompt must be removed.
    keep = np.ones(int(offsets[-1]), dtype=np.bool_)
    keep[ranges(offsets[1:-1:2], prompts)] = False
    pair_ends = np.stack([prompts, lengths[0::2], lengths[0::2] + lengths[1::2] - prompts], axis=1)
    pair_offsets = offsets_of(pair_ends[:, 2])

    count = len(prompts)
    kinds, turns, ones = np.tile(RUNS, count), np.full(3 * count, NO_TURN), np.ones(3 * count)
    said = batch.column("digest").to_pylist()
    hashes = [xxhash.xxh3_128_digest(a + b) for a, b in zip(said[0::2], said[1::2], strict=True)]
    places = {name: view(batch.column(name))[0::2] for name in ("line", "sub")}
    straddles = view(batch.column("straddles"))
    arrays = [
        lists(pair_offsets, ids[: int(offsets[-1])][keep], ENCODED.field("input_ids").type),
        run_lists(pair_ends.reshape(-1), kinds, turns, ones, np.arange(count + 1) * 3),
        strings(batch.column("group").to_pylist()[0::2]),
        digests(hashes, 16),
        numbers(places["line"]),
        numbers(places["sub"]),
        numbers(straddles[0::2] + straddles[1::2]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED), prompts, special


def common_prefixes(ids: NDArray[np.int32], begins: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (N,) how many first tokens the sequences 2i and 2i + 1 share, at most `limits[i]`.

    Args:
        ids: (T,) tokens.
        begins: (2N,) where each sequence begins in `ids`.
        limits: (N,) at most the length of the shorter sequence.
    """
    left, right = ranges(begins[0::2], limits), ranges(begins[1::2], limits)
    differ = ids[left] != ids[right]
    within = ranges(0, limits)
    out = limits.copy()
    solid = np.flatnonzero(limits)
    if len(solid):
        starts = starts_of(limits)[solid]
        nowhere = np.iinfo(np.int64).max
        out[solid] = np.minimum(np.minimum.reduceat(np.where(differ, within, nowhere), starts), limits[solid])
    return out
