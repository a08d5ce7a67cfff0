"""The advised length: of the lengths that the model is made for, the shortest that loses next to nothing.

It keeps `KEEPS` of the trained tokens. Where longer documents are cut into pieces, which loses hardly a token at any
length, it also leaves `WHOLE` of the documents whole, or `WHOLE_TEXTS` of plain texts.
"""

from collections.abc import Sequence

from ....schemas.models.model_facts import Limit
from ....schemas.report.length_choice import Advice, Point

KEEPS = 0.995
"""Share of trained tokens that a length must keep."""
WHOLE = 0.99
"""Share of documents that splitting must leave whole."""
WHOLE_TEXTS = 0.9
"""Share of plain-text documents that a length must keep whole; lower, because a later piece of a text lacks only its
context.
"""


def advise(points: Sequence[Point], least_uncut: float, limit: Limit | None) -> Advice:
    """The advice by the rule above; if no length keeps enough, the best length that the model is made for.

    Args:
        points: by ascending length.
        least_uncut: share of the documents that must stay whole; 0 where documents are not cut into pieces.
    """
    possible = [point for point in points if limit is None or point.max_length <= limit.tokens]
    if not possible:
        possible = list(points[:1])  # the model is made for none of them: the shortest is the nearest
    bounded = len(possible) < len(points)
    for point in possible:
        if lost_at(point) <= 1 - KEEPS and uncut_at(point) >= least_uncut:
            return Advice(point.max_length, reached=True, bounded=bounded)
    # Where documents are cut into pieces, hardly a token is lost at any length, and how many stay whole decides. Of
    # points that are equally good, `max` and `min` take the first, which is the shortest.
    best = max(possible, key=uncut_at) if least_uncut else min(possible, key=lost_at)
    return Advice(best.max_length, reached=False, bounded=bounded)


def lost_at(point: Point) -> float:
    """The share of trained tokens that a point loses; of all tokens, if none is trained."""
    labels = point.labels + point.labels_lost
    if labels:
        return point.labels_lost / labels
    return point.tokens_lost / max(point.tokens + point.tokens_lost, 1)


def uncut_at(point: Point) -> float:
    """Share of documents that are not cut."""
    return 1 - point.documents_cut / max(point.documents + point.documents_lost, 1)
