"""The order of rows: bijections pinned for ever, mixtures in proportion everywhere, groups of similar cost."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.training.order import (
    SHUFFLE_BLOCK,
    EpochOrder,
    Mixture,
    Order,
    Permutation,
    epoch_key,
)
from packtrain.training.steps import GROUP, SAMPLE, choose_balance, grouped

FULL_0 = [5, 2, 1, 7, 9, 0, 6, 4, 8, 3]
FULL_1 = [6, 9, 7, 4, 2, 0, 5, 3, 8, 1]
BLOCKS_0 = [11990, 12227, 9676, 10062]


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


# Mixtures.

WEIGHTS = st.lists(st.integers(1, 2**41), min_size=2, max_size=6)


@given(WEIGHTS, st.integers(0, 10**15), st.integers(1, 300))
def test_positions_are_dealt_in_proportion_anywhere(weights: list[int], first: int, size: int) -> None:
    mixture = Mixture(tuple(weights), 0)
    before, after = mixture.counts(first), mixture.counts(first + size)
    assert sum(before) == first
    owners = mixture.owners(first, first + size)
    assert np.bincount(owners, minlength=len(weights)).tolist() == [b - a for a, b in zip(before, after, strict=True)]
    for count, weight in zip(after, weights, strict=True):
        assert abs(count - Fraction((first + size) * weight, sum(weights))) < len(weights)


# Groups of similar cost, and dealing to ranks.


def test_groups_of_two_are_pinned() -> None:
    """Pairs of neighbours by cost; another order would send every resumed training somewhere else."""
    costs = np.array([5.0, 1, 4, 2, 6, 3])
    assert grouped(np.arange(10, 16), costs, 2, key=1).tolist() == [14, 10, 11, 13, 15, 12]


def test_rows_are_grouped_only_where_ranks_would_wait() -> None:
    random = np.random.default_rng(5)
    alike, unlike = random.uniform(0.99, 1.01, SAMPLE), random.lognormal(0, 0.5, SAMPLE)
    assert choose_balance(alike)[0] is None
    assert choose_balance(unlike)[0] == GROUP
    few, why = choose_balance(unlike[: 4 * GROUP - 1])
    assert few is None
    assert "255 rows are too few" in why
