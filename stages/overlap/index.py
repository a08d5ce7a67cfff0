"""The n-grams (runs of n words) of evaluation texts, and what training texts share with them.

Which n-grams count is decided from the evaluation rows alone, so that the verdict about a training example depends on
nothing but the example. These do not count:

- *common* n-grams, which more than `COMMON_TEXTS` different texts have;
- *framed* ones: half of the words or more are in phrases of `PHRASE` words that more than `PHRASE_TEXTS` texts, and
  more than `PHRASE_SHARE` of all, have. Frames such as "the first line contains a single integer" vary in their
  numbers and names, so that few texts share n words of them;
- *plain* ones: fewer than half of the words have two letters, or fewer than half differ. They are tables of numbers,
  rulers, or loops such as `for i in range(n)`.

A text without an n-gram of its own, because it is short or all of it is plain, is compared as a whole if it asks
something and has at least `SHORTEST` words. Of a text that is longer, the n-grams count.

Words are numbered by the vocabulary of the evaluation texts, and those outside it are -1. Runs of numbers are looked
up by their hashes, in a filter and then among those of the index, and compared one by one where the hashes are equal.

Legend: P postings (an n-gram in a text), T texts, S texts that are compared whole, V the vocabulary, W words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges
from ..arrays import view
from .words import words_of

COMMON_TEXTS = 10
"""An n-gram in more texts than this is common. Variants of a problem, such as an easy and a hard one, are fewer."""
PHRASE = 4
PHRASE_TEXTS = 3
PHRASE_SHARE = 0.01
SHORTEST = 5
"""Fewer words say too little to be found again."""
_BASE = 0xD6E8FEB86659FD93
_SLOTS = 8
"""Slots of a filter for each hash, at least: fewer than one in 8 others passes, and one in 64 both filters."""
_SHOWN = 60
"""Words of the longest run that a hit names."""


@dataclass(frozen=True, slots=True, eq=False)
class TextHit:
    """What one training text shares with one evaluation text."""

    text: int
    """The evaluation text."""
    places: NDArray[np.int64]
    """(K,) the places, of all words, of the n-grams found, ascending; none if the text was compared whole."""
    size: int
    """Words of the longest run that both share."""
    longest: str
    """That run, as it was compared; at most `_SHOWN` of its words."""


@dataclass(frozen=True, eq=False)
class OverlapIndex:
    """What training text is compared with."""

    ngram: int
    vocabulary: pa.LargeStringArray
    """(V,) the distinct words."""
    ids: NDArray[np.int32]
    """(W,) the number of each word in the vocabulary."""
    starts: NDArray[np.int64]
    """(T + 1,) the first word of each text, then W."""
    asks: NDArray[np.bool_]
    """(T,) whether each text is a question, not an answer."""
    keys: NDArray[np.uint64]
    """(P,) hashes of the n-grams that count, ascending; see `_Hashes`."""
    places: NDArray[np.int64]
    """(P,) the word, of all W, at which the n-gram is first in its text."""
    whole: NDArray[np.int64]
    """(S,) texts that are compared whole, by the hashes of their first `SHORTEST` words."""

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(T,) how many n-grams of each text count; 0 for texts that are compared whole, or not at all."""
        return np.bincount(self._owners[self.places], minlength=len(self.asks))

    @cached_property
    def _owners(self) -> NDArray[np.int64]:
        """(W,) the text of each word."""
        return np.repeat(np.arange(len(self.asks)), np.diff(self.starts))

    @cached_property
    def _runs(self) -> "tuple[_Runs, _Runs]":
        """The n-grams, and the first words of texts that are compared whole."""
        heads = self.starts[self.whole]
        return (
            _Runs(self.ngram, self.keys, self.places, self.ids),
            _Runs(SHORTEST, _Hashes(self.ids).of(SHORTEST)[heads], heads, self.ids),
        )

    def search(self, texts: Sequence[str]) -> list[list[TextHit]]:
        """(S,) the hits of each of S training texts, which do not depend on the other ones."""
        words = words_of(texts)
        starts, ids = view(words.offsets), view(pc.index_in(words.values, value_set=self.vocabulary).fill_null(-1))
        owners, hashes = np.repeat(np.arange(len(texts)), np.diff(starts)), _Hashes(ids)
        ngrams, heads = (runs.find(ids, hashes, owners) for runs in self._runs)
        out: list[list[TextHit]] = [[] for _ in texts]
        for mine, text, places, first, size in [*self._shared(*ngrams, owners), *self._whole(*heads, ids, owners)]:
            said = " ".join(words.values[first : first + min(size, _SHOWN)].to_pylist())
            out[mine].append(TextHit(text, places, size, said))
        return out

    def _shared(self, here: "_Places", there: "_Places", owners: "_Places") -> "Iterator[_Found]":
        """What is found of n-grams. N-grams that follow each other in both texts are one run of words."""
        mine, theirs = owners[here], self._owners[there]
        order = np.lexsort((here, there - here, theirs, mine))
        here, there, mine, theirs = here[order], there[order], mine[order], theirs[order]
        for low, high in pairwise(np.flatnonzero(np.r_[_begins(mine, theirs), len(here) > 0]).tolist()):
            at, other, step = here[low:high], there[low:high], np.arange(high - low)
            first = np.flatnonzero(_begins(at - step, other - step))
            sizes = np.diff(np.r_[first, len(at)]) + self.ngram - 1
            longest = np.lexsort((at[first], -sizes))[0]
            yield int(mine[low]), int(theirs[low]), np.unique(other), int(at[first[longest]]), int(sizes[longest])

    def _whole(
        self, here: "_Places", there: "_Places", ids: NDArray[np.int32], owners: "_Places"
    ) -> "Iterator[_Found]":
        """What is found of texts that are compared whole."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for at, start in zip(here.tolist(), there.tolist(), strict=True):
            text, mine = int(self._owners[start]), int(owners[at])
            size = int(self.starts[text + 1]) - start
            end = at + size
            if np.array_equal(ids[at:end], self.ids[start : start + size]) and (owners[at:end] == mine).all():
                found.setdefault((mine, text), (at, size))
        for (mine, text), run in found.items():
            yield mine, text, np.zeros(0, np.int64), *run


_Places = NDArray[np.int64]
_Found = tuple[int, int, NDArray[np.int64], int, int]
"""Training text, evaluation text, `places` of a `TextHit`, and the first word and the words of the longest run."""


class _Runs:
    """Runs of `count` words of the index, to be found in others.

    Args:
        keys: (N,) their hashes, ascending.
        places: (N,) the first word of each.
        ids: (W,) the index's words.
    """

    def __init__(self, count: int, keys: NDArray[np.uint64], places: NDArray[np.int64], ids: NDArray[np.int32]) -> None:
        self._count, self._keys, self._places, self._ids = count, keys, places, ids
        bits = max(10, (_SLOTS * len(keys)).bit_length())
        self._shift, self._low = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
        self._first, self._second = np.zeros((2, 1 << bits), np.bool_)
        self._first[keys >> self._shift] = True
        self._second[keys & self._low] = True

    def find(self, ids: NDArray[np.int32], hashes: "_Hashes", owners: _Places) -> tuple[_Places, _Places]:
        """(word here, word of the index) wherever all words of a run are the same.

        Args:
            ids, hashes, owners: the number and the text of each word, and the hashes of the numbers.
        """
        mine = hashes.of(self._count)
        at = np.flatnonzero(self._first[mine >> self._shift])
        at = at[self._second[mine[at] & self._low]]
        at = at[owners[at] == owners[at + self._count - 1]]
        low, high = (np.searchsorted(self._keys, mine[at], side) for side in ("left", "right"))
        here, there = np.repeat(at, high - low), self._places[ranges(low, high - low)]
        run = np.arange(self._count)
        same = (ids[here[:, None] + run] == self._ids[there[:, None] + run]).all(axis=1)
        return here[same], there[same]


class _Hashes:
    """Hashes of all runs of (W,) numbers, also across texts: polynomials, from sums of numbers times powers."""

    def __init__(self, ids: NDArray[np.int32]) -> None:
        powers, self._inverses = (
            np.multiply.accumulate(np.full(len(ids), base, np.uint64)) for base in (_BASE, pow(_BASE, -1, 1 << 64))
        )
        self._sums = offsets_of(ids.astype(np.uint64) * powers, np.uint64)

    def of(self, count: int) -> NDArray[np.uint64]:
        """(max(W - count + 1, 0),) the hash of each run of `count` numbers."""
        sums = self._sums[count:] - self._sums[: max(len(self._sums) - count, 0)]
        return sums * self._inverses[: len(sums)]


def build_index(texts: Sequence[str], asks: Sequence[bool], ngram: int) -> OverlapIndex:
    """Index the (T,) texts.

    Args:
        asks: (T,) whether each is a question, not an answer: only questions are compared whole.
        ngram: words of an n-gram, at least `SHORTEST`.
    """
    words = words_of(texts)
    numbered = words.values.dictionary_encode()
    vocabulary, ids, starts = numbered.dictionary, view(numbered.indices), view(words.offsets).astype(np.int64)
    sizes = np.diff(starts)
    owners, hashes = np.repeat(np.arange(len(texts)), sizes), _Hashes(ids)
    places = np.flatnonzero(_within(owners, ngram))
    places = places[_telling(ids, vocabulary, ngram)[places] & ~_framed(hashes, owners, len(texts), ngram)[places]]
    keys, owner = hashes.of(ngram)[places], owners[places]
    order = np.lexsort((places, owner, keys))
    order = order[_begins(keys[order], owner[order])]  # the first of each n-gram in each text
    places, keys, owner = places[order], keys[order], owner[order]
    _, group, often = np.unique(keys, return_inverse=True, return_counts=True)
    rare = often[group] <= COMMON_TEXTS
    # Texts of which every n-gram is common are frames themselves.
    had = np.bincount(owner, minlength=len(texts)) > 0
    whole = np.flatnonzero(np.array(asks, np.bool_) & ~had & (sizes >= SHORTEST))
    return OverlapIndex(
        ngram=ngram,
        vocabulary=vocabulary,
        ids=ids,
        starts=starts,
        asks=np.array(asks, np.bool_),
        keys=keys[rare],
        places=places[rare],
        whole=whole[np.argsort(hashes.of(SHORTEST)[starts[whole]], kind="stable")],
    )


def _begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether an entry of any of the (N,) columns differs from the one before; the first ones do."""
    out = np.ones(len(columns[0]), np.bool_)
    out[1:] = np.logical_or.reduce([one[1:] != one[:-1] for one in columns])
    return out


