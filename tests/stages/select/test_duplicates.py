"""Duplicates are those that a Python set finds, however the digests lie and however they are partitioned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.stages.select import duplicates
from packtrain.stages.select.duplicates import later_ones, suspects

TOP = 2**64 - 1
halves = st.sampled_from([0, 1, 2**63 - 1, 2**63, TOP - 1, TOP])
documents = st.lists(st.tuples(halves, halves, st.booleans()), max_size=40)
"""(first half, second half, eligible)."""


def found(rows: list[tuple[int, int, bool]]) -> list[int]:
    """The eligible documents that repeat an earlier one."""
    first = np.array([row[0] for row in rows], np.uint64)
    second = np.array([row[1] for row in rows], np.uint64)
    maybe = suspects(first, np.array([row[2] for row in rows], np.bool_))
    out: NDArray[np.int64] = maybe[later_ones(first[maybe], second[maybe])]
    return sorted(out.tolist())


def expected(rows: list[tuple[int, int, bool]]) -> list[int]:
    seen: set[tuple[int, int]] = set()
    out = []
    for index, (first, second, eligible) in enumerate(rows):
        if eligible and (first, second) in seen:
            out.append(index)
        if eligible:
            seen.add((first, second))
    return out


def test_by_eye() -> None:
    rows = [(7, 1, True), (7, 2, True), (7, 1, True), (9, 1, False), (9, 1, True), (9, 1, True), (7, 1, True)]
    assert found(rows) == [2, 5, 6]


@given(rows=documents, partition=st.sampled_from([1, 2, 7, 1 << 22]))
def test_as_a_set_does_it(rows: list[tuple[int, int, bool]], partition: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "PARTITION", partition)
        assert found(rows) == expected(rows)


def test_only_what_shares_its_beginning_is_compared() -> None:
    random = np.random.default_rng(0)
    first = random.integers(0, 2**63, 50_000).astype(np.uint64)
    first[49_999] = first[17]
    assert suspects(first, np.ones(50_000, np.bool_)).tolist() == [17, 49_999]
