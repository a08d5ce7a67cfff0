"""The order of rows: bijections pinned for ever, groups of similar cost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.training.order import (
    GROUP,
    SAMPLE,
    SHUFFLE_BLOCK,
    EpochOrder,
    Order,
    Permutation,
    epoch_key,
    group_of,
    grouped,
)

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
    ten, few = np.arange(10), np.arange(4)
    full = EpochOrder(10, 42, Order.FULL, False)
    assert [full(epoch, ten).tolist() for epoch in (0, 1)] == [FULL_0, FULL_1]
    assert EpochOrder(10, 42, Order.FULL, True)(0, ten).tolist() == ten.tolist()
    assert EpochOrder(10, 42, Order.FULL, True)(1, ten).tolist() == FULL_1
    assert EpochOrder(10, 42, Order.SEQUENTIAL, False)(1, few).tolist() == few.tolist()
    assert EpochOrder(3 * SHUFFLE_BLOCK + 5, 42, Order.BLOCKS, False)(0, few).tolist() == BLOCKS_0


@given(st.integers(1, 3 * SHUFFLE_BLOCK), st.integers(0, 3), st.sampled_from(Order), st.booleans())
def test_an_epoch_holds_every_row_once(size: int, epoch: int, order: Order, first: bool) -> None:
    rows = EpochOrder(size, 5, order, first)(epoch, np.arange(size))
    assert np.array_equal(np.sort(rows), np.arange(size))


# Groups of similar cost, and dealing to ranks.


def test_groups_of_two_are_pinned() -> None:
    """Pairs of neighbours by cost; another order would send every resumed training somewhere else."""
    costs = np.array([5.0, 1, 4, 2, 6, 3])
    assert grouped(np.arange(10, 16), costs, 2, key=1).tolist() == [14, 10, 11, 13, 15, 12]


def test_rows_are_grouped_only_where_ranks_would_wait() -> None:
    random = np.random.default_rng(5)
    alike, unlike = random.uniform(0.99, 1.01, SAMPLE), random.lognormal(0, 0.5, SAMPLE)
    assert group_of(alike) is None
    assert group_of(unlike) == GROUP
    assert group_of(unlike[: 4 * GROUP - 1]) is None, "too few rows"
