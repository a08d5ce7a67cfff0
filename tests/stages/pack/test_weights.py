"""Weights of tokens, against sums made token by token."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.alignment import Alignment
from packtrain.schemas.ragged import offsets_of
from packtrain.schemas.rows import IGNORE_INDEX, WEIGHTS
from packtrain.stages.mask.policy import label_weights
from packtrain.stages.pack.layout import PlannedPieces, lay_out

RUN = st.tuples(st.integers(1, 5), st.booleans(), st.sampled_from([0.25, 1.0, 3.0]))
PIECE = st.tuples(
    st.lists(RUN, min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.5, 1.0, 1 / 3])
)


@given(st.lists(PIECE, min_size=1, max_size=6), st.sampled_from([1, 4]), st.data())
def test_a_row_has_each_label_s_weight_at_its_token(
    given_pieces: list[tuple[list[tuple[int, bool, float]], float, float, float]], align: int, data: st.DataObject
) -> None:
    tokens, starts, lengths, repeated, ends, supervised, weights, counts, scales, wanted = ([] for _ in range(10))
    for runs, low, high, scale in given_pieces:
        each = [(flag, weight) for size, flag, weight in runs for _ in range(size)]
        start = int(low * (len(each) - 1))
        length = 1 + int(high * (len(each) - start - 1))
        again = data.draw(st.integers(0, length - 1))
        tokens.append(np.arange(start, start + length, dtype=np.int32))
        starts.append(start)
        lengths.append(length)
        repeated.append(again)
        ends += np.cumsum([size for size, *_ in runs]).tolist()
        supervised += [flag for _, flag, _ in runs]
        weights += [weight for *_, weight in runs]
        counts.append(len(runs))
        scales.append(scale)
        mine = [
            np.float32(np.float32(weight) * scale) if flag and place and place >= again else 0
            for place, (flag, weight) in enumerate(each[start : start + length])
        ]
        wanted.append([*mine, *[0] * (-length % align)])
    pieces = PlannedPieces(
        tokens=tokens,
        starts=np.array(starts, np.int32),
        lengths=np.array(lengths, np.int32),
        repeated=np.array(repeated, np.int32),
        doc_ids=np.arange(len(tokens)),
        row_offsets=np.array([0, len(tokens)]),
        run_ends=np.array(ends, np.int32),
        run_supervised=np.array(supervised),
        run_offsets=offsets_of(counts),
        run_weights=np.array(weights, np.float32),
        scales=np.array(scales),
    )
    laid = lay_out(pieces, Alignment.of(align, None))
    (found,), (labels,) = (laid.batch.column(name).to_pylist() for name in (WEIGHTS, "labels"))
    assert found == [float(one) for each in wanted for one in each]
    assert [one > 0 for one in found] == [label != IGNORE_INDEX for label in labels]
    assert laid.weights is not None
    assert np.allclose(laid.weights, [sum(map(float, each)) for each in wanted], rtol=1e-12)
    # The same sums without laying anything out, as a stream closes its ledger.
    fresh = pieces.starts + np.maximum(pieces.repeated, 1)
    assert pieces.run_weights is not None
    planned = label_weights(
        pieces.run_weights,
        pieces.run_supervised,
        pieces.run_ends,
        pieces.run_offsets,
        fresh,
        pieces.starts + pieces.lengths,
    )
    assert np.allclose(planned * scales, laid.weights, rtol=1e-5)
    # Each piece whose runs have the same weight weighs as much, whatever its length.
    divided = lay_out(replace(pieces, by_document=True), Alignment.of(align, None)).weights
    assert divided is not None
    assert np.allclose(divided, laid.weights / np.maximum(laid.trained, 1), rtol=1e-5)
    bare = replace(pieces, run_weights=None, scales=None)
    assert lay_out(bare, Alignment.of(align, None)).batch == laid.batch.drop_columns(WEIGHTS)
