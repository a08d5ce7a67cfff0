"""`tight` needs at most the rows of `bfd`, its bound at most the fewest rows of any plan, and both hold every piece."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.pack.best_fit import best_fit_decreasing
from packtrain.stages.pack.bin_slack import Work, fill_spaces, minimum_bin_slack
from packtrain.stages.pack.bounds import least_rows, martello_toth, size_counts
from packtrain.stages.pack.dual_bounds import dual_bound
from packtrain.stages.pack.limited import limited_bound
from packtrain.stages.pack.plan import plan_rows
from packtrain.stages.pack.tight import tight_rows

from tests.support.examples import examples


def fewest_rows(sizes: list[int], capacity: int, max_docs: int | None = None) -> int:
    """The optimum, by trying everything: the largest piece left into each different row, or into a new one."""
    sizes = sorted(sizes, reverse=True)
    best = len(sizes)

    def search(at: int, rows: tuple[tuple[int, int], ...]) -> None:
        nonlocal best
        if len(rows) >= best:
            return
        if at == len(sizes):
            best = len(rows)
            return
        for row in dict.fromkeys(rows):
            space, held = row
            if space >= sizes[at] and (max_docs is None or held < max_docs):
                others = list(rows)
                others.remove(row)
                search(at + 1, tuple(sorted([*others, (space - sizes[at], held + 1)])))
        search(at + 1, tuple(sorted([*rows, (capacity - sizes[at], 1)])))

    search(0, ())
    return best


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> tuple[list[int], int]:
    """Few sizes and a capacity; often near a half or a third of it, where packing is hard."""
    capacity = draw(st.sampled_from([5, 10, 12, 30, 99, 100, 1000, 5000]))
    near = st.sampled_from([capacity // 2, capacity // 3, capacity // 4, capacity - 1])
    wide = st.integers(1, capacity)
    close = st.builds(lambda middle, off: min(capacity, max(1, middle + off)), near, st.integers(-3, 3))
    return draw(st.lists(st.one_of(wide, close), min_size=1, max_size=most)), capacity


@examples(300)
@given(problems())
def test_the_bound_is_never_above_the_optimum(problem: tuple[list[int], int]) -> None:
    sizes, capacity = problem
    counts = size_counts(np.array(sizes), capacity)
    bound = dual_bound(counts, enough=len(sizes) + 1)
    optimum = fewest_rows(sizes, capacity)
    assert max(martello_toth(counts, capacity), least_rows(sum(sizes), capacity)) <= bound.rows <= optimum
    certificate = plan_rows(sizes, capacity, "tight").certificate
    assert bound.rows <= certificate.bound <= optimum <= certificate.rows <= plan_rows(sizes, capacity).certificate.rows


@examples(200)
@given(problems(6))
def test_no_row_is_worth_more_than_a_full_one(problem: tuple[list[int], int]) -> None:
    """The function itself is dual feasible: over every subset of the sizes that fits into a row."""
    sizes, capacity = problem
    bound = dual_bound(size_counts(np.array(sizes), capacity), enough=len(sizes) + 1)
    for chosen in range(1 << len(sizes)):
        row = [size for index, size in enumerate(sizes) if chosen >> index & 1]
        if sum(row) <= capacity:
            assert sum(int(bound.values[size]) for size in row) <= bound.full


def test_bounds_beyond_tokens_and_halves() -> None:
    # Five of 4 in rows of 10: two fit a row, so three rows, though 20 tokens would fit two and none is above a half.
    assert martello_toth(size_counts(np.array([4] * 5), 10), 10) == 2
    assert dual_bound(size_counts(np.array([4] * 5), 10), 5).rows == 3
    # Seven of 26 in rows of 100: three fit.
    found = dual_bound(size_counts(np.array([26] * 7), 100), 7)
    assert (found.rows, found.bound_by) == (3, "u(3)")


def test_fewer_rows_than_best_fit_decreasing() -> None:
    # Best fit puts the 4 beside the 5, and then no row can be filled.
    sizes = [5, 4, 4, 3, 2, 2]
    assert plan_rows(sizes, 10).rows == 3
    plan = plan_rows(sizes, 10, "tight")
    assert (plan.rows, plan.certificate.bound, plan.certificate.optimal) == (2, 2, True)
    rows = [sorted(plan.lengths[a:b].tolist()) for a, b in zip(plan.row_offsets, plan.row_offsets[1:], strict=False)]
    assert sorted(rows) == [[2, 3, 5], [2, 4, 4]]
    assert not plan_rows(sizes, 10).certificate.optimal


@examples(150)
@given(problems(60), st.booleans(), st.integers(0, 400))
def test_every_size_is_placed_once(problem: tuple[list[int], int], apart: bool, work: int) -> None:
    sizes, capacity = problem
    counts = size_counts(np.array(sizes), capacity)
    floor = capacity // 3
    low = counts.copy()
    low[floor:] = 0
    begun = minimum_bin_slack(counts - low, Work(work), apart=apart)
    rows, left = fill_spaces(begun, low)
    rows += minimum_bin_slack(left, Work(work), apart=apart)
    held = np.zeros_like(counts)
    for pattern, number in rows:
        assert sum(size * many for size, many in pattern.items()) <= capacity
        for size, many in pattern.items():
            held[size] += many * number
    assert held.tolist() == counts.tolist()


@examples(100)
@given(problems(60), st.sampled_from([0, 300, 20_000]))
def test_pieces_in_rows_and_never_more_rows(problem: tuple[list[int], int], work: int) -> None:
    given_sizes, capacity = problem
    sizes = np.array(given_sizes, dtype=np.int32)
    counts = size_counts(sizes, capacity)
    placement, bound = tight_rows(sizes, counts, work=work)
    assert sorted(placement.order.tolist()) == list(range(len(sizes)))
    assert np.add.reduceat(sizes[placement.order], placement.row_offsets[:-1]).max() <= capacity
    rows = len(placement.row_offsets) - 1
    assert bound.rows <= rows <= len(best_fit_decreasing(sizes, counts).row_offsets) - 1
    again, _ = tight_rows(sizes, counts, work=work)
    assert again.order.tolist() == placement.order.tolist()


@pytest.mark.parametrize(("mean", "capacity"), [(300, 1024), (600, 2048), (900, 4096)])
def test_reaches_the_bound_where_best_fit_does_not(mean: int, capacity: int) -> None:
    """Lognormal documents of about three to a row."""
    random = np.random.default_rng(mean)
    lengths = np.clip(np.exp(random.standard_normal(1500) * 0.6 + np.log(mean)), 1, capacity).astype(np.int64)
    plain, tight = plan_rows(lengths, capacity).certificate, plan_rows(lengths, capacity, "tight").certificate
    assert tight.optimal
    assert tight.rows < plain.rows
    assert tight.bound >= plain.bound
    assert tight.bound_by


def test_sizes_that_are_nearly_all_different() -> None:
    """A quarter to a half of a long row. Two thirds of them fill rows in threes, a third in pairs: 7 rows for 18."""
    lengths = np.random.default_rng(1).integers(32_768, 65_536, 1800)
    plan = plan_rows(lengths, 131_072, "tight").certificate
    assert 695 < plan.bound <= plan.rows < 710  # 680 rows would hold the tokens
    assert plan_rows(lengths, 131_072).certificate.rows > 735


def plain_greedy(sizes: list[int], capacity: int, max_docs: int) -> int:
    """Rows if the largest goes first, into the emptiest row that has room for one more."""
    rows: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        open_rows = [row for row in rows if len(row) < max_docs]
        emptiest = min(open_rows, key=sum, default=None)
        if emptiest is not None and sum(emptiest) + size <= capacity:
            emptiest.append(size)
        else:
            rows.append([size])
    return len(rows)


@examples(250)
@given(problems(), st.integers(1, 4))
def test_the_limited_bound_is_never_above_the_optimum(problem: tuple[list[int], int], max_docs: int) -> None:
    sizes, capacity = problem
    optimum = fewest_rows(sizes, capacity, max_docs)
    bound = limited_bound(size_counts(np.array(sizes), capacity), max_docs)
    assert least_rows(len(sizes), max_docs) <= bound <= optimum
    certificate = plan_rows(sizes, capacity, "tight", max_docs=max_docs).certificate
    assert bound <= certificate.bound <= optimum <= certificate.rows
    if max_docs == 2:
        assert certificate.bound == optimum == certificate.rows


@examples(150)
@given(problems(60), st.integers(1, 9), st.sampled_from([0, 300, 100_000]))
def test_at_most_so_many_pieces_in_a_row(problem: tuple[list[int], int], max_docs: int, work: int) -> None:
    given_sizes, capacity = problem
    sizes = np.array(given_sizes, dtype=np.int32)
    counts = size_counts(sizes, capacity)
    placement, bound = tight_rows(sizes, counts, max_docs, work)
    assert sorted(placement.order.tolist()) == list(range(len(sizes)))
    assert np.diff(placement.row_offsets).max() <= max_docs
    assert np.add.reduceat(sizes[placement.order], placement.row_offsets[:-1]).max() <= capacity
    rows = len(placement.row_offsets) - 1
    assert bound.rows <= rows <= len(best_fit_decreasing(sizes, counts, max_docs).row_offsets) - 1
    assert rows <= plain_greedy(given_sizes, capacity, max_docs)


def test_large_pieces_leave_no_room_for_as_many_as_may_be() -> None:
    # Ten of 9 in rows of 10 are alone; thirty of 2 are at most three to a row. Together 40 pieces would fit 14 rows.
    counts = size_counts(np.array([9] * 10 + [2] * 30), 10)
    assert (least_rows(40, 3), limited_bound(counts, 3)) == (14, 20)
    certificate = plan_rows([9] * 10 + [2] * 30, 10, "tight", max_docs=3).certificate
    assert (certificate.rows, certificate.bound, certificate.bound_by) == (20, 20, "max_docs")


def test_a_limit_on_documents_that_best_fit_handles_badly() -> None:
    """Lognormal documents of which three fit a row, at most four to a row, in exact and in rounded units."""
    random = np.random.default_rng(4)
    for number, capacity in ((2000, 4096), (60_000, 32_768)):
        lengths = np.clip(np.exp(random.standard_normal(number) + np.log(0.2 * capacity)), 1, capacity).astype(int)
        plain = plan_rows(lengths, capacity, max_docs=4).certificate
        tight = plan_rows(lengths, capacity, "tight", max_docs=4).certificate
        assert plain.gap > 0.05
        assert tight.gap < 0.015


@pytest.mark.slow
def test_very_long_rows_take_no_more_work() -> None:
    """What one row costs grows with its capacity; how much is searched does not, or 2**24 tokens would take minutes."""
    seconds = []
    for capacity in (2**17, 2**22):
        lengths = np.random.default_rng(3).integers(capacity // 5, capacity // 2, 20_000)
        begin = time.process_time()
        certificate = plan_rows(lengths, capacity, "tight").certificate
        seconds.append(time.process_time() - begin)
        assert certificate.rows <= plan_rows(lengths, capacity).certificate.rows
    assert seconds[1] < 3 * seconds[0]  # about as much; six times without the limit


@pytest.mark.parametrize("capacity", [2, 3, 64])
@pytest.mark.parametrize("keys", [{}, {"max_docs": 1}, {"max_docs": 2}, {"max_docs": 5}])
def test_lengths_that_leave_nothing_to_choose(capacity: int, keys: dict[str, int]) -> None:
    """All alike: none, empty, one token, half a row and one more, whole rows, longer than rows."""
    for lengths in (
        [],
        [0, 0],
        *([size] * 100 for size in (1, capacity // 2, capacity // 2 + 1, capacity, 3 * capacity)),
    ):
        plan = plan_rows(lengths, capacity, "tight", **keys)
        longest = min(max(lengths, default=0), capacity)
        each = min(capacity // longest, keys.get("max_docs", capacity)) if longest else 1
        assert len(plan.row_offsets) - 1 == -(-sum(one > 0 for one in lengths) // each)
        assert plan.certificate.optimal
        assert sorted(plan.order.tolist()) == [number for number, one in enumerate(lengths) if one]
