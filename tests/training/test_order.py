"""The order of rows: bijections pinned for ever."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.training.order import Permutation, epoch_key, grouped


def test_golden_vectors() -> None:
    """A change here would send every resumed training somewhere else."""
    assert Permutation(10, 42)(np.arange(10)).tolist() == [2, 7, 4, 0, 8, 3, 6, 9, 5, 1]
    assert Permutation(10**12, 1)(np.array([0, 1, 10**12 - 1])).tolist() == [500926995805, 806294881450, 207772068766]
    keys = [epoch_key(42, epoch, "rows") for epoch in range(2)]
    assert keys == [18054795369844856462, 6563409735510486832]
    orders = [Permutation(10, key)(np.arange(10)).tolist() for key in keys]
    assert orders == [[5, 2, 1, 7, 9, 0, 6, 4, 8, 3], [6, 9, 7, 4, 2, 0, 5, 3, 8, 1]]
    assert grouped(np.arange(10, 16), np.array([5.0, 1, 4, 2, 6, 3]), 2, key=1).tolist() == [14, 10, 11, 13, 15, 12]


@given(st.integers(1, 10_000), st.integers(0, 2**64 - 1))
def test_a_permutation_holds_every_row_once(size: int, key: int) -> None:
    assert np.array_equal(np.sort(Permutation(size, key)(np.arange(size))), np.arange(size))
