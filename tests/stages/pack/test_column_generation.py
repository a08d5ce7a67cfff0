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


def three_pairs(work: int) -> Master:
    """Two pieces of each of three sizes, of which two fit into a row, but not two of the largest."""
    master = Master(np.array([2, 2, 2]))
    master.add([((1, 1),), ((2, 1),), ((0, 1), (1, 1)), ((0, 1), (2, 1)), ((1, 1), (2, 1)), ((1, 2),)])
    master.solve(Work(work))
    return master


def test_the_relaxation_of_three_pairs() -> None:
    """Six pieces, two to a row."""
    master = three_pairs(1_000_000)
    assert master.solved
    assert master.rows == pytest.approx(3)
    assert master.prices.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert sum(often for often, _ in master.used()) == pytest.approx(3)
    assert (master.reduced() > -1e-6).all()
    master = three_pairs(0)
    assert (master.solved, master.rows, master.used()) == (False, 6, [(6, 0)])


def test_prices_fall_in_steps() -> None:
    """One piece of each of five sizes: the largest alone, the next with the smallest, the others together."""
    master = Master(np.array([1, 1, 1, 1, 1]))
    master.add([((1, 1), (4, 1)), ((2, 1), (3, 1))])
    master.solve(Work(1_000_000))
    assert master.rows == pytest.approx(3)
    prices = master.prices
    assert (np.diff(prices) <= 1e-9).all()
    assert prices.sum() == pytest.approx(3)
    # A pattern that is better changes the prices: two of its rows hold all five.
    master.add([((0, 1), (3, 1), (4, 1)), ((1, 1), (2, 1))])
    assert not master.solved
    master.solve(Work(1_000_000))
    assert master.rows == pytest.approx(2)
    assert sorted(pattern for _, pattern in master.used()) == [3, 4]


@examples(150)
@given(problems(12), st.integers(0, 3))
def test_the_relaxation_is_an_optimum(problem: tuple[list[int], int], more: int) -> None:
    """Over any patterns: no pattern is worth more than its row, and all pieces are worth the rows that hold them."""
    sizes, capacity = problem
    counts = size_counts(np.array(sizes), capacity)
    numbers = counts[np.flatnonzero(counts)[::-1]]
    random = np.random.default_rng(len(sizes) + more)
    master = Master(numbers)
    master.add([((index, 1),) for index in range(1, len(numbers))] or [((0, 1),)])
    for _ in range(more):
        drawn = [np.unique(random.integers(0, len(numbers), 3)).tolist() for _ in range(4)]
        master.add([tuple((index, int(random.integers(1, 3))) for index in one) for one in drawn])
        master.solve(Work(1_000_000))
        assert master.solved
        assert (master.reduced() > -1e-6).all()
        assert (np.diff(master.prices) <= 1e-6).all()
        assert float((master.prices * numbers).sum()) == pytest.approx(master.rows, abs=1e-6)
        assert sum(often for often, _ in master.used()) == pytest.approx(master.rows, abs=1e-4)


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
@given(problems(9), st.sampled_from([3_000, 1_000_000]))
def test_any_work_gives_a_bound(problem: tuple[list[int], int], work: int) -> None:
    sizes, capacity = problem
    counts = size_counts(np.array(sizes), capacity)
    relaxed = Relaxation(counts, [[size] for size in sizes], dual_bound(counts, len(sizes)))
    relaxed.solve(50, len(sizes) + 1, Work(work))
    assert relaxed.bound.rows <= fewest_rows(sizes, capacity)


def test_prices_prove_what_fixed_functions_do_not() -> None:
    """Uniform lengths, about two to a row: no function of the fixed families reaches the optimum, prices do."""
    lengths = np.random.default_rng([2000, 1024]).integers(1, 1025, 2000)
    certificate = plan_rows(lengths, 1024, "tight").certificate
    assert (plan_rows(lengths, 1024).rows, certificate.rows, certificate.bound) == (1003, 1001, 1001)
    assert certificate.bound_by == "prices"
    assert dual_bound(size_counts(lengths, 1024), 1003).rows == 999


def test_prices_of_nearly_2000_different_lengths() -> None:
    """Uniform lengths, two to a row: only prices prove that best-fit-decreasing is optimal."""
    lengths = np.random.default_rng([2000, 32_768]).integers(1, 32_769, 2000)
    certificate = plan_rows(lengths, 32_768, "tight").certificate
    assert (certificate.rows, certificate.bound, certificate.bound_by) == (1005, 1005, "prices")
    assert dual_bound(size_counts(lengths, 32_768), 1005).rows == 1004


def test_the_same_sizes_give_the_same_rows_in_any_order() -> None:
    random = np.random.default_rng(3)
    lengths = random.integers(1, 4097, 400)
    plans = []
    for one in (lengths, random.permutation(lengths)):
        placement, bound = tight_rows(one, size_counts(one, 4096))
        plans.append((one[placement.order].tolist(), placement.row_offsets.tolist(), bound.rows, bound.bound_by))
    assert plans[0] == plans[1]
