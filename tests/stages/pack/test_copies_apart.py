"""Copies stand in different rows where few more rows allow it; `tight` keeps apart what it can in these rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.layout import LayoutPlan
from packtrain.stages.pack.plan_rows import plan_rows

from tests.support.examples import examples


def together(plan: LayoutPlan, same: NDArray[np.int64]) -> int:
    """Further copies of documents in one row."""
    row = np.repeat(np.arange(plan.rows), np.diff(plan.row_offsets))
    pairs = Counter(zip(row.tolist(), same[plan.order].tolist(), strict=True))
    return sum(number - 1 for number in pairs.values())


def copied(lengths: NDArray[np.int64], copies: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lengths of all copies, one pass after another, and (N,) the document of each."""
    of = np.array([number for turn in range(max(copies)) for number, often in enumerate(copies) if often > turn])
    return lengths[of], of


@examples(200)
@given(st.data(), st.none() | st.integers(1, 6))
def test_rows_stay_few_and_nothing_is_worse(data: st.DataObject, max_docs: int | None) -> None:
    capacity = data.draw(st.sampled_from([10, 30, 100]))
    size = st.one_of(st.integers(1, capacity), st.integers(1, 4))
    documents = data.draw(st.lists(st.tuples(size, st.integers(1, 5)), min_size=1, max_size=25))
    lengths, of = copied(np.array([one for one, _ in documents]), [often for _, often in documents])
    plain = plan_rows(lengths, capacity, "tight", max_docs=max_docs)
    apart = plan_rows(lengths, capacity, "tight", max_docs=max_docs, same=of)
    assert sorted(apart.order.tolist()) == list(range(len(lengths)))
    assert np.add.reduceat(apart.lengths, apart.row_offsets[:-1]).max() <= capacity
    assert max_docs is None or np.diff(apart.row_offsets).max() <= max_docs
    assert apart.rows <= plain.rows + max(1, plain.rows // 100)
    assert together(apart, of) <= together(plain, of)
    best_fit = plan_rows(lengths, capacity, max_docs=max_docs, same=of)
    if not together(best_fit, of) and best_fit.rows <= plain.rows + max(1, plain.rows // 100):
        assert not together(apart, of)
        assert apart.rows <= best_fit.rows


@examples(200)
@given(st.integers(2, 5), st.integers(1, 12), st.data())
def test_pieces_of_one_size_stand_together_only_where_copies_outnumber_rows(
    each: int, rows: int, data: st.DataObject
) -> None:
    """`rows` full rows of `each` equal pieces: by dealing documents round, only more copies than rows meet."""
    copies, left = list[int](), each * rows
    while left:
        copies.append(data.draw(st.integers(1, min(left, rows + 2))))
        left -= copies[-1]
    lengths, of = copied(np.full(len(copies), 7), copies)
    plan = plan_rows(lengths, 7 * each, "tight", same=of)
    assert together(plan, of) <= sum(max(0, often - rows) for often in copies)


@pytest.mark.parametrize(
    ("number", "often", "capacity", "mean", "most"),
    [(620, 3, 4096, 400, 0.02), (620, 3, 8192, 800, 0.02), (200, 10, 4096, 400, 0.1), (100, 4, 1024, 200, 0.1)],
)
def test_it_does_not_give_up_all_at_once(number: int, often: int, capacity: int, mean: int, most: float) -> None:
    """Lognormal documents of which keeping all copies apart can cost too many rows: then few stand together."""
    for seed in range(4):
        drawn = np.exp(np.random.default_rng(seed).standard_normal(number) + np.log(mean) - 0.5)
        lengths, of = copied(np.clip(drawn, 1, capacity).astype(np.int64), [often] * number)
        plain = plan_rows(lengths, capacity, "tight")
        apart = plan_rows(lengths, capacity, "tight", same=of)
        assert together(plain, of) > 0.25 * number
        assert together(apart, of) <= most * number * (often - 1)
        assert apart.rows <= plain.rows + max(1, plain.rows // 100)
