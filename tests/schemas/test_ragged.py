"""Lists end to end, against Python's own lists."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.ragged import begins_of, lengths_of, offsets_of, ranges, starts_of, sums_of

lists = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6)


@given(lists, st.integers(0, 9), st.sampled_from([np.int32, np.int64]))
def test_lists_end_to_end(values: list[list[int]], begin: int, dtype: type[np.integer[Any]]) -> None:
    flat = np.array([one for inner in values for one in inner], dtype=np.int64)
    lengths: NDArray[np.integer[Any]] = lengths_of(values).astype(dtype)
    offsets = offsets_of(lengths, dtype)
    assert offsets.dtype == dtype
    assert [flat[a:b].tolist() for a, b in pairwise(offsets.tolist())] == values
    assert starts_of(lengths).tolist() == offsets[:-1].tolist()
    assert sums_of(flat, offsets).tolist() == [sum(inner) for inner in values]
    assert ranges(begin, lengths).tolist() == [begin + i for inner in values for i in range(len(inner))]
    assert flat[ranges(offsets[:-1][::-1], lengths[::-1])].tolist() == [one for inner in values[::-1] for one in inner]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=6))
def test_runs_begin_where_those_before_them_end(ends: list[list[int]]) -> None:
    flat = np.array([one for inner in ends for one in inner], dtype=np.int32)
    begins = begins_of(flat, offsets_of([len(inner) for inner in ends]))
    assert begins.dtype == np.int32
    assert begins.tolist() == [one for inner in ends for one in [0, *inner[:-1]]]


def test_sums_of_small_numbers_are_wide() -> None:
    most = np.full(3, np.iinfo(np.int32).max, dtype=np.int32)
    assert offsets_of(most)[-1] == starts_of(most)[-1] + int(most[0]) == 3 * int(most[0])
    assert sums_of(np.ones(3, dtype=np.bool_), np.array([0, 3])).tolist() == [3]
