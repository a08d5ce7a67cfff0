"""Splits documents that are too long into pieces, at the best places within reach.

K documents laid end to end; a *place* is a token before which a cut is possible. All documents are cut in step: first
all first pieces, then all second ones, so that each step is a few array operations.

1. If the rest fits, it is the last piece.
2. Else find the fewest pieces that hold the rest. Let t be their length if all were equal.
3. If a turn begins within the capacity, cut before the one nearest to t. If none does, cut at the blank line nearest to
   t, or if there is none at the line end nearest to t, where at least t/2 new tokens stand before the cut and t/2 after
   it. Else cut at t.
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
    """Places to cut, best kind first, each list ascending. Any of them may be used, however short the piece becomes."""
    lines: Sequence[NDArray[np.int64]] = ()
    """Places that are used only if no piece becomes much shorter than necessary; best kind first, each list ascending.
    """


@dataclass(frozen=True, slots=True, eq=False)
class SplitPieces:
    """S pieces, in the order of their documents and tokens."""

    document: NDArray[np.int64]
    """(S,) the document of each piece, 0 to K - 1."""
    start: NDArray[np.int64]
    """(S,) place of the first token."""
    fresh: NDArray[np.int64]
    """(S,) place of the first token that is not in the piece before."""
    end: NDArray[np.int64]
    """(S,) end of the piece: one past its last token."""


def split(low: NDArray[np.int64], high: NDArray[np.int64], capacity: int, overlap: int, places: Places) -> SplitPieces:
    """Cut each stretch into pieces of at most `capacity` tokens.

    Args:
        low, high: (K,) places where the stretch of each document begins and ends; ascending, without overlap.
        overlap: how many tokens at the end of a piece the next one repeats; below `capacity`.
    """
    document = np.arange(len(low))
    start = low.astype(np.int64)
    fresh = start
    end = high.astype(np.int64)
    steps: list[SplitPieces] = []
    while len(document):
        is_last = end - start <= capacity
        steps.append(SplitPieces(document[is_last], start[is_last], fresh[is_last], end[is_last]))
        document = document[~is_last]
        start = start[~is_last]
        fresh = fresh[~is_last]
        end = end[~is_last]
        if not len(document):
            break
        cut = _cut_at(start, fresh, end, capacity, overlap, places)
        steps.append(SplitPieces(document, start, fresh, cut))
        # With a cut at 100 and an overlap of 8, the next piece begins at 92, and its token 100 is the first new one.
        # It does not begin before the piece that was just cut, which a turn may have ended before it had 8 tokens.
        start = np.maximum(cut - overlap, start)
        fresh = cut
    none = np.zeros(0, np.int64)
    documents = np.concatenate([none, *(step.document for step in steps)])
    # Sort by document; within a document the steps already are in the order of tokens.
    order = np.argsort(documents, kind="stable")
    return SplitPieces(
        documents[order],
        np.concatenate([none, *(step.start for step in steps)])[order],
        np.concatenate([none, *(step.fresh for step in steps)])[order],
        np.concatenate([none, *(step.end for step in steps)])[order],
    )


def _cut_at(
    start: NDArray[np.int64],
    fresh: NDArray[np.int64],
    end: NDArray[np.int64],
    capacity: int,
    overlap: int,
    places: Places,
) -> NDArray[np.int64]:
    """(K,) where to end the next piece of each document. Its rest never fits into one piece here.

    Args:
        start, fresh: (K,) where the piece begins, and its first token that is not in the piece before.
        end: (K,) where the stretch of the document ends.
    """
    # Each piece but the first brings capacity - overlap new tokens: 250 tokens in pieces of 100 that overlap by 10 need
    # 1 + 150 / 90, rounded up to 3 pieces, of (250 + 2 * 10) / 3 = 90 tokens if they were equal.
    pieces = 1 + -(-(end - start - capacity) // (capacity - overlap))
    equal_length = -(-(end - start + (pieces - 1) * overlap) // pieces)
    target: NDArray[np.int64] = start + equal_length
    cut = target.copy()
    has_no_place = np.ones(len(cut), dtype=np.bool_)
    half = (target - fresh + 1) // 2  # of the new tokens of such a piece, rounded up
    farthest = start + capacity  # the rest does not fit, so the cut lies before the end
    # A turn is taken however few new tokens it leaves before the cut, one at least; a line only if both sides keep half
    # of an equal piece. The cut at the target itself is never too far, though less may be left behind it.
    for kinds, low, high in (
        (places.turns, fresh + 1, farthest),
        (places.lines, fresh + half, np.minimum(farthest, np.maximum(end - half, target))),
    ):
        for candidates in kinds:
            nearest = _nearest(candidates, target, low, high)
            takes = has_no_place & (nearest >= 0)
            cut[takes] = nearest[takes]
            has_no_place &= ~takes
    return cut


def _nearest(
    candidates: NDArray[np.int64], target: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(K,) the candidate in low..high that is nearest to each target, the earlier of two equally near; -1 if there is
    none. Of the candidates 10, 40, 50 and the target 45 within 20..60, that is 40.

    Args:
        candidates: places, ascending.
        target, low, high: (K,) places.
    """
    if not len(candidates):
        return np.full(len(target), -1, dtype=np.int64)
    # The target is between the candidates `index - 1` and `index`, either of which may not exist.
    index = np.searchsorted(candidates, target, side="right")
    left = candidates[np.maximum(index - 1, 0)]
    right = candidates[np.minimum(index, len(candidates) - 1)]
    left_fits = (index > 0) & (left >= low) & (left <= high)
    right_fits = (index < len(candidates)) & (right >= low) & (right <= high)
    takes_left = left_fits & (~right_fits | (target - left <= right - target))
    nearest: NDArray[np.int64] = np.where(takes_left, left, np.where(right_fits, right, -1))
    return nearest
