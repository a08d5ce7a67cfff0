"""What is kept of each document: the parts lie within it, and every document has exactly one outcome."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.truncate import Keep, Kept, Overlong, truncate

documents = st.lists(
    st.integers(0, 30).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, max(length - 1, 0)))),
    max_size=30,
)
"""(tokens, trainable tokens after the first)."""


def decide(
    rows: list[tuple[int, int]],
    max_length: int,
    overlong: Overlong = Overlong.TRUNCATE,
    keep: Keep = Keep.START,
    keep_untrained: bool = False,
    kept_labels: int | None = None,
) -> Kept:
    """`kept_labels`: how many labels truncation leaves at most; None, all."""
    lengths, trainable = np.array(rows, np.int32).reshape(-1, 2).T
    left = np.minimum(trainable, kept_labels) if kept_labels is not None else trainable
    return truncate(lengths, trainable, left, max_length, overlong, keep, keep_untrained)


ROWS = [(5, 1), (9, 3), (0, 0), (4, 0), (8, 0), (6, 5)]


@pytest.mark.parametrize(
    ("overlong", "keep", "starts", "lengths", "left_out"),
    [
        (Overlong.TRUNCATE, Keep.START, [0, 0, 0, 0, 0, 0], [5, 6, 0, 0, 0, 6], []),
        (Overlong.TRUNCATE, Keep.END, [0, 3, 0, 0, 2, 0], [5, 6, 0, 0, 0, 6], []),
        (Overlong.DROP, Keep.START, [0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 6], [1]),
        (Overlong.SPLIT, Keep.START, [0, 0, 0, 0, 0, 0], [5, 9, 0, 0, 0, 6], []),
        (Overlong.ERROR, Keep.START, [0, 0, 0, 0, 0, 0], [5, 9, 0, 0, 0, 6], []),
    ],
)
def test_rows_of_six(
    overlong: Overlong, keep: Keep, starts: list[int], lengths: list[int], left_out: list[int]
) -> None:
    kept = decide(ROWS, 6, overlong, keep)
    assert kept.starts.tolist() == starts
    assert kept.lengths.tolist() == lengths
    assert np.flatnonzero(kept.overlong).tolist() == left_out
    assert np.flatnonzero(kept.untrained).tolist() == [3, 4]
    assert np.flatnonzero(kept.empty).tolist() == [2]


def test_untrained_may_stay() -> None:
    kept = decide(ROWS, 6, keep_untrained=True)
    assert kept.lengths.tolist() == [5, 6, 0, 4, 6, 6]
    assert not kept.untrained.any()


def test_untrained_is_told_before_overlong() -> None:
    """A document has one reason only: its tokens must not be counted twice."""
    kept = decide([(9, 0), (9, 1)], 6, Overlong.DROP)
    assert kept.untrained.tolist() == [True, False]
    assert kept.overlong.tolist() == [False, True]


def test_what_truncation_leaves_without_a_label_is_left_out() -> None:
    """All its labels lie in what is cut off: a row of such documents alone would have no loss at all."""
    rows = [(9, 1), (9, 0), (2, 1)]
    kept = decide(rows, 2, kept_labels=0)
    assert kept.lengths.tolist() == [0, 0, 0]
    assert kept.cut_untrained.tolist() == [True, False, True]
    assert kept.untrained.tolist() == [False, True, False], "tested on the whole document, and told apart"
    assert decide(rows, 2, kept_labels=0, keep_untrained=True).lengths.tolist() == [2, 2, 2]
    assert not decide(rows, 2, Overlong.SPLIT, kept_labels=0).cut_untrained.any(), "nothing is cut off"


@given(documents, st.integers(2, 20), st.sampled_from(Overlong), st.sampled_from(Keep), st.booleans())
def test_one_outcome_each(
    rows: list[tuple[int, int]], max_length: int, overlong: Overlong, keep: Keep, keep_untrained: bool
) -> None:
    kept = decide(rows, max_length, overlong, keep, keep_untrained)
    assert kept.starts.dtype == kept.lengths.dtype == np.int32
    for index, (length, trainable) in enumerate(rows):
        start, size = int(kept.starts[index]), int(kept.lengths[index])
        assert 0 <= start <= start + size <= length
        assert not kept.cut_untrained[index]
        reasons = [bool(flags[index]) for flags in (kept.untrained, kept.overlong, kept.empty)]
        assert sum(reasons) + (size > 0) == 1
        assert reasons == [
            length > 0 and trainable == 0 and not keep_untrained,
            overlong is Overlong.DROP and length > max_length and (trainable > 0 or keep_untrained),
            length == 0,
        ]
        if size == 0:
            continue
        if overlong is Overlong.TRUNCATE:
            assert size == min(length, max_length)
            assert start == (length - size if keep is Keep.END else 0)
        else:
            assert (start, size) == (0, length)
            assert overlong is not Overlong.DROP or length <= max_length


def test_given_lengths_are_not_changed() -> None:
    lengths, trainable = np.array([9, 3], np.int32), np.array([1, 0], np.int32)
    truncate(lengths, trainable, trainable, 4, Overlong.TRUNCATE, Keep.END, False)
    assert lengths.tolist() == [9, 3]
    assert trainable.tolist() == [1, 0]
