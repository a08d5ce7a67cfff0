"""The order of rows: bijections pinned for ever, mixtures in proportion everywhere, groups of similar cost."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.training.order import (
    SHUFFLE_BLOCK,
    EpochOrder,
    Mixture,
    Order,
    Permutation,
    epoch_key,
    weighted_mixture,
)
from packtrain.training.steps import GROUP, IDLE, SAMPLE, Balance, choose_balance, deal, grouped, slowest

FULL_0 = [5, 2, 1, 7, 9, 0, 6, 4, 8, 3]
FULL_1 = [6, 9, 7, 4, 2, 0, 5, 3, 8, 1]
BLOCKS_0 = [11990, 12227, 9676, 10062]


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_every_row_stands_at_one_position(size: int, key: int) -> None:
    found = Permutation(size, key)(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))


@given(st.integers(1, 10**15), st.integers(0, 2**64 - 1), st.data())
def test_a_position_alone_is_the_position_among_others(size: int, key: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)), dtype=np.int64)
    permutation = Permutation(size, key)
    together = permutation(positions)
    assert together.tolist() == [int(permutation(positions[i : i + 1])[0]) for i in range(len(positions))]
    assert ((together >= 0) & (together < size)).all()


def test_golden_vectors() -> None:
    """A change here would send every resumed training somewhere else."""
    assert Permutation(10, 42)(np.arange(10)).tolist() == [2, 7, 4, 0, 8, 3, 6, 9, 5, 1]
    assert Permutation(10**12, 1)(np.array([0, 1, 10**12 - 1])).tolist() == [500926995805, 806294881450, 207772068766]
    assert [epoch_key(42, epoch, "rows") for epoch in range(2)] == [18054795369844856462, 6563409735510486832]
    assert epoch_key(42, 0, "groups") != epoch_key(42, 0, "rows")


def test_golden_orders_of_epochs() -> None:
    full = EpochOrder(10, 42, Order.FULL, False)
    assert full(0, 10).tolist() == FULL_0
    assert full(8, 14).tolist() == [*FULL_0[8:], *FULL_1[:4]], "positions continue over epochs"
    assert EpochOrder(10, 42, Order.FULL, True)(0, 10).tolist() == list(range(10))
    assert EpochOrder(10, 42, Order.FULL, True)(10, 20).tolist() == FULL_1
    assert EpochOrder(10, 42, Order.SEQUENTIAL, False)(7, 13).tolist() == [7, 8, 9, 0, 1, 2]
    blocks = EpochOrder(3 * SHUFFLE_BLOCK + 5, 42, Order.BLOCKS, False)
    assert blocks(0, 4).tolist() == BLOCKS_0
    assert EpochOrder(10, 42, Order.FULL, False, "rows 1")(0, 10).tolist() != FULL_0, "sources have keys of their own"


@given(st.integers(1, 3 * SHUFFLE_BLOCK), st.integers(0, 3), st.sampled_from(Order), st.booleans())
def test_an_epoch_holds_every_row_once(size: int, epoch: int, order: Order, first: bool) -> None:
    rows = EpochOrder(size, 5, order, first)(epoch * size, (epoch + 1) * size)
    assert np.array_equal(np.sort(rows), np.arange(size))


def test_blocks_stay_together_and_differ_between_epochs() -> None:
    size = 5 * SHUFFLE_BLOCK + 100
    order = EpochOrder(size, 5, Order.BLOCKS, False)
    epochs = [order(epoch * size, (epoch + 1) * size)[: 5 * SHUFFLE_BLOCK] // SHUFFLE_BLOCK for epoch in range(2)]
    for blocks in epochs:
        assert [len(set(part)) for part in np.split(blocks, 5)] == [1] * 5
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize("key", [0, 2**63])
@pytest.mark.parametrize("size", [200_000, 262_145])
def test_consecutive_differences_are_those_of_a_random_order(size: int, key: int) -> None:
    order = Permutation(size, key)(np.arange(200_000))
    differences = len(np.unique(np.diff(order) % size))
    # Of n draws from m values, m·(1 - exp(-n/m)) come up at least once; a linear generator would show one.
    expected = size * (1 - np.exp(-199_999 / size))
    assert abs(differences / expected - 1) < 0.01
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.005


def test_keys_give_unrelated_orders() -> None:
    orders = [Permutation(100_000, epoch_key(7, epoch, "rows"))(np.arange(100_000)) for epoch in range(4)]
    for i, one in enumerate(orders):
        for other in orders[i + 1 :]:
            assert np.count_nonzero(one == other) < 10  # one is expected
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.015


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_sizes_that_cannot_be(size: int) -> None:
    with pytest.raises(ValueError, match="size must be"):
        Permutation(size, 0)


# Mixtures.

WEIGHTS = st.lists(st.integers(1, 2**41), min_size=2, max_size=6)


def even(*rows: int) -> Mixture:
    """Every row once, and all end together."""
    return Mixture(rows, sum(rows))


def test_by_eye() -> None:
    assert even(4, 2).owners(0, 6).tolist() == [0, 1, 0, 0, 1, 0]
    assert even(1, 1, 2).owners(0, 4).tolist() == [2, 0, 1, 2]
    assert even(4, 2).counts(3) == [2, 1]
    mixture = weighted_mixture([0.75, 0.25], [30, 30])
    assert mixture.total == 40
    assert mixture.owners(0, 8).tolist() == [0, 0, 1, 0, 0, 0, 1, 0]


@given(WEIGHTS, st.integers(0, 10**15), st.integers(1, 300))
def test_positions_are_dealt_in_proportion_anywhere(weights: list[int], first: int, size: int) -> None:
    mixture = Mixture(tuple(weights), 0)
    before, after = mixture.counts(first), mixture.counts(first + size)
    assert sum(before) == first
    owners = mixture.owners(first, first + size)
    assert np.bincount(owners, minlength=len(weights)).tolist() == [b - a for a, b in zip(before, after, strict=True)]
    for count, weight in zip(after, weights, strict=True):
        assert abs(count - Fraction((first + size) * weight, sum(weights))) < len(weights)


@given(WEIGHTS, st.integers(0, 10**12), st.integers(2, 200), st.data())
def test_a_range_is_its_parts(weights: list[int], first: int, size: int, data: st.DataObject) -> None:
    mixture = Mixture(tuple(weights), 0)
    cut = data.draw(st.integers(1, size - 1))
    parts = [mixture.owners(first, first + cut), mixture.owners(first + cut, first + size)]
    assert np.concatenate(parts).tolist() == mixture.owners(first, first + size).tolist()


@given(st.lists(st.integers(1, 60), min_size=2, max_size=5))
def test_without_weights_all_end_together(rows: list[int]) -> None:
    mixture = even(*rows)
    assert mixture.counts(mixture.total) == rows
    assert np.bincount(mixture.owners(0, mixture.total), minlength=len(rows)).tolist() == rows


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10**6)), min_size=2, max_size=5))
def test_with_weights_it_ends_with_the_first_source(sources: list[tuple[float, int]]) -> None:
    shares, limits = zip(*sources, strict=True)
    mixture = weighted_mixture(shares, limits)
    assert all(count <= limit for count, limit in zip(mixture.counts(mixture.total), limits, strict=True))
    assert any(count > limit for count, limit in zip(mixture.counts(mixture.total + 1), limits, strict=True))


# Groups of similar cost, and dealing to ranks.


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


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(1, 6))
def test_every_rank_gets_as_many_rows(costs: list[int], ranks: int) -> None:
    costs = costs * ranks
    hands = deal(np.array(costs, dtype=np.float64), ranks)
    assert sorted(row for hand in hands for row in hand) == list(range(len(costs)))
    assert {len(hand) for hand in hands} == {len(costs) // ranks}
    assert hands == sorted(sorted(hand) for hand in hands)
    sums = [sum(costs[row] for row in hand) for hand in hands]
    assert max(sums) - min(sums) <= max(costs) - min(costs), "no swap of the dearest and the cheapest would help"


def test_rows_are_grouped_only_where_ranks_would_wait() -> None:
    random = np.random.default_rng(5)
    alike, unlike = random.uniform(0.99, 1.01, SAMPLE), random.lognormal(0, 0.5, SAMPLE)
    assert choose_balance(alike)[0] is None
    assert choose_balance(unlike)[0] == Balance(8 * GROUP, GROUP)
    assert slowest(unlike, GROUP).mean() > IDLE
    few, why = choose_balance(unlike[: 4 * GROUP - 1])
    assert few is None
    assert "255 rows are too few" in why
