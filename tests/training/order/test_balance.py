"""Grouping: which rows are next to each other, what it saves, and whether it is worth it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.flops import ModelShape
from packtrain.schemas.ragged import sums_of
from packtrain.stages.pack.plan import plan_rows
from packtrain.training.order.balance import GROUP, IDLE, SAMPLE, Balance, choose_balance, grouped, slowest
from packtrain.training.order.permutation import Permutation, epoch_key

ONE_BILLION = ModelShape(parameters=1.24e9, layers=16, hidden=2048)


def blocks_of(costs: NDArray[np.float64], balance: Balance | None) -> NDArray[np.float64]:
    """(N,) the costs of rows 0 .. N - 1 in the order that a loader would give them."""
    if balance is None:
        return costs
    rows = np.arange(len(costs))
    cuts = range(0, len(rows), balance.block)
    parts = [rows[cut : cut + balance.block] for cut in cuts]
    order = np.concatenate([grouped(part, costs[part], balance, 77 + n) for n, part in enumerate(parts)])
    return np.asarray(costs[order])


def test_groups_of_two_by_eye() -> None:
    rows = np.array([10, 11, 12, 13, 14, 15])
    costs = np.array([5.0, 1, 4, 2, 6, 3])
    found = grouped(rows, costs, Balance(6, 2), key=1)
    pairs = {frozenset(pair) for pair in found.reshape(3, 2).tolist()}
    assert pairs == {frozenset({11, 13}), frozenset({15, 12}), frozenset({10, 14})}
    # Pinned: another order would send every resumed training somewhere else.
    assert found.tolist() == [14, 10, 11, 13, 15, 12]
    assert rows.tolist() == [10, 11, 12, 13, 14, 15], "the caller's array is left alone"


def test_rows_of_no_whole_group_keep_their_places() -> None:
    rows = np.arange(100, 109)
    costs = np.array([99.0, 5, 1, 4, 2, 98, 97, 96, 95])
    # Position 7 is the last of a group of four; the next one ends before position 12, and one more before 16.
    found = grouped(rows, costs, Balance(16, 4), key=3, first=7).tolist()
    assert found[0] == 100
    assert {frozenset(found[1:5]), frozenset(found[5:9])} == {frozenset({101, 102, 103, 104}), frozenset(rows[5:])}
    assert grouped(rows, costs, Balance(16, 4), key=3, first=1).tolist()[7:] == [107, 108]
    # Less than two whole groups: nothing to do.
    assert grouped(rows[:7], costs[:7], Balance(16, 4), key=3).tolist() == rows[:7].tolist()
    assert grouped(rows[:0], costs[:0], Balance(16, 4), key=3, first=5).tolist() == []


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=120),
    st.integers(1, 10),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_a_block_keeps_its_rows_and_groups_do_not_overlap(values: list[int], size: int, key: int, first: int) -> None:
    rows, costs = np.arange(len(values)) * 3 + 7, np.array(values, dtype=np.float64)
    found = grouped(rows, costs, Balance(size * 120, size), key, first)
    assert sorted(found.tolist()) == rows.tolist()
    assert found.tolist() == grouped(rows, costs, Balance(size * 120, size), key, first).tolist()
    begin = -first % size
    whole = max(len(rows) - begin, 0) // size
    if whole < 2:
        assert found.tolist() == rows.tolist()
        return
    end = begin + whole * size
    assert found[:begin].tolist() == rows[:begin].tolist()
    assert found[end:].tolist() == rows[end:].tolist()
    groups = costs[(found[begin:end] - 7) // 3].reshape(whole, size)
    groups = groups[np.lexsort((groups.max(axis=1), groups.min(axis=1)))]
    assert (groups[:-1].max(axis=1) <= groups[1:].min(axis=1)).all()


def test_neither_groups_nor_rows_within_them_stand_in_the_order_of_cost() -> None:
    rows, costs = np.arange(64), np.arange(64.0)
    found = np.array([grouped(rows, costs, Balance(64, 8), epoch_key(0, n, "groups")) for n in range(800)])
    dearest_group, dearest_row = np.divmod(found.argmax(axis=1), 8)
    for places in (dearest_group, dearest_row):
        counts = np.bincount(places, minlength=8)
        assert counts.min() > 60, counts  # 100 are expected
        assert counts.max() < 140, counts


def test_slowest_by_eye() -> None:
    assert slowest(np.array([1.0, 3, 2, 2, 9]), 2) == pytest.approx([1.5, 1])
    assert slowest(np.array([1.0, 1, 3, 3]), 2, 2, dealt=False) == pytest.approx([1.5])
    assert slowest(np.array([1.0, 1, 3, 3]), 2, 2).tolist() == [1]
    assert slowest(np.zeros(4), 2).tolist() == [1, 1]
    assert slowest(np.array([1.0]), 2).tolist() == []


def packed_costs(capacity: int, rows: int, seed: int) -> NDArray[np.float64]:
    """(rows,) of rows packed from long-tailed lengths, permuted."""
    random = np.random.default_rng(seed)
    number = rows * capacity // 800
    lengths = np.where(random.random(number) < 0.03, 4096 * random.random(number) ** (-1 / 0.8), 0)
    lengths = np.maximum(lengths, np.exp(random.normal(np.log(600), 1.2, number))).clip(1, capacity).astype(np.int32)
    plan = plan_rows(lengths, capacity, "bfd")
    lengths = plan.lengths.astype(np.int64)
    costs = ONE_BILLION.weigh(sums_of(lengths, plan.row_offsets), sums_of(lengths**2, plan.row_offsets))
    assert plan.rows >= rows, "the lengths fill fewer rows than were asked for"
    return costs[Permutation(plan.rows, seed)(np.arange(rows))]


@pytest.mark.parametrize("capacity", [2048, 8192, 32768, 131072])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_goals_hold_on_rows_that_the_choice_has_not_seen(capacity: int, seed: int) -> None:
    costs = packed_costs(capacity, 3 * SAMPLE, seed)
    choice = choose_balance(costs[:SAMPLE])
    rest = blocks_of(costs[SAMPLE:], choice.balance)
    assert slowest(rest, GROUP).mean() <= 1.2
    assert slowest(rest, GROUP, 8).mean() <= 1.05
    assert slowest(rest, GROUP).mean() == pytest.approx(choice.balanced, rel=0.05)
    if capacity == 2048:
        assert choice.balance is None
        assert choice.plain <= IDLE
    if capacity == 131072:
        assert slowest(costs, GROUP).mean() > 2, "or there was nothing to gain"


def test_rare_dear_rows_get_a_larger_block() -> None:
    """One row in 64 costs four times the others. A block of 512 has 8 of them: their step waits for 3 of its rows."""
    costs = np.ones(SAMPLE)
    costs[np.random.default_rng(0).permutation(SAMPLE)[: SAMPLE // 64]] = 4.0
    assert slowest(blocks_of(costs, Balance(512)), GROUP).mean() > 1.15
    choice = choose_balance(costs)
    assert choice.balance is not None
    assert choice.balance.block > 512
    assert choice.balanced <= 1.1 < choice.plain
    assert slowest(blocks_of(costs, choice.balance), GROUP).mean() == pytest.approx(choice.balanced, rel=0.02)


def test_the_smallest_block_that_will_do_is_taken() -> None:
    costs = packed_costs(16384, SAMPLE, 2)
    choice = choose_balance(costs)
    assert choice.balance == Balance(128)
    assert choice.balanced == pytest.approx(slowest(blocks_of(costs, Balance(128)), GROUP).mean(), rel=0.02)


@given(st.floats(0, 1e12), st.integers(0, 700))
def test_rows_of_equal_cost_are_not_grouped(cost: float, rows: int) -> None:
    choice = choose_balance(np.full(rows, cost))
    assert choice.balance is None
    assert (choice.plain, choice.balanced) == (1, 1)


def test_too_few_rows_to_tell() -> None:
    choice = choose_balance(np.arange(255.0))
    assert choice.balance is None
    assert str(choice) == "255 rows are too few to group by cost for 64 ranks"
    assert choose_balance(np.tile([1.0, 3.0], 128)).balance == Balance(128)


def test_a_choice_says_what_it_gains() -> None:
    costs = np.tile([1.0, 3.0], 512)
    choice = choose_balance(costs)
    assert str(choice) == (
        "64 ranks, one row each: the slowest takes 1.50 x the mean in plain order, "
        "1.00 x with rows grouped by cost in blocks of 128"
    )
    assert str(choose_balance(np.ones(512))) == (
        "64 ranks, one row each: the slowest takes 1.00 x the mean in plain order, so rows are not grouped by cost"
    )


def test_the_choice_depends_on_the_costs_alone() -> None:
    costs = packed_costs(65536, 1024, 3)
    assert choose_balance(costs) == choose_balance(costs.copy())
    assert choose_balance(costs * 1.7).balance == choose_balance(costs).balance
    for_eight = choose_balance(costs, group=8)
    assert for_eight.balance is not None
    assert (for_eight.ranks, for_eight.balance.group) == (8, 8)


@pytest.mark.parametrize(("block", "group"), [(0, 1), (4, 0), (10, 4), (2, 4)])
def test_blocks_are_whole_groups(block: int, group: int) -> None:
    with pytest.raises(ValueError, match="must be a multiple"):
        Balance(block, group)
