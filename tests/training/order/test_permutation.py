"""The order of rows: a bijection for every size, pinned for ever, and as good as random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.training.order.permutation import SHUFFLE_BLOCK, EpochOrder, Order, Permutation, epoch_key

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
