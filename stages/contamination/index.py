"""The n-grams (runs of n words) of evaluation texts, and what training examples share with them.

Which n-grams count is decided from the evaluation rows alone, so that the verdict about a training example depends on
nothing but the example. These do not count:

- *common* n-grams, which more than `COMMON_TEXTS` different texts have;
- *framed* ones: half of the words or more are in phrases of `PHRASE` words that more than `PHRASE_TEXTS` texts, and
  more than `PHRASE_SHARE` of all, have. Frames such as "the first line contains a single integer" vary in their
  numbers and names, so that few texts share n words of them;
- *plain* ones: fewer than half of the words have two letters, or fewer than half differ. They are tables of numbers,
  rulers, or loops such as `for i in range(n)`.

A question is found as soon as one of its n-grams is. Without an n-gram of its own, because it is short or all of it is
plain, it is compared as a whole, if it has at least `SHORTEST` words. An answer is found if at least `ANSWER_SHARE` of
its n-grams are: programs share short idioms without being copies.

Words are numbered by the vocabulary of the evaluation texts; those outside it, and the ends of texts, are -1. Runs of
other numbers are looked up by their hashes, in two filters and then among those of the index, and compared number by
number where the hashes are equal.

Legend: P n-grams, S training texts, T evaluation texts, W words and ends of texts.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...schemas.arrays import numbers, view
from ...schemas.ragged import lengths_of, offsets_of, ranges, starts_of
from .words import END, words_of

COMMON_TEXTS = 10
"""An n-gram in more texts than this is common. Variants of a problem, such as an easy and a hard one, are fewer."""
PHRASE = 4
PHRASE_TEXTS = 3
PHRASE_SHARE = 0.01
SHORTEST = 5
"""Fewer words say too little to be found again."""
ANSWER_SHARE = 0.5
_BASE = 0xD6E8FEB86659FD93
_SLOTS = 8
"""Slots of a filter for each hash, at least: fewer than one in 8 others passes, and one in 64 both filters."""
_SHOWN = 60
"""Words of the longest run that a hit names."""
_Numbers = NDArray[np.int32]
_Places = NDArray[np.int64]


class Shared(NamedTuple):
    """What a training example shares with an evaluation text."""

    example: int
    text: int
    """The evaluation text."""
    share: float
    """The share of its n-grams that the example has; 1 if it was compared whole."""
    longest: str
    """The longest run of words that both share, as they were compared; at most `_SHOWN` of its words."""


class ContaminationIndex:
    """What training text is compared with.

    Args:
        texts: T of them, at least one.
        asks: (T,) whether each is a question, not an answer.
        ngram: words of an n-gram, at least `SHORTEST`.
    """

    def __init__(self, texts: Sequence[str], asks: Sequence[bool], ngram: int) -> None:
        words = words_of(texts)
        distinct = pc.unique(words.values)
        self._vocabulary = distinct.filter(pc.not_equal(distinct, END))
        ids, starts = self._numbered(words)
        owners = np.repeat(np.arange(len(texts)), np.diff(starts))
        places = _runs(ids, ngram)
        places = places[(_telling(ids, self._vocabulary, ngram) & ~_framed(ids, owners, ngram))[places]]
        had = np.bincount(owners[places], minlength=len(texts)) > 0
        often, first = _spread(_hashes(ids, ngram)[places], owners[places])
        places = places[first[often[first] <= COMMON_TEXTS]]
        # Texts of which every n-gram is common are frames themselves.
        whole = np.array(asks, np.bool_) & ~had & (np.diff(starts) > SHORTEST)
        self.asks, self._ngram = np.array(asks, np.bool_), ngram
        self._ids, self._owners, self._sizes = ids, owners, np.diff(starts) - 1
        self._counts = np.bincount(owners[places], minlength=len(texts)) + whole
        self._ngrams, self._heads = _Lookup(ids, ngram, places), _Lookup(ids, SHORTEST, starts[:-1][whole])

    def search(self, texts: Sequence[str], examples: Sequence[Sequence[int]]) -> list[Shared]:
        """What examples share with evaluation texts, by example and text. It does not depend on the other examples.

        Args:
            texts: S parts of examples.
            examples: (S,) the examples that have each part.
        """
        ids, starts = self._numbered(words_of(texts))
        begins, sizes = _stretches(ids, SHORTEST)
        kept = ranges(begins, sizes + 1)
        here, there, sizes = self._found(ids[kept])
        part, often = np.searchsorted(starts, kept[here], "right") - 1, lengths_of(examples)
        every = np.array([*chain.from_iterable(examples)], np.int64)
        example = every[ranges(starts_of(often)[part], often[part])]
        here, there, sizes = (np.repeat(one, often[part]) for one in (here, there, sizes))
        order = np.lexsort((here, there - here, self._owners[there], example))
        example, here, there, sizes = example[order], here[order], there[order], sizes[order]
        text, step = self._owners[there], np.arange(len(here))
        pairs = np.flatnonzero(_begins(example, text))
        # N-grams that follow each other in both texts are one run of words.
        runs = np.flatnonzero(_begins(example, text, here - step, there - step))
        sizes, pair = sizes[runs] + np.diff(np.r_[runs, len(here)]) - 1, np.searchsorted(pairs, runs, "right")
        order = np.lexsort((here[runs], -sizes, pair))
        longest = order[_begins(pair[order])]
        order = np.lexsort((there, example))  # an example may have an n-gram more than once
        counts = np.add.reduceat(_begins(example[order], there[order]), pairs, dtype=np.int64)
        shares = counts / self._counts[text[pairs]]
        hits = np.flatnonzero(self.asks[text[pairs]] | (shares >= ANSWER_SHARE))
        first, sizes = there[runs[longest[hits]]], np.minimum(sizes[longest[hits]], _SHOWN)
        said = self._vocabulary.take(numbers(self._ids[ranges(first, sizes)])).to_pylist()
        shown = [" ".join(said[end - size : end]) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]
        at = pairs[hits]
        return list(map(Shared, example[at].tolist(), text[at].tolist(), shares[hits].tolist(), shown))

    def _numbered(self, words: pa.ListArray) -> tuple[_Numbers, _Places]:
        """(W,) the numbers of the words of N texts, with -1 at each end, and (N + 1,) where texts begin."""
        ids = pc.index_in(words.values, value_set=self._vocabulary).fill_null(-1)
        return view(ids), view(words.offsets).astype(np.int64)

    def _found(self, ids: _Numbers) -> tuple[_Places, _Places, _Places]:
        """(word here, word of the index, words) of each n-gram, and of each text that is compared whole."""
        here, there = self._heads.find(ids)
        size = self._sizes[self._owners[there]]
        for step in range(SHORTEST, int(size.max(initial=0))):  # after the last text there is a -1
            same = (size <= step) | (ids.take(here + step, mode="clip") == self._ids.take(there + step, mode="clip"))
            here, there, size = here[same], there[same], size[same]
        at, place = self._ngrams.find(ids)
        size = np.r_[size, np.full(len(at), self._ngram)]
        return np.r_[here, at], np.r_[there, place], size


class _Lookup:
    """Runs of `count` words of the index, to be found among other words.

    Args:
        ids: (W,) the numbers of the index's words.
        places: (P,) the first word of each run.
    """

    def __init__(self, ids: _Numbers, count: int, places: _Places) -> None:
        keys = _hashes(ids, count)[places]
        order = np.argsort(keys, kind="stable")
        self._ids, self._count, self._keys, self._places = ids, count, keys[order], places[order]
        bits = max(10, (_SLOTS * len(keys)).bit_length())
        self._shift, self._low = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
        self._first, self._second = np.zeros((2, 1 << bits), np.bool_)
        self._first[keys >> self._shift] = True
        self._second[keys & self._low] = True

    def find(self, ids: _Numbers) -> tuple[_Places, _Places]:
        """(word here, word of the index) wherever all words of a run are the same."""
        at = _runs(ids, self._count) if len(self._keys) else np.zeros(0, np.int64)
        mine = _hashes(ids, self._count)[at]
        passed = np.flatnonzero(self._first[(mine >> self._shift).view(np.int64)])
        passed = passed[self._second[(mine[passed] & self._low).view(np.int64)]]
        at, mine = at[passed], mine[passed]
        low, high = (np.searchsorted(self._keys, mine, side) for side in ("left", "right"))
        here, there = np.repeat(at, high - low), self._places[ranges(low, high - low)]
        run = np.arange(self._count)
        same = (ids[here[:, None] + run] == self._ids[there[:, None] + run]).all(axis=1)
        return here[same], there[same]


def _stretches(ids: _Numbers, least: int) -> tuple[_Places, _Places]:
    """The first word of each stretch of at least so many numbers that has a -1 on both sides, and its words."""
    ends = np.flatnonzero(ids < 0)
    begins = np.r_[-1, ends][:-1] + 1
    long = ends - begins >= least
    return begins[long], (ends - begins)[long]


def _runs(ids: _Numbers, count: int) -> _Places:
    """The first word of each run of `count` words within a stretch."""
    begins, sizes = _stretches(ids, count)
    return ranges(begins, sizes - count + 1)


def _hashes(ids: _Numbers, count: int) -> NDArray[np.uint64]:
    """(max(W - count + 1, 0),) the hash of each run of `count` numbers: a polynomial, made by doubling its length."""
    every = ids.astype(np.uint64)
    out, size = every, 1
    for bit in f"{count:b}"[1:]:
        out, size = out[:-size] * np.uint64(pow(_BASE, size, 1 << 64)) + out[size:], 2 * size
        if bit == "1":
            out, size = out[:-1] * np.uint64(_BASE) + every[size:], size + 1
    return out


def _spread(keys: NDArray[np.uint64], owners: _Places) -> tuple[_Places, _Places]:
    """(N,) how many texts have the run of words that each of N keys stands for, and the first place of each run in each
    text.

    Args:
        owners: (N,) the text of each key, ascending.
    """
    order = np.argsort(keys, kind="stable")
    new = _begins(keys[order], owners[order])
    group = np.cumsum(_begins(keys[order])) - 1
    often = np.empty(len(keys), np.int64)
    often[order] = np.bincount(group[new])[group]
    return often, order[new]


def _begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether an entry of any of the (N,) columns differs from the one before; the first ones do."""
    out = np.ones(len(columns[0]), np.bool_)
    out[1:] = np.logical_or.reduce([one[1:] != one[:-1] for one in columns])
    return out


