"""The advised length, by simple rules:

1. If long documents are truncated or dropped: the shortest length that keeps `KEEPS` of the trained tokens. If they are
   split: the shortest that also leaves `WHOLE` of the documents whole, or `WHOLE_TEXTS` for plain texts.
2. A longer length is chosen only if its rows use less space per trained token by more than `CHEAPER`, since longer rows
   waste less when documents barely fit, and only if at least `FEW_ROWS` rows are left.
"""

from collections.abc import Sequence

import numpy as np

from ....schemas.models.model_facts import Limit
from ....schemas.report.length_choice import Advice, Point
from ....stages.forecast.estimate import Stats

KEEPS = 0.995
"""Share of trained tokens that a length must keep."""
WHOLE = 0.99
"""Share of documents that splitting must leave whole."""
WHOLE_TEXTS = 0.9
"""Share of plain-text documents that a length must keep whole; lower, because a later piece of a text lacks only its
context.
"""
CHEAPER = 0.02
"""Share of space per trained token that a longer length must save."""
FEW_ROWS = 64
"""Least number of rows from which fuller rows can justify a longer length."""
GAIN = 0.0005
"""Share of trained tokens from which it is said what the next longer length would keep."""


def advise(points: Sequence[Point], stats: Stats, least_uncut: float, limit: Limit | None, scale: float) -> Advice:
    """The advice by the rules above.

    Args:
        points: by ascending length.
        least_uncut: share of the documents that must not be cut into pieces.
        scale: all documents over those that the points are of.
    """
    possible = [point for point in points if limit is None or point.max_length <= limit.tokens] or points[:1]
    is_bounded = len(possible) < len(points)
    enough = [point for point in possible if lost_at(point) <= 1 - KEEPS and uncut_at(point) >= least_uncut]
    if not enough:
        best = _best_of(possible, by_uncut=bool(least_uncut))
        shorter = _shorter_than(best.max_length, possible)
        return Advice(best.max_length, False, is_bounded, shorter, longer=0, instead_of=0, saves=0.0)
    shortest = enough[0]
    # Longer rows are fewer. With very few rows, an epoch has too few steps, however full they are.
    worth = [shortest, *(point for point in enough[1:] if point.rows * scale >= FEW_ROWS)]
    least_space = min(map(space_of, worth))
    advised = next(point for point in worth if space_of(point) <= least_space * (1 + CHEAPER))
    shorter = _shorter_than(advised.max_length, possible)
    if advised is not shortest:
        saves = 1 - space_of(advised) / space_of(shortest)
        return Advice(advised.max_length, True, is_bounded, shorter, 0, shortest.max_length, saves)
    longer = int(np.count_nonzero(stats.lengths > shorter)) if shorter else 0
    return Advice(advised.max_length, True, is_bounded, shorter, longer, instead_of=0, saves=0.0)


def _best_of(points: Sequence[Point], *, by_uncut: bool) -> Point:
    """Of points that do not keep enough, the shortest that leaves the most documents whole; or else loses the least,
    or hardly more.
    """
    if by_uncut:
        return max(points, key=lambda point: (uncut_at(point), -point.max_length))
    least_lost = min(map(lost_at, points))
    return next(point for point in points if lost_at(point) <= least_lost + GAIN)


def _shorter_than(length: int, points: Sequence[Point]) -> int:
    """The next shorter length of some points; 0 if there is none."""
    return max((point.max_length for point in points if point.max_length < length), default=0)


def lost_at(point: Point) -> float:
    """The share of trained tokens that a point loses; of all tokens, if none is trained."""
    labels = point.labels + point.labels_lost
    if labels:
        return point.labels_lost / labels
    return point.tokens_lost / max(point.tokens + point.tokens_lost, 1)


def uncut_at(point: Point) -> float:
    """Share of documents that are not cut."""
    return 1 - point.documents_cut / max(point.documents + point.documents_lost, 1)


def space_of(point: Point) -> float:
    """Space in rows per trained token. It decides the tokens per step, and the work of batches with fixed shapes."""
    return point.rows * point.row_length / max(point.labels or point.tokens, 1)
