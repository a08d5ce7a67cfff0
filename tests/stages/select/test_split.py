"""Documents in pieces: within the capacity, nothing twice but the overlap, cut where that was promised."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.select.split import Places, SplitPieces, split

from tests.support.examples import examples


def cut_one(length: int, capacity: int, overlap: int = 0, **places: list[list[int]]) -> list[tuple[int, int, int]]:
    """(first token, first fresh one, one past the last) of the pieces of one document."""
    found = Places(**{kind: [np.array(one, np.int64) for one in grades] for kind, grades in places.items()})
    cut = split(np.array([0]), np.array([length]), capacity, overlap, found)
    assert not cut.document.any()
    return list(zip(cut.start.tolist(), cut.fresh.tolist(), cut.end.tolist(), strict=True))


@pytest.mark.parametrize(
    ("length", "capacity", "overlap", "expected"),
    [
        (4, 4, 0, [(0, 0, 4)]),
        (5, 4, 0, [(0, 0, 3), (3, 3, 5)]),  # no piece of one token
        (8, 4, 0, [(0, 0, 4), (4, 4, 8)]),
        (10, 4, 0, [(0, 0, 4), (4, 4, 7), (7, 7, 10)]),
        (5, 4, 1, [(0, 0, 3), (2, 3, 5)]),
        (7, 4, 1, [(0, 0, 4), (3, 4, 7)]),
        (8, 4, 1, [(0, 0, 4), (3, 4, 6), (5, 6, 8)]),
        (8, 4, 2, [(0, 0, 4), (2, 4, 6), (4, 6, 8)]),
        (0, 4, 1, [(0, 0, 0)]),
    ],
)
def test_pieces_of_about_one_length(
    length: int, capacity: int, overlap: int, expected: list[tuple[int, int, int]]
) -> None:
    assert cut_one(length, capacity, overlap) == expected


def test_before_turns() -> None:
    """A turn is worth a short piece; the best kind of place goes first, the nearest to the middle among its like."""
    assert cut_one(20, 12, turns=[[7, 11, 13], [10]]) == [(0, 0, 11), (11, 11, 20)]
    assert cut_one(20, 12, turns=[[], [10, 13]]) == [(0, 0, 10), (10, 10, 20)]
    assert cut_one(20, 12, turns=[[2], []]) == [(0, 0, 2), (2, 2, 11), (11, 11, 20)]
    assert cut_one(20, 12, turns=[[13, 14], [15]]) == [(0, 0, 10), (10, 10, 20)], "none of them is in reach"
    assert cut_one(20, 12, overlap=2, turns=[[12]]) == [(0, 0, 12), (10, 12, 20)]


def test_between_paragraphs_and_lines() -> None:
    assert cut_one(20, 12, lines=[[12], [10]]) == [(0, 0, 12), (12, 12, 20)]
    assert cut_one(20, 12, lines=[[4, 16], [9]]) == [(0, 0, 9), (9, 9, 20)], "4 would make a short piece"
    assert cut_one(20, 12, lines=[[4, 16], [3]]) == [(0, 0, 10), (10, 10, 20)]
    assert cut_one(13, 12, lines=[[2, 8, 12], []]) == [(0, 0, 8), (8, 8, 13)], "12 would leave a piece of one token"
    assert cut_one(20, 12, turns=[[3], []], lines=[[10], [10]]) == [(0, 0, 3), (3, 3, 10), (10, 10, 20)]
    assert cut_one(20, 12, lines=[[8, 12], []]) == [(0, 0, 8), (8, 8, 20)], "of two as near, the earlier one"


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int, list[list[int]], list[list[int]]]:
    """(gap before, length) of documents, capacity, overlap, and two grades of turns and of lines."""
    documents = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=6))
    capacity = draw(st.integers(2, 20))
    total = sum(gap + length for gap, length in documents)
    grade = st.lists(st.integers(0, total), max_size=20, unique=True).map(sorted)
    grades = [draw(grade) for _ in range(4)]
    return documents, capacity, draw(st.integers(0, capacity // 2)), grades[:2], grades[2:]


@given(cases())
@examples(300)
def test_every_token_once_and_cuts_where_promised(
    case: tuple[list[tuple[int, int]], int, int, list[list[int]], list[list[int]]],
) -> None:
    documents, capacity, overlap, turns, lines = case
    sizes = np.array(documents)
    high = np.cumsum(sizes.sum(axis=1))
    low = high - sizes[:, 1]
    places = Places([np.array(one, np.int64) for one in turns], [np.array(one, np.int64) for one in lines])
    cut: SplitPieces = split(low, high, capacity, overlap, places)
    assert (np.diff(cut.document) >= 0).all()
    for document in range(len(documents)):
        mine = np.flatnonzero(cut.document == document)
        first, last = int(low[document]), int(high[document])
        pieces = [(int(cut.start[p]), int(cut.fresh[p]), int(cut.end[p])) for p in mine]
        assert [place for _, fresh, end in pieces for place in range(fresh, end)] == list(range(first, last))
        assert all(end - start <= capacity for start, _, end in pieces)
        assert all(fresh < end for _, fresh, end in pieces) or first == last
        assert pieces[0][0] == pieces[0][1] == first
        for (start, _, end), (after, fresh, _) in itertools.pairwise(pieces):
            assert fresh == end
            assert after == max(end - overlap, start)
        if not any(turns) and not any(lines):
            least = 1 + -(-max(0, last - first - capacity) // (capacity - overlap))
            assert len(pieces) == least
            spans = [end - start for start, _, end in pieces]
            assert max(spans) - min(spans) <= 1
        for start, fresh, end in pieces[:-1]:
            for grade in turns:
                in_reach = [place for place in grade if fresh < place <= start + capacity]
                if in_reach:
                    assert end in in_reach
                    break
            else:
                least = 1 + -(-(last - start - capacity) // (capacity - overlap))
                target = start + -(-(last - start + (least - 1) * overlap) // least)
                half = (target - fresh + 1) // 2
                good = [
                    [p for p in grade if fresh + half <= p <= start + capacity and p <= max(last - half, target)]
                    for grade in lines
                ]
                if any(good):
                    nearest = next(one for one in good if one)
                    assert end == min(nearest, key=lambda p: (abs(p - target), p))
                else:
                    assert end == target
