"""Cutting documents that are too long into pieces, at the best places within reach.

K documents laid end to end; a *place* is a token before which may be cut. All documents are cut in step: first every
first piece is cut off, then every second one, so that the work is a few array operations a step.

1. What is left fits: it is the last piece.
2. Else let m be the fewest pieces that hold what is left, and t the length at which these would be equal.
3. Cut before a turn, if one begins within the capacity: the place nearest to t. Else at a blank line, else at a line
   end, between t/2 and the capacity, and so that t/2 are left: again the nearest to t. Else at t.
4. The next piece begins `overlap` tokens before the cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where documents may be cut."""

    turns: Sequence[NDArray[np.int64]] = ()
    """Rising places, the best kind first: any of them is taken, however short the piece."""
    lines: Sequence[NDArray[np.int64]] = ()
    """The same, but only where no piece gets much shorter than it has to be."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """S pieces, in the order of their documents and tokens."""

    document: NDArray[np.int64]
    """(S,) which of the K documents."""
    start: NDArray[np.int64]
    """(S,) place of the first token."""
    fresh: NDArray[np.int64]
    """(S,) place of the first token that the piece before does not have."""
    end: NDArray[np.int64]
    """(S,) one past the last."""


def split(low: NDArray[np.int64], high: NDArray[np.int64], capacity: int, overlap: int, places: Places) -> Cut:
    """Cut each stretch into pieces of at most `capacity` tokens.

    Args:
        low, high: (K,) places where the stretch of each document begins and ends; they rise and do not overlap.
        overlap: how many tokens of a piece stand at the head of the next one again; below `capacity`.
    """
    document = np.arange(len(low))
    start, fresh, end = low.astype(np.int64), low.astype(np.int64), high.astype(np.int64)
    done: list[tuple[NDArray[np.int64], ...]] = []
    while len(document):
        here = end - start <= capacity
        done.append((document[here], start[here], fresh[here], end[here]))
        document, start, fresh, end = document[~here], start[~here], fresh[~here], end[~here]
        if not len(document):
            break
        at = _cut_at(start, fresh, end, capacity, overlap, places)
        done.append((document, start, fresh, at))
        start, fresh = np.maximum(at - overlap, start), at
    columns = [np.concatenate(column) for column in zip(*done, strict=True)] if done else [np.zeros(0, np.int64)] * 4
    order = np.argsort(columns[0], kind="stable")  # the steps come in the order of the tokens
    return Cut(*(column[order] for column in columns))


def _cut_at(
    start: NDArray[np.int64],
    fresh: NDArray[np.int64],
    end: NDArray[np.int64],
    capacity: int,
    overlap: int,
    places: Places,
) -> NDArray[np.int64]:
    """Where the piece that begins at each start ends. Nowhere is what is left short enough to be the last piece."""
    pieces = 1 + -(-(end - start - capacity) // (capacity - overlap))
    equal = -(-(end - start + (pieces - 1) * overlap) // pieces)
    target: NDArray[np.int64] = start + equal
    at = target.copy()
    free = np.ones(len(at), dtype=np.bool_)
    half = (target - fresh + 1) // 2
    farthest = start + capacity  # before the end, for what is left does not fit
    for kinds, low, high in (
        (places.turns, fresh + 1, farthest),
        (places.lines, fresh + half, np.minimum(farthest, np.maximum(end - half, target))),
    ):
        for candidates in kinds:
            found = _nearest(candidates, target, low, high)
            takes = free & (found >= 0)
            at[takes] = found[takes]
            free &= ~takes
    return at


def _nearest(
    candidates: NDArray[np.int64], target: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The candidate nearest to each target from low to high, the earlier one of two; -1 where there is none."""
    if not len(candidates):
        return np.full(len(target), -1, dtype=np.int64)
    index = np.searchsorted(candidates, target, side="right")
    left = candidates[np.maximum(index - 1, 0)]
    right = candidates[np.minimum(index, len(candidates) - 1)]
    left_fits = (index > 0) & (left >= low) & (left <= high)
    right_fits = (index < len(candidates)) & (right >= low) & (right <= high)
    nearer = left_fits & (~right_fits | (target - left <= right - target))
    out: NDArray[np.int64] = np.where(nearer, left, np.where(right_fits, right, -1))
    return out
