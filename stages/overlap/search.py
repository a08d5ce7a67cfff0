"""Finds evaluation texts in the texts of training examples.

1. The hash of every n-gram is looked up in the index's filter, then among its hashes.
2. Hits that continue each other, word for word, are joined to stretches, and each stretch is compared with the
   evaluation text itself, so that no collision of hashes counts.
3. Of each evaluation text, the distinct n-grams found are counted. A text that is compared whole must be there whole.

A text's hits do not depend on the texts that it is searched with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges
from .hashes import Sums
from .index import SHORTEST, OverlapIndex, passing
from .words import Words, words_of


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
    postings: NDArray[np.int64]
    """(K,) the postings found, ascending; the evaluation text itself, as -1, if it was compared whole."""
    stretches: tuple[Stretch, ...]
    """In the order of the training text."""
    longest: str
    """The words of the longest stretch, as they were compared; at most `_SHOWN` of them."""


_SHOWN = 60


def search(index: OverlapIndex, texts: Sequence[str]) -> list[list[TextHit]]:
    """(S,) the hits of each text, by evaluation text."""
    out: list[list[TextHit]] = [[] for _ in texts]
    words = words_of(texts)
    if len(words) < SHORTEST:
        return out
    sums, owners = Sums.of(words), words.owners
    runs = [_shared_ngrams(index, words, sums, owners), _whole_texts(index, words, sums, owners)]
    # (runs, 4): first word, evaluation word, words, first posting's place in `postings`
    for postings, firsts, others, lengths in runs:
        if not len(firsts):
            continue
        starts = offsets_of(lengths[0])
        theirs = np.searchsorted(index.texts, others, side="right") - 1
        mine = owners[firsts]
        order = np.lexsort((others, firsts, theirs, mine))
        bounds = np.flatnonzero(np.r_[True, (np.diff(mine[order]) != 0) | (np.diff(theirs[order]) != 0), True])
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            here = order[low:high]
            text, own = int(theirs[here[0]]), int(mine[here[0]])
            found = np.unique(np.concatenate([postings[starts[one] : starts[one + 1]] for one in here.tolist()]))
            base, other = int(words.texts[own]), int(index.texts[text])
            stretches = tuple(
                Stretch(int(firsts[one]) - base, int(others[one]) - other, int(lengths[1][one]))
                for one in here.tolist()
            )
            longest = max(stretches, key=lambda one: one.words)
            shown = words.bytes_of(base + longest.first, min(longest.words, _SHOWN)).decode("utf-8", "replace")
            out[own].append(TextHit(text, found, stretches, shown))
    return [sorted(hits, key=lambda one: one.text) for hits in out]


_Runs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Postings, end to end; and of each stretch its first word, its first evaluation word, how many postings and words."""


def _none() -> _Runs:
    zero = np.zeros(0, np.int64)
    return zero, zero, zero, (zero, zero)


def _shared_ngrams(index: OverlapIndex, words: Words, sums: Sums, owners: NDArray[np.int64]) -> _Runs:
    count = index.ngram
    if len(words) < count or not len(index.hashes):
        return _none()
    hashes = sums.grams(count)
    maybe = passing(index.filter, hashes)
    maybe = maybe[owners[maybe] == owners[maybe + count - 1]]
    at = np.searchsorted(index.hashes, hashes[maybe])
    equal = index.hashes[np.minimum(at, len(index.hashes) - 1)] == hashes[maybe]
    maybe, at = maybe[equal], at[equal]
    if not len(maybe):
        return _none()
    often = index.starts[at + 1] - index.starts[at]
    places, postings = np.repeat(maybe, often), ranges(index.starts[at], often)
    others = index.posting_words[postings]
    order = np.lexsort((places, others - places))
    places, postings, others = places[order], postings[order], others[order]
    # An n-gram that continues the one before it, in both texts.
    starts = np.r_[True, (np.diff(places) != 1) | (np.diff(others) != 1)]
    firsts = np.flatnonzero(starts)
    lengths = np.diff(np.r_[firsts, len(places)])
    theirs, true = index.words, np.ones(len(places), dtype=np.bool_)
    for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
        if not _equal(words, int(places[first]), theirs, int(others[first]), length + count - 1):
            for one in range(first, first + length):
                true[one] = _equal(words, int(places[one]), theirs, int(others[one]), count)
    if not true.all():
        places, postings, others = places[true], postings[true], others[true]
        firsts = np.flatnonzero(np.r_[True, (np.diff(places) != 1) | (np.diff(others) != 1)][: len(places)])
        lengths = np.diff(np.r_[firsts, len(places)])
    return postings, places[firsts], others[firsts], (lengths, lengths + count - 1)


def _whole_texts(index: OverlapIndex, words: Words, sums: Sums, owners: NDArray[np.int64]) -> _Runs:
    if not len(index.whole_hashes):
        return _none()
    hashes = sums.grams(SHORTEST)
    maybe = passing(index.whole_filter, hashes)
    low = np.searchsorted(index.whole_hashes, hashes[maybe], side="left")
    often = np.searchsorted(index.whole_hashes, hashes[maybe], side="right") - low
    places, which = np.repeat(maybe, often), ranges(low, often)
    texts = index.whole_texts[which]
    others = index.texts[texts]
    lengths = index.texts[texts + 1] - others
    ends = places + lengths - 1
    inside = ends < len(words)
    inside &= owners[places] == owners[np.minimum(ends, len(words) - 1)]
    theirs = index.words
    found = [
        one
        for one in np.flatnonzero(inside).tolist()
        if _equal(words, int(places[one]), theirs, int(others[one]), int(lengths[one]))
    ]
    ones = np.ones(len(found), np.int64)
    return -ones, places[found], others[found], (ones, lengths[found])


def _equal(words: Words, first: int, theirs: Words, other: int, count: int) -> bool:
    return words.bytes_of(first, count) == theirs.bytes_of(other, count)
