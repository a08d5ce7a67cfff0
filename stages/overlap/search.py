"""Finds evaluation texts in the texts of training examples.

1. The hash of every run of n words is looked up in a filter, then among the n-grams of the evaluation texts.
2. Where both are equal, the words are compared one by one.
3. Hits that continue each other are joined to stretches. A text that is compared whole must be there whole.

A text's hits do not depend on the texts that it is searched with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import ranges
from .index import SHORTEST, OverlapIndex, hashes_of
from .words import Words, words_of

_SLOTS = 16
"""Slots of a filter for each hash, at least: fewer than one in 16 others passes."""
_SHOWN = 60
"""Words of the longest stretch that a hit names."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Words that a training text and an evaluation text share, one after another."""

    first: int
    """The first word in the training text, from 0."""
    other: int
    """The first word in the evaluation text, from 0."""
    words: int


@dataclass(frozen=True, slots=True, eq=False)
class TextHit:
    """What one training text shares with one evaluation text."""

    text: int
    """The evaluation text."""
    places: NDArray[np.int64]
    """(K,) the places, of all words, of the n-grams found, ascending; none if the text was compared whole."""
    stretches: tuple[Stretch, ...]
    """In the order of the training text."""
    longest: str
    """The words of the longest stretch, as they were compared; at most `_SHOWN` of them."""


class OverlapSearch:
    """Searches training texts for the texts of an index."""

    def __init__(self, index: OverlapIndex) -> None:
        self.index = index
        self._owners = np.repeat(np.arange(len(index.counts)), np.diff(index.starts))
        heads = index.starts[index.whole]
        self._heads = hashes_of(index.words, SHORTEST)[heads], heads
        self._filters = _filter(index.keys), _filter(self._heads[0])

    def search(self, texts: Sequence[str]) -> list[list[TextHit]]:
        """(S,) the hits of each text, by evaluation text."""
        words = words_of(texts)
        owners = np.repeat(np.arange(len(texts)), np.diff(words.starts))
        out: list[list[TextHit]] = [[] for _ in texts]
        for mine, text, places, stretches in [*self._shared(words, owners), *self._whole(words, owners)]:
            longest = max(stretches, key=lambda one: one.words)
            said = words.said(int(words.starts[mine]) + longest.first, min(longest.words, _SHOWN))
            out[mine].append(TextHit(text, places, stretches, said))
        return [sorted(hits, key=lambda hit: hit.text) for hits in out]

    def _shared(self, words: Words, owners: NDArray[np.int64]) -> "list[_Found]":
        """What is found of n-grams."""
        here, there = self._pairs(words, owners, self.index.ngram, self.index.keys, self.index.places, self._filters[0])
        mine, theirs = owners[here], self._owners[there]
        order = np.lexsort((here, there - here, theirs, mine))
        here, there, mine, theirs = here[order], there[order], mine[order], theirs[order]
        out: list[_Found] = []
        changes = np.ones(len(here) + 1, np.bool_)
        changes[1:-1] = (np.diff(mine) != 0) | (np.diff(theirs) != 0)
        for low, high in pairwise(np.flatnonzero(changes).tolist() if len(here) else ()):
            own, text = int(mine[low]), int(theirs[low])
            at, other = here[low:high] - words.starts[own], there[low:high]
            first = np.flatnonzero(np.r_[True, (np.diff(at) != 1) | (np.diff(other) != 1)])
            sizes = np.diff(np.r_[first, len(at)]) + self.index.ngram - 1
            others = other[first] - self.index.starts[text]
            runs = sorted(zip(at[first].tolist(), others.tolist(), sizes.tolist(), strict=True))
            out.append((own, text, np.unique(other), tuple(Stretch(*run) for run in runs)))
        return out

    def _whole(self, words: Words, owners: NDArray[np.int64]) -> "list[_Found]":
        """What is found of texts that are compared whole."""
        found: dict[tuple[int, int], list[Stretch]] = {}
        index = self.index
        for at, start in zip(*self._pairs(words, owners, SHORTEST, *self._heads, self._filters[1]), strict=True):
            text = int(self._owners[start])
            size = int(index.starts[text + 1] - start)
            mine = int(owners[at])
            last = min(int(words.starts[mine + 1]), int(at) + size)
            if np.array_equal(words.hashes[at:last], index.words[start : start + size]):
                found.setdefault((mine, text), []).append(Stretch(int(at - words.starts[mine]), 0, size))
        return [(*key, np.zeros(0, np.int64), tuple(stretches)) for key, stretches in found.items()]

    def _pairs(
        self,
        words: Words,
        owners: NDArray[np.int64],
        count: int,
        keys: NDArray[np.uint64],
        places: NDArray[np.int64],
        known: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(word here, word of the index) wherever `count` words are the same, for runs with some keys and places."""
        hashes = hashes_of(words.hashes, count)
        at = np.flatnonzero(known[hashes >> np.uint64(65 - len(known).bit_length())])
        at = at[owners[at] == owners[at + count - 1]]
        low = np.searchsorted(keys, hashes[at], "left")
        often = np.searchsorted(keys, hashes[at], "right") - low
        here, there = np.repeat(at, often), places[ranges(low, often)]
        run = np.arange(count)
        same = (words.hashes[here[:, None] + run] == self.index.words[there[:, None] + run]).all(axis=1)
        return here[same], there[same]


_Found = tuple[int, int, NDArray[np.int64], tuple[Stretch, ...]]
"""Training text, evaluation text, and `places` and `stretches` of a `TextHit`."""


def _filter(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(2 ** bits,) whether a key begins with these bits."""
    bits = max(10, (_SLOTS * len(keys)).bit_length())
    out = np.zeros(1 << bits, np.bool_)
    out[keys >> np.uint64(64 - bits)] = True
    return out
