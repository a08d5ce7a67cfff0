"""An excerpt of a text, in pieces that say whether they are shared: for showing two texts beside each other."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .words import word_places

AROUND = 240
"""Characters before the first shared piece that are shown."""
LENGTH = 1_600
"""Characters of an excerpt."""

Pieces = list[tuple[str, bool]]
"""(text, whether it is shared), end to end."""


def excerpt(text: str, stretches: Sequence[tuple[int, int]]) -> tuple[Pieces, bool]:
    """The pieces around the first shared words, and whether text was left out.

    Args:
        stretches: (first word, words) of what is shared.
    """
    places = list(word_places(text))
    shared = np.zeros(len(text) + 1, dtype=np.bool_)
    for first, count in stretches:
        last = min(first + count, len(places)) - 1
        if first <= last:
            shared[places[first][0] : places[last][1]] = True
    found = np.flatnonzero(shared)
    low = max(0, int(found[0]) - AROUND) if len(found) else 0
    high = min(len(text), low + LENGTH)
    changes = np.flatnonzero(np.diff(shared[low:high].astype(np.int8))) + low + 1
    bounds = [low, *changes.tolist(), high]
    pieces = [(text[begin:end], bool(shared[begin])) for begin, end in pairwise(bounds) if begin < end]
    return pieces, low > 0 or high < len(text)
