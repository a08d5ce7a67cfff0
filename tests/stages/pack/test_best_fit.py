"""Best-fit-decreasing by classes gives the rows of the per-sequence algorithm, one for one."""

from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.pack import best_fit as bestfit
from packtrain.stages.pack.best_fit import Placement, best_fit_decreasing, rows_needed
from packtrain.stages.pack.bounds import bound_of_whole_pieces, size_counts

from tests.support.examples import examples


def rows_of(placement: Placement) -> list[list[int]]:
    return [part.tolist() for part in np.split(placement.order, placement.row_offsets[1:-1])][
        : len(placement.row_offsets) - 1
    ]


def place(sizes: list[int], capacity: int, max_docs: int | None = None) -> list[list[int]]:
    array = np.array(sizes, dtype=np.int32)
    return rows_of(best_fit_decreasing(array, size_counts(array, capacity), max_docs))


def one_by_one(sizes: list[int], capacity: int, max_docs: int | None = None) -> list[list[int]]:
    """Best-fit-decreasing as the textbook has it: each sequence searches all open rows."""
    rows: list[list[int]] = []
    open_rows: dict[int, deque[list[int]]] = defaultdict(deque)  # free space -> rows, longest waiting first
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        space = min((s for s, queue in open_rows.items() if queue and s >= sizes[index]), default=None)
        if space is None:
            space = capacity
            row: list[int] = []
            rows.append(row)
        else:
            row = open_rows[space].popleft()
        row.append(index)
        if max_docs is None or len(row) < max_docs:
            open_rows[space - sizes[index]].append(row)
    return rows


@st.composite
def problems(draw: st.DrawFn, most: int = 80) -> tuple[list[int], int]:
    """Sizes and a capacity. The largest size is drawn apart, so that many small ones come up as well."""
    capacity = draw(st.sampled_from([2, 3, 7, 10, 16, 100, 511, 512, 1023, 1500]))
    largest = draw(st.integers(1, capacity))
    return draw(st.lists(st.integers(1, largest), max_size=most)), capacity


@examples(400)
@given(problems(), st.one_of(st.none(), st.integers(1, 6)))
def test_equal_to_one_by_one(problem: tuple[list[int], int], max_docs: int | None) -> None:
    sizes, capacity = problem
    rows = one_by_one(sizes, capacity, max_docs)
    assert place(sizes, capacity, max_docs) == rows
    assert rows_needed(size_counts(np.array(sizes, np.int32), capacity), max_docs) == len(rows)


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("max_docs", [None, 3])
def test_equal_across_block_borders(monkeypatch: pytest.MonkeyPatch, block: int, max_docs: int | None) -> None:
    """Placing in blocks is for the caches alone: their size must not show."""
    random = np.random.default_rng(block)
    for _ in range(20):
        sizes = random.integers(1, 60, 150).tolist()
        monkeypatch.setattr(bestfit, "_BLOCK", 1 << 18)
        whole = place(sizes, 97, max_docs)
        monkeypatch.setattr(bestfit, "_BLOCK", block)
        assert place(sizes, 97, max_docs) == whole == one_by_one(sizes, 97, max_docs)


@pytest.mark.parametrize("capacity", [65_535, 65_536, 131_072])
def test_sizes_beyond_sixteen_bits(capacity: int) -> None:
    random = np.random.default_rng(capacity)
    sizes = np.concatenate([random.integers(1, capacity + 1, 300), [capacity, capacity, 1, 1]]).tolist()
    assert place(sizes, capacity) == one_by_one(sizes, capacity)


def test_l2_by_its_definition() -> None:
    """Against the formula written out threshold by threshold, for odd and even capacities."""
    random = np.random.default_rng(1)
    for capacity in (2, 3, 9, 10, 31):
        for _ in range(30):
            sizes = random.integers(1, capacity + 1, 40)
            by_threshold = []
            for k in range(capacity // 2 + 1):
                alone = sizes > capacity - k
                medium = (2 * sizes > capacity) & ~alone
                small = (2 * sizes <= capacity) & (sizes >= k)
                spill = sizes[small].sum() - (medium.sum() * capacity - sizes[medium].sum())
                by_threshold.append(alone.sum() + medium.sum() + max(0, int(np.ceil(spill / capacity))))
            assert bound_of_whole_pieces(size_counts(sizes, capacity)) == max(by_threshold)
