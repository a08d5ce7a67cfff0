"""Prices give bounds that hold whatever they are, and diving keeps every piece and never needs more rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.pack.best_fit import best_fit_decreasing
from packtrain.stages.pack.bin_slack import Work
from packtrain.stages.pack.bounds import size_counts
from packtrain.stages.pack.column_generation import improved
from packtrain.stages.pack.dual_bounds import dual_bound
from packtrain.stages.pack.knapsack import Knapsack
from packtrain.stages.pack.master_problem import Master
from packtrain.stages.pack.plan import plan_rows
from packtrain.stages.pack.price_knots import Knots
from packtrain.stages.pack.reduction import full_pairs, reduced
from packtrain.stages.pack.relaxation import Relaxation
from packtrain.stages.pack.rows import Rows
from packtrain.stages.pack.tight import tight_rows

from tests.stages.pack.test_tight import fewest_rows, problems
from tests.support.examples import examples


def best_rows(sizes: list[int], capacity: int) -> Rows:
    array = np.array(sizes)
    placement = best_fit_decreasing(array, size_counts(array, capacity))
    return Rows(array[placement.order], placement.row_offsets)


@examples(200)
@given(problems(7), st.lists(st.integers(0, 50), min_size=7, max_size=7), st.sampled_from([8_000_000, 60, 20]))
def test_no_row_is_worth_more_than_the_best(problem: tuple[list[int], int], drawn: list[int], cells: int) -> None:
    """For any prices: the best of all subsets that fit, exactly; with a small table at least that."""
    sizes, capacity = problem
    counts = size_counts(np.array(sizes), capacity)
    present = np.flatnonzero(counts)
    prices = np.array(drawn[: len(present)])
    value = dict(zip(present.tolist(), prices.tolist(), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtrain.stages.pack.knapsack.CELLS", cells)
        table = Knapsack(present, counts[present], prices, capacity, Work(0))
    chosen = ([s for i, s in enumerate(sizes) if mask >> i & 1] for mask in range(1 << len(sizes)))
    most = max(sum(value[size] for size in row) for row in chosen if sum(row) <= capacity)
    assert table.best == most if cells == 8_000_000 else table.best >= most
    for row in table.patterns(10, Work(0)):
        held = Counter({int(present[index]): number for index, number in row.items()})
        assert held <= Counter(sizes)
        assert sum(size * number for size, number in held.items()) <= capacity


@examples(200)
@given(problems(), st.sampled_from([3_000, 100_000, 10_000_000]))
def test_bound_and_rows_beside_the_optimum(problem: tuple[list[int], int], work: int) -> None:
    sizes, capacity = problem
    rows, optimum = best_rows(sizes, capacity), fewest_rows(sizes, capacity)
    start = dual_bound(size_counts(np.array(sizes), capacity), len(rows))
    found, bound = improved(rows, start, capacity, Work(work))
    assert start.rows <= bound.rows <= optimum <= len(found) <= len(rows)
    assert sorted(found.sizes.tolist()) == sorted(sizes)
    assert np.add.reduceat(found.sizes, found.offsets[:-1]).max() <= capacity


@examples(150)
@given(problems(8))
def test_some_optimum_has_all_full_pairs(problem: tuple[list[int], int]) -> None:
    sizes, capacity = problem
    pairs, left = full_pairs(size_counts(np.array(sizes), capacity))
    rest = np.repeat(np.arange(capacity + 1), left).tolist()
    assert sorted([*pairs.sizes.tolist(), *rest]) == sorted(sizes)
    assert (pairs.sizes.reshape(-1, 2).sum(axis=1) == capacity).all()
    assert len(pairs) + (fewest_rows(rest, capacity) if rest else 0) == fewest_rows(sizes, capacity)


def test_full_pairs_of_a_few() -> None:
    pairs, left = full_pairs(size_counts(np.array([7, 7, 3, 5, 5, 5, 2]), 10))
    assert pairs.sizes.tolist() == [7, 3, 5, 5]
    assert np.flatnonzero(left).tolist() == [2, 5, 7]


def three_halves(work: int) -> Master:
    """Three sizes of one piece each, of which any two fit; the last constraint has prices of half a row each."""
    master = Master(np.array([1.0, 1, 1, 1.5]), np.array([1.0, 1, 1, 0.5]))
    sizes, numbers = np.array([[0, 1, 3], [0, 2, 3], [1, 2, 3]]), np.ones((3, 3))
    master.add((np.arange(4) * 3, sizes.ravel(), numbers.ravel()))
    master.solve(Work(work))
    return master


def test_the_relaxation_of_three_halves() -> None:
    """Each pair is used half, so 1.5 rows, which any prices of the optimum add up to."""
    master = three_halves(1_000_000)
    assert master.solved
    assert master.rows == pytest.approx(1.5)
    assert float((master.prices * [1, 1, 1, 1.5]).sum()) == pytest.approx(1.5)
    assert sorted(often for often, _ in master.used()) == pytest.approx([0.5, 0.5, 0.5])
    master = three_halves(0)
    assert (master.solved, master.rows) == (False, 6)


def test_prices_between_knots() -> None:
    """Knots at 9, 5 and 1: size 6 counts as a quarter 9 and three quarters 5, beside half of its base price."""
    sizes = np.array([9, 6, 5, 2, 1])
    knots = Knots.among(sizes, np.array([2]), np.full(5, 0.5))
    assert knots.at.tolist() == [0, 2, 4]
    assert knots.at_sizes(np.array([0.9, 0.5, 0.1, 1.0])).tolist() == pytest.approx([1.4, 1.1, 1.0, 0.7, 0.6])
    assert knots.shared(np.array([1, 2, 0, 4, 0])).tolist() == pytest.approx([1.5, 2.5, 3, 3.5])
    offsets, index, held = knots.columns([((1, 1), (3, 2)), ((0, 1),)])
    assert (offsets.tolist(), index.tolist()) == ([0, 4, 6], [0, 1, 2, 3, 0, 3])
    assert held.tolist() == pytest.approx([0.25, 1.25, 1.5, 1.5, 1, 0.5])
    # All of size 6 is left and none of size 2 is: a price for 6 would change more.
    assert knots.with_more(np.array([0, 2.0, 0, -1, 0]), 1).tolist() == [0, 1, 2, 4]
    assert knots.with_more(np.zeros(5), 1).tolist() == [0, 2, 4]


@examples(200)
@given(problems(9))
def test_some_optimum_has_the_fixed_rows(problem: tuple[list[int], int]) -> None:
    sizes, capacity = problem
    fixed, left = reduced(size_counts(np.array(sizes), capacity), Work(100_000))
    rest = np.repeat(np.arange(capacity + 1), left).tolist()
    assert sorted([*fixed.sizes.tolist(), *rest]) == sorted(sizes)
    assert not len(fixed) or np.add.reduceat(fixed.sizes, fixed.offsets[:-1]).max() <= capacity
    assert len(fixed) + (fewest_rows(rest, capacity) if rest else 0) == fewest_rows(sizes, capacity)


def test_rows_that_are_fixed() -> None:
    """Nothing fits beside 10. One piece fits beside 8, so the largest: 2. Beside 6, 4 is at least 2 and 1 together."""
    fixed, left = reduced(size_counts(np.array([10, 8, 6, 4, 2, 1]), 10), Work(100_000))
    rows = [fixed.sizes[a:b].tolist() for a, b in zip(fixed.offsets, fixed.offsets[1:], strict=False)]
    assert sorted(rows) == [[6, 4], [8, 2], [10]]
    assert np.flatnonzero(left).tolist() == [1]
    # 3 and 3 together are more than the 5 that fits beside 9 in rows of 15.
    fixed, left = reduced(size_counts(np.array([9, 5, 3, 3]), 15), Work(100_000))
    assert len(fixed) == 0


@examples(100)
@given(problems(9), st.integers(2, 4), st.sampled_from([3_000, 1_000_000]))
def test_few_knots_give_a_bound(problem: tuple[list[int], int], knots: int, work: int) -> None:
    sizes, capacity = problem
    counts = size_counts(np.array(sizes), capacity)
    relaxed = Relaxation(counts, [[size] for size in sizes], dual_bound(counts, len(sizes)), knots)
    relaxed.solve(50, 100, len(sizes) + 1, Work(work))
    assert relaxed.bound.rows <= fewest_rows(sizes, capacity)
    assert relaxed.lacks >= 0


def test_prices_prove_what_fixed_functions_do_not() -> None:
    """Uniform lengths, about two to a row: no function of the fixed families reaches the optimum, prices do."""
    lengths = np.random.default_rng([2000, 1024]).integers(1, 1025, 2000)
    certificate = plan_rows(lengths, 1024, "tight").certificate
    assert (plan_rows(lengths, 1024).rows, certificate.rows, certificate.bound) == (1003, 1001, 1001)
    assert certificate.bound_by == "prices"
    assert dual_bound(size_counts(lengths, 1024), 1003).rows == 999


def test_the_same_sizes_give_the_same_rows_in_any_order() -> None:
    random = np.random.default_rng(3)
    lengths = random.integers(1, 4097, 400)
    plans = []
    for one in (lengths, random.permutation(lengths)):
        placement, bound = tight_rows(one, size_counts(one, 4096))
        plans.append((one[placement.order].tolist(), placement.row_offsets.tolist(), bound.rows, bound.bound_by))
    assert plans[0] == plans[1]
