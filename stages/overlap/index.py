"""The texts of evaluation rows, as hashes of words, with the n-grams (runs of n words) that count.

Which n-grams count is decided here, from the evaluation rows alone, so that the verdict about a training example
depends on nothing but the example. These do not count:

- *common* n-grams, which more than `COMMON_TEXTS` different texts have;
- *framed* ones: half of the words or more are in phrases of `PHRASE` words that more than `PHRASE_TEXTS` texts, and
  more than `PHRASE_SHARE` of all, have. Frames such as "the first line contains a single integer" vary in their
  numbers and names, so that few texts share n words of them;
- *plain* ones: fewer than half of the words have two letters, or fewer than half differ. They are tables of numbers,
  rulers, or loops such as `for i in range(n)`.

A text without an n-gram of its own, because it is short or all of it is plain, is compared as a whole if it asks
something and has at least `SHORTEST` words. Of a text that is longer, the n-grams count.

Legend: P postings (an n-gram in a text), T texts, S texts that are compared whole, W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from .words import Words, words_of

COMMON_TEXTS = 10
"""An n-gram in more texts than this is common. Variants of a problem, such as an easy and a hard one, are fewer."""
PHRASE = 4
PHRASE_TEXTS = 3
PHRASE_SHARE = 0.01
SHORTEST = 5
"""Fewer words say too little to be found again."""
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True, eq=False)
class OverlapIndex:
    """What training text is compared with."""

    ngram: int
    words: NDArray[np.uint64]
    """(W,) the hash of each word; see `words_of`."""
    starts: NDArray[np.int64]
    """(T + 1,) the first word of each text, then W."""
    asks: NDArray[np.bool_]
    """(T,) whether each text is a question, not an answer."""
    keys: NDArray[np.uint64]
    """(P,) hashes of the n-grams that count, ascending; see `hashes_of`."""
    places: NDArray[np.int64]
    """(P,) the word, of all W, at which the n-gram is first in its text."""
    counts: NDArray[np.int64]
    """(T,) how many n-grams of each text count; 0 for texts that are compared whole, or not at all."""
    whole: NDArray[np.int64]
    """(S,) texts that are compared whole, by the hashes of their first `SHORTEST` words."""
    common: int
    """How many n-grams are ignored because they are common."""
    framed: int
    """How many, counted in each text, because they are framed."""
    plain: int
    """How many, counted in each text, because they are plain."""


def hashes_of(words: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """(max(W - count + 1, 0),) a hash of each run of words, also across texts.

    Runs of 1, 2, 4, … words are joined, and the last two overlap.
    """
    width, out = 1, words
    with np.errstate(over="ignore"):
        while width < count:
            step = min(width, count - width)
            out = (out[: max(len(out) - step, 0)] * _MULTIPLIER) ^ out[step:]
            out ^= out >> np.uint64(29)
            width += step
    return out


def build_index(texts: Sequence[str], asks: Sequence[bool], ngram: int) -> OverlapIndex:
    """Index the (T,) texts.

    Args:
        asks: (T,) whether each is a question, not an answer: only questions are compared whole.
        ngram: words of an n-gram, at least `SHORTEST`.
    """
    found = words_of(texts)
    words, starts, sizes = found.hashes, found.starts, np.diff(found.starts)
    owners = np.repeat(np.arange(len(texts)), sizes)
    places = np.flatnonzero(_within(owners, ngram))
    telling = _telling(found, ngram)[places]
    framed = _framed(words, owners, len(texts), ngram)[places]
    plain, frames = int((~telling).sum()), int((telling & framed).sum())
    places = places[telling & ~framed]
    keys, owner = hashes_of(words, ngram)[places], owners[places]
    order = np.lexsort((places, owner, keys))
    places, keys, owner = places[order], keys[order], owner[order]
    first = np.ones(len(keys), np.bool_)  # of each n-gram in each text
    first[1:] = (keys[1:] != keys[:-1]) | (owner[1:] != owner[:-1])
    places, keys, owner = places[first], keys[first], owner[first]
    _, group, often = np.unique(keys, return_inverse=True, return_counts=True)
    rare = often[group] <= COMMON_TEXTS
    # Texts of which every n-gram is common are frames themselves.
    had = np.bincount(owner, minlength=len(texts)) > 0
    whole = np.flatnonzero(np.array(asks, np.bool_) & ~had & (sizes >= SHORTEST))
    return OverlapIndex(
        ngram=ngram,
        words=words,
        starts=starts,
        asks=np.array(asks, np.bool_),
        keys=keys[rare],
        places=places[rare],
        counts=np.bincount(owner[rare], minlength=len(texts)).astype(np.int64),
        whole=whole[np.argsort(hashes_of(words, SHORTEST)[starts[whole]], kind="stable")],
        common=int((often > COMMON_TEXTS).sum()),
        framed=frames,
        plain=plain,
    )


def _within(owners: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """(W - count + 1,) whether a run of words lies within one text."""
    out: NDArray[np.bool_] = owners[: max(len(owners) - count + 1, 0)] == owners[count - 1 :]
    return out


def _windows(flags: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """(W - count + 1,) how many of each run of flags are set."""
    sums = offsets_of(flags)
    out: NDArray[np.int64] = sums[count:] - sums[: max(len(sums) - count, 0)]
    return out


def _telling(words: Words, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether each n-gram is not plain."""
    data, ids = words.data, words.hashes
    letters = ((data >= ord("a")) & (data <= ord("z"))) * np.int64(1) + (data >= 128) * np.int64(2)
    named = _windows(np.add.reduceat(letters, words.begins) >= 2 if len(ids) else np.zeros(0, np.bool_), ngram)
    order = np.argsort(ids, kind="stable")
    before = np.full(len(ids), -1)
    same = ids[order[1:]] == ids[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    differ, here = np.zeros(len(named), np.int64), np.arange(len(named))
    for step in range(ngram):
        differ += before[step : step + len(named)] < here
    out: NDArray[np.bool_] = (2 * named >= ngram) & (2 * differ >= ngram)
    return out


def _framed(words: NDArray[np.uint64], owners: NDArray[np.int64], texts: int, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether half of each n-gram's words or more are in phrases that many texts have."""
    hashes = hashes_of(words, PHRASE)
    alone = np.flatnonzero(_within(owners, PHRASE))
    order = alone[np.lexsort((owners[alone], hashes[alone]))]
    once = np.ones(len(order), np.bool_)
    once[1:] = (hashes[order[1:]] != hashes[order[:-1]]) | (owners[order[1:]] != owners[order[:-1]])
    distinct, often = np.unique(hashes[order[once]], return_counts=True)
    begins = np.flatnonzero(np.isin(hashes, distinct[often > max(PHRASE_TEXTS, PHRASE_SHARE * texts)]))
    inside = np.zeros(len(words), np.bool_)
    for step in range(PHRASE):
        inside[begins + step] = True
    return 2 * _windows(inside, ngram) >= ngram
