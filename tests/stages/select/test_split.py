"""Documents in pieces: within the capacity, nothing twice but the overlap, cut where that was promised."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.select.split import Places, SplitPieces, split

from tests.support.examples import examples


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
