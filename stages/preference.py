"""Preference pairs: two texts with one beginning → the tokens of a prompt and of two completions.

1. Render each pair twice, with the completion that was chosen and with the one that was rejected.
2. Encode both texts whole, in one batch with those of other pairs.
3. Fold the two: what both begin with, up to the place where either prompt ends, is the prompt's tokens. What follows
   in each is its completion.

So prompt and completion together are always the tokenization of one text; a token that stands on both sides of the
prompt's end belongs to the completions. TRL's DPOTrainer compares both with the prompt's text tokenized alone instead.
Where those tokens are what both begin with, the outcome is the same; else its prompt may end earlier, never later.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..schemas.errors import RowRejectedError
from ..schemas.rows import ENCODED, Example, Kind
from .arrays import digests, lists, numbers, strings, view
from .encode import NO_TURN, Batch, EncodeCounts, Encoder, Refused, Sampled
from .rendered import Rendered, Runs
from .truncate import completion_starts

RUNS = (Kind.PROMPT, Kind.COMPLETION, Kind.REJECTED)
"""The runs of every pair."""


class PairEncoder:
    """Encodes preference pairs with what an `Encoder` has."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def encode(
        self,
        examples: Iterable[Example],
        counts: EncodeCounts,
        refused: list[Refused],
        samples: list[Sampled],
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `schemas.rows.ENCODED`, one row a pair, in the order of the examples.

        `counts`, `refused` and `samples` are filled as the batches are made. The tokens of a prompt are counted once.
        """
        batch = Batch()
        for example in examples:
            ended = batch.ended
            try:
                sides = self._sides(example, batch, counts)
            except RowRejectedError as error:
                batch.ended = ended
                refused.append(Refused(example.line, example.sub, error.reason, error.detail))
                continue
            for side, rendered in sides:
                batch.add(side, rendered)
            if batch.full:
                yield self._finish(batch, counts, samples)
                batch = Batch()
        if batch.texts:
            yield self._finish(batch, counts, samples)

    def _sides(self, example: Example, batch: Batch, counts: EncodeCounts) -> list[tuple[Example, Rendered]]:
        """The pair as two examples, each with its text and where the completion begins in it.

        Raises:
            RowRejectedError: `not_a_pair`; the template refused one of them; `train_flags`.
        """
        if example.rejected is None:
            raise RowRejectedError("not_a_pair", "there is no rejected completion, but the run is of preference pairs")
        out = []
        # Where turns lie is of no matter to a preference loss, so neither is whether it is proved.
        unused = EncodeCounts()
        for completion in (example.completion, example.rejected):
            side = example._replace(completion=completion, rejected=None)
            rendered = self.encoder.rendered(side, batch, unused)
            text, begin, runs = rendered[:3]
            if not all(train for end, train in zip(runs.ends, runs.trains, strict=True) if end > begin):
                raise RowRejectedError(
                    "train_flags",
                    "a message of a completion says `train: false` or has a `weight` of 0, but a preference loss is "
                    "over whole completions; take the flag out, or the row",
                )
            out.append((side, rendered._replace(runs=_two_runs(begin, len(text)))))
        for what in unused.dropped:  # of either completion
            counts.dropped[what] = counts.dropped.get(what, 0) + 1
        return out

    def _finish(self, batch: Batch, counts: EncodeCounts, samples: list[Sampled]) -> pa.RecordBatch:
        made = self.encoder.finish(batch, counts, samples)
        folded, prompts, special = fold(made)
        counts.examples -= len(prompts)
        counts.tokens -= int(prompts.sum())
        counts.special -= int(special.sum())
        return folded


def _two_runs(begin: int, length: int) -> Runs:
    if not begin:
        return Runs((length,), (Kind.COMPLETION,), (NO_TURN,), (True,))
    return Runs((begin, length), (Kind.PROMPT, Kind.COMPLETION), (NO_TURN, NO_TURN), (True, True))


def fold(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.int64]]:
    """2N rows of `schemas.rows.ENCODED`, of each pair the chosen and then the rejected one, as N rows of pairs.

    Returns:
        the rows; (N,) tokens of each prompt; and (N,) how many of these the tokenizer put before it by itself.
    """
    column, runs = batch.column("input_ids"), batch.column("runs")
    ids, offsets = view(column.values), view(column.offsets).astype(np.int64)
    kind, ends = view(runs.values.field("kind")), view(runs.values.field("end"))
    run_offsets = view(runs.offsets)
    begins = completion_starts(kind, ends, run_offsets).astype(np.int64)
    lengths = np.diff(offsets)
    prompts = common_prefixes(ids, offsets[:-1], np.minimum(begins[0::2], begins[1::2]))

    first = run_offsets[:-1]
    put = np.where(kind[first] == Kind.SPECIAL, ends[first], 0).astype(np.int64)
    special = np.minimum(np.minimum(put[0::2], put[1::2]), prompts)

    # The rejected text stands behind the chosen one already; only its prompt has to go.
    keep = np.ones(int(offsets[-1]), dtype=np.bool_)
    keep[_ranges(offsets[1:-1:2], prompts)] = False
    pair_ends = np.stack([prompts, lengths[0::2], lengths[0::2] + lengths[1::2] - prompts], axis=1)
    pair_offsets = np.zeros(len(prompts) + 1, dtype=np.int64)
    np.cumsum(pair_ends[:, 2], out=pair_offsets[1:])

    count = len(prompts)
    structs = pa.StructArray.from_arrays(
        [
            numbers(pair_ends.astype(np.int32).reshape(-1)),
            numbers(np.tile(np.array(RUNS, dtype=np.int8), count)),
            numbers(np.full(3 * count, NO_TURN, dtype=np.int16)),
            numbers(np.ones(3 * count, dtype=np.bool_)),
        ],
        fields=list(ENCODED.field("runs").type.value_type),
    )
    said = batch.column("digest").to_pylist()
    hashes = [xxhash.xxh3_128_digest(a + b) for a, b in zip(said[0::2], said[1::2], strict=True)]
    places = {name: view(batch.column(name))[0::2] for name in ("line", "sub")}
    straddles = view(batch.column("straddles"))
    arrays = [
        lists(pair_offsets, ids[: int(offsets[-1])][keep], ENCODED.field("input_ids").type),
        lists(np.arange(count + 1) * 3, structs, ENCODED.field("runs").type),
        strings(batch.column("group").to_pylist()[0::2]),
        digests(hashes, 16),
        numbers(places["line"]),
        numbers(places["sub"]),
        numbers(straddles[0::2] + straddles[1::2]),
        numbers(np.zeros(count, np.bool_)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED), prompts, special


def common_prefixes(ids: NDArray[np.int32], begins: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) how many tokens the sequences 2i and 2i + 1 begin with in common, at most `limits[i]`.

    Args:
        ids: (T,) tokens.
        begins: (2N,) where each sequence begins in them.
        limits: (N,) no longer than either sequence.
    """
    left, right = _ranges(begins[0::2], limits), _ranges(begins[1::2], limits)
    differ = ids[left] != ids[right]
    within = _ranges(np.zeros_like(limits), limits)
    out = limits.copy()
    solid = np.flatnonzero(limits)
    if len(solid):
        starts = (np.cumsum(limits) - limits)[solid]
        nowhere = np.iinfo(np.int64).max
        out[solid] = np.minimum(np.minimum.reduceat(np.where(differ, within, nowhere), starts), limits[solid])
    return out


def _ranges(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """begins[0], begins[0] + 1, …, then begins[1], …: `sizes[i]` numbers of each."""
    done = np.cumsum(sizes) - sizes
    out: NDArray[np.int64] = np.arange(int(sizes.sum())) + np.repeat(begins - done, sizes)
    return out
