"""The texts of evaluation rows, indexed by the hashes of their n-grams (runs of n words).

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

Legend: G distinct n-grams, P postings (an n-gram in a text), T texts, S texts that are compared whole, W words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import ranges
from .hashes import Sums
from .words import Words, words_of

COMMON_TEXTS = 10
"""An n-gram in more texts than this is common. Variants of a problem, such as an easy and a hard one, are fewer."""
PHRASE = 4
PHRASE_TEXTS = 3
PHRASE_SHARE = 0.01
SHORTEST = 5
"""Fewer words say too little to be found again."""
_GROUP = 1 << 20
"""Characters of texts that are hashed together."""
_BITS = 32
"""Bits of the filter for each n-gram, at least: fewer than one in 200 others passes."""


@dataclass(frozen=True, slots=True, eq=False)
class OverlapIndex:
    """What training text is compared with."""

    ngram: int
    hashes: NDArray[np.uint64]
    """(G,) ascending."""
    filter: NDArray[np.uint8]
    """(2**k / 8,) bits of a Bloom filter of `hashes`; see `passing`."""
    starts: NDArray[np.int64]
    """(G + 1,) the first posting of each n-gram, then P."""
    posting_words: NDArray[np.int64]
    """(P,) the word, of all W, at which the n-gram is first in its text; ascending within an n-gram."""
    whole_hashes: NDArray[np.uint64]
    """(S,) hashes of the first `SHORTEST` words of texts that are compared whole, ascending."""
    whole_filter: NDArray[np.uint8]
    """As `filter`, for `whole_hashes`."""
    whole_texts: NDArray[np.int32]
    """(S,) these texts."""
    counts: NDArray[np.int64]
    """(T,) how many n-grams of each text count; 0 for texts that are compared whole, or not at all."""
    data: NDArray[np.uint8]
    """See `Words.data`."""
    begins: NDArray[np.int64]
    """(W,) see `Words`."""
    ends: NDArray[np.int64]
    """(W,) see `Words`."""
    texts: NDArray[np.int64]
    """(T + 1,) see `Words`."""
    common: int = 0
    """How many n-grams are ignored because they are common."""
    framed: int = 0
    """How many, counted in each text, because they are framed."""
    plain: int = 0
    """How many, counted in each text, because they are plain."""

    @property
    def words(self) -> Words:
        """The words of all texts."""
        return Words(self.data, self.begins, self.ends, self.texts)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, for storing."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    @property
    def whole(self) -> NDArray[np.bool_]:
        """(T,) which texts are compared whole."""
        out = np.zeros(len(self.counts), dtype=np.bool_)
        out[self.whole_texts] = True
        return out


def build_index(texts: Sequence[str], asks: Sequence[bool], ngram: int) -> OverlapIndex:
    """Index the (T,) texts.

    Args:
        asks: (T,) whether each is a question, not an answer: only questions are compared whole.
        ngram: words of an n-gram, at least `SHORTEST`.
    """
    groups = [words_of(group) for group in _groups(texts)]
    hashes, owners, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    short_hashes, short_texts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
    phrases = _common_phrases(groups, len(texts))
    plain = framed = first_word = first_text = 0
    for words in groups:
        sums, own = Sums.of(words), words.owners
        alone = own[: max(len(words) - ngram + 1, 0)] == own[ngram - 1 :]
        telling = _telling(words, sums, ngram)
        plain += int((alone & ~telling).sum())
        own_words = _own_words(words, sums, phrases, ngram)
        framed += int((alone & telling & ~own_words).sum())
        at = np.flatnonzero(alone & telling & own_words)
        hashes.append(sums.grams(ngram)[at])
        owners.append((own[at] + first_text).astype(np.int32))
        places.append(at + first_word)
        starts, lengths = words.texts[:-1], np.diff(words.texts)
        few = np.flatnonzero(lengths >= SHORTEST)
        short_hashes.append(sums.runs(starts[few], np.full(len(few), SHORTEST)))
        short_texts.append((few + first_text).astype(np.int32))
        first_word, first_text = first_word + len(words), first_text + len(lengths)
    found, owner, place = np.concatenate(hashes), np.concatenate(owners), np.concatenate(places)
    order = np.lexsort((place, owner, found))
    found, owner, place = found[order], owner[order], place[order]
    first = np.ones(len(found), dtype=np.bool_)  # of each n-gram in each text
    first[1:] = (found[1:] != found[:-1]) | (owner[1:] != owner[:-1])
    found, owner, place = found[first], owner[first], place[first]
    distinct, starts, often = np.unique(found, return_index=True, return_counts=True)
    rare = often <= COMMON_TEXTS
    kept = ranges(starts[rare], often[rare])
    words = _joined(groups)
    counts = np.bincount(owner[kept], minlength=len(texts)).astype(np.int64)
    heads, whole = np.concatenate(short_hashes), np.concatenate(short_texts)
    # Texts of which every n-gram is common are frames themselves.
    had = np.bincount(owner, minlength=len(texts))
    mine = (had[whole] == 0) & np.array(asks, dtype=np.bool_)[whole]
    heads, whole = heads[mine], whole[mine]
    order = np.argsort(heads, kind="stable")
    return OverlapIndex(
        ngram=ngram,
        hashes=distinct[rare],
        filter=_filter(distinct[rare]),
        starts=np.r_[0, np.cumsum(often[rare])].astype(np.int64),
        posting_words=place[kept],
        whole_hashes=heads[order],
        whole_filter=_filter(heads),
        whole_texts=whole[order],
        counts=counts,
        data=words.data,
        begins=words.begins,
        ends=words.ends,
        texts=words.texts,
        common=int((~rare).sum()),
        framed=framed,
        plain=plain,
    )


def passing(filter: NDArray[np.uint8], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(K,) the hashes that may be in the set that a Bloom filter was made of, ascending."""
    bits = len(filter).bit_length() + 2

    def has(some: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.flatnonzero((filter[some >> np.uint64(3)] >> (some & np.uint64(7)).astype(np.uint8)) & 1)

    first = has(hashes >> np.uint64(64 - bits))
    return first[has(hashes[first] & np.uint64((1 << bits) - 1))]


def _filter(hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The filter, with two bits for each hash: one at its first bits, one at its last."""
    bits = max(10, (len(hashes) * _BITS - 1).bit_length())
    out = np.zeros(1 << (bits - 3), np.uint8)
    for places in (hashes >> np.uint64(64 - bits), hashes & np.uint64((1 << bits) - 1)):
        np.bitwise_or.at(out, places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8))
    return out


def _common_phrases(groups: Sequence[Words], texts: int) -> NDArray[np.uint64]:
    """The hashes of phrases that many texts have, ascending."""
    hashes, owners, first = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)], 0
    for words in groups:
        own = words.owners
        alone = np.flatnonzero(own[: max(len(words) - PHRASE + 1, 0)] == own[PHRASE - 1 :])
        hashes.append(Sums.of(words).grams(PHRASE)[alone])
        owners.append((own[alone] + first).astype(np.int32))
        first += len(words.texts) - 1
    found, owner = np.concatenate(hashes), np.concatenate(owners)
    order = np.lexsort((owner, found))
    found, owner = found[order], owner[order]
    once = np.r_[True, (found[1:] != found[:-1]) | (owner[1:] != owner[:-1])][: len(found)]
    distinct, often = np.unique(found[once], return_counts=True)
    return distinct[often > max(PHRASE_TEXTS, PHRASE_SHARE * texts)]


def _own_words(words: Words, sums: Sums, phrases: NDArray[np.uint64], ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether more than half of each n-gram's words are in no common phrase."""
    many = max(len(words) - ngram + 1, 0)
    if not many or not len(phrases):
        return np.ones(many, dtype=np.bool_)
    hashes = sums.grams(PHRASE)
    at = np.minimum(np.searchsorted(phrases, hashes), len(phrases) - 1)
    begins = np.flatnonzero(phrases[at] == hashes)
    inside = np.zeros(len(words) + 1, np.int64)
    for step in range(PHRASE):
        inside[begins + step] = 1
    framed = np.r_[0, np.cumsum(inside)]
    out: NDArray[np.bool_] = 2 * (framed[ngram : ngram + many] - framed[:many]) < ngram
    return out


def _telling(words: Words, sums: Sums, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether each n-gram is not plain."""
    many = max(len(words) - ngram + 1, 0)
    if not many:
        return np.zeros(0, dtype=np.bool_)
    data = words.data
    letters = ((data >= ord("a")) & (data <= ord("z"))) * np.int64(1) + (data >= 128) * np.int64(2)
    named = np.r_[0, np.cumsum(np.add.reduceat(letters, words.begins) >= 2)]
    alone = sums.runs(np.arange(len(words)), np.ones(len(words), np.int64))
    order = np.argsort(alone, kind="stable")
    before = np.full(len(words), -1, np.int64)
    same = alone[order[1:]] == alone[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    distinct = np.zeros(many, np.int64)
    here = np.arange(many)
    for step in range(ngram):
        distinct += before[step : step + many] < here
    half = (ngram + 1) // 2
    out: NDArray[np.bool_] = (named[ngram:] - named[:many] >= half) & (distinct >= half)
    return out


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    group, size = list[str](), 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= _GROUP:
            yield group
            group, size = [], 0
    yield group


def _joined(groups: Sequence[Words]) -> Words:
    bytes_before = np.cumsum([0, *(len(group.data) for group in groups)])
    words_before = np.cumsum([0, *(len(group) for group in groups)])

    def joined(name: str, shifts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([getattr(one, name) + by for one, by in zip(groups, shifts[:-1], strict=True)])

    texts = [group.texts[:-1] + by for group, by in zip(groups, words_before[:-1], strict=True)]
    return Words(
        np.concatenate([group.data for group in groups]),
        joined("begins", bytes_before),
        joined("ends", bytes_before),
        np.concatenate([*texts, words_before[-1:]]).astype(np.int64),
    )