def _windows(flags: NDArray[np.bool_], count: int) -> _Places:
    """(W - count + 1,) how many of each run of flags are set."""
    sums = offsets_of(flags)
    out: _Places = sums[count:] - sums[: max(len(sums) - count, 0)]
    return out


def _telling(ids: _Numbers, vocabulary: pa.Array, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether each n-gram is not plain."""
    letters = [not word.isascii() or sum(map(str.isalpha, word)) >= 2 for word in vocabulary.to_pylist()]
    named = _windows(np.array([*letters, False])[ids], ngram)
    order = np.argsort(ids, kind="stable")
    before = np.full(len(ids), -1)
    same = ids[order[1:]] == ids[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    differ, here = np.zeros(len(named), np.int64), np.arange(len(named))
    for step in range(ngram):
        differ += before[step : step + len(named)] < here
    out: NDArray[np.bool_] = (2 * named >= ngram) & (2 * differ >= ngram)
    return out


def _framed(ids: _Numbers, owners: _Places, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether half of each n-gram's words or more are in phrases that many texts have."""
    at = _runs(ids, PHRASE)
    often, _ = _spread(_hashes(ids, PHRASE)[at], owners[at])
    frames = at[often > max(PHRASE_TEXTS, PHRASE_SHARE * (owners[-1] + 1))]
    inside = np.zeros(len(ids), np.bool_)
    for step in range(PHRASE):
        inside[frames + step] = True
    return 2 * _windows(inside, ngram) >= ngram