def _within(owners: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """(W - count + 1,) whether a run of words lies within one text."""
    out: NDArray[np.bool_] = owners[: max(len(owners) - count + 1, 0)] == owners[count - 1 :]
    return out


def _windows(flags: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """(W - count + 1,) how many of each run of flags are set."""
    sums = offsets_of(flags)
    out: NDArray[np.int64] = sums[count:] - sums[: max(len(sums) - count, 0)]
    return out


def _telling(ids: NDArray[np.int32], vocabulary: pa.Array, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether each n-gram is not plain."""
    letters = [not word.isascii() or sum(map(str.isalpha, word)) >= 2 for word in vocabulary.to_pylist()]
    named = _windows(np.array(letters, np.bool_)[ids], ngram)
    order = np.argsort(ids, kind="stable")
    before = np.full(len(ids), -1)
    same = ids[order[1:]] == ids[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    differ, here = np.zeros(len(named), np.int64), np.arange(len(named))
    for step in range(ngram):
        differ += before[step : step + len(named)] < here
    out: NDArray[np.bool_] = (2 * named >= ngram) & (2 * differ >= ngram)
    return out


def _framed(hashes: _Hashes, owners: _Places, texts: int, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether half of each n-gram's words or more are in phrases that many texts have."""
    at = np.flatnonzero(_within(owners, PHRASE))
    phrases = hashes.of(PHRASE)[at]
    order = np.lexsort((owners[at], phrases))
    once = phrases[order[_begins(phrases[order], owners[at[order]])]]
    distinct, often = np.unique(once, return_counts=True)
    begins = at[np.isin(phrases, distinct[often > max(PHRASE_TEXTS, PHRASE_SHARE * texts)])]
    inside = np.zeros(len(owners), np.bool_)
    for step in range(PHRASE):
        inside[begins + step] = True
    return 2 * _windows(inside, ngram) >= ngram
