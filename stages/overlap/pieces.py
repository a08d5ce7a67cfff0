"""An excerpt of a text, in pieces that say whether they are shared: for showing two texts beside each other."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from .words import IS_WORD, words_of

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
    places = word_places(text)
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


def word_places(text: str) -> list[tuple[int, int]]:
    """(begin, end) in the text of every word that `words_of` gives. Words that normalising makes of one run of
    characters, such as ideographs, share its place.
    """
    if text.isascii():
        inside = np.r_[False, IS_WORD[np.frombuffer(text.encode(), np.uint8)], False]
        edges = np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2)
        return [(int(begin), int(end)) for begin, end in edges]
    out: list[tuple[int, int]] = []
    begin = 0
    for at, char in enumerate(f"{text} "):
        if _separates(char):
            if begin < at:
                out += [(begin, at)] * _count(text[begin:at])
            begin = at + 1
    return out


@lru_cache(maxsize=4096)
def _separates(char: str) -> bool:
    """Whether words end at a character: it is none, and is not merely left out."""
    return not _count(char) and _count(f"a{char}a") != 1


@lru_cache(maxsize=4096)
def _count(run: str) -> int:
    return len(words_of([run]))
