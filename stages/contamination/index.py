"""The n-grams (n words that follow each other) of evaluation texts, and what training examples share with them.

Which n-grams count is decided from the evaluation rows alone, so that the verdict about a training example depends on
nothing but the example. These do not count:

- *common* n-grams, which more than `COMMON_TEXTS` different texts have;
- *framed* ones: half of the words or more are in phrases of `PHRASE` words that more than `PHRASE_TEXTS` texts, and
  more than `PHRASE_SHARE` of all, have. Frames such as "the first line contains a single integer" vary in their
  numbers and names, so that few texts share n words of them;
- *plain* ones: fewer than half of the words have two letters, or fewer than half differ. They are tables of numbers,
  rulers, or loops such as `for i in range(n)`.

A question is found as soon as one of its n-grams is. Without an n-gram of its own, because it is short or all of it is
plain, it is compared whole, if it has at least `SHORTEST` words. An answer is found if at least `ANSWER_SHARE` of its
n-grams are: programs share short idioms without being copies.

Words are numbered by the vocabulary of the evaluation texts; the number of other words, and of the ends of texts, is
-1. The numbers of all texts lie in one array, in which a position stands for the word there, or for the n-gram that
begins there. N-grams of training texts are looked up by their hashes, in two filters and then among the index's
hashes, and compared number by number where the hashes are equal.

Legend: P n-grams, S training texts, T evaluation texts, W words and ends of texts, M matches.
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
_HASH_BASE = 0xD6E8FEB86659FD93
_SLOTS_PER_HASH = 8
"""Slots of a filter for each hash, at least: fewer than one in 8 other hashes passes it, and one in 64 both filters."""
_SHOWN_WORDS = 60
_WordIds = NDArray[np.int32]
_Positions = NDArray[np.int64]


class SharedText(NamedTuple):
    """What a training example shares with an evaluation text."""

    example: int
    text: int
    """The evaluation text."""
    share: float
    """The share of its n-grams that the example has; 1 if it was compared whole."""
    longest: str
    """The longest run of words that both share, as they were compared; at most `_SHOWN_WORDS` of its words."""


class _Matches(NamedTuple):
    """(M,) n-grams, and whole texts, that training and evaluation texts share."""

    position: _Positions
    """In the training texts."""
    index_position: _Positions
    """In the evaluation texts."""
    words: _Positions
    """How many words are the same: those of an n-gram, or of a text that was compared whole."""

    def take(self, which: NDArray[Any]) -> "_Matches":
        """The matches at some positions, or where a mask is set."""
        return _Matches(self.position[which], self.index_position[which], self.words[which])


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
        word_ids, text_starts = self._number(words)
        text_lengths = np.diff(text_starts) - 1  # without the end
        text_of_position = np.repeat(np.arange(len(texts)), text_lengths + 1)

        positions = _ngram_positions(word_ids, ngram)
        tells = _is_telling(word_ids, self._vocabulary, ngram) & ~_is_framed(word_ids, text_of_position, ngram)
        positions = positions[tells[positions]]
        # Counted before common n-grams are removed: a text of which every n-gram is common is a frame itself, and is
        # not compared whole.
        has_ngrams = np.bincount(text_of_position[positions], minlength=len(texts)) > 0
        hashes = _hashes(word_ids, ngram)[positions]
        text_counts, first_of_text = _count_texts(hashes, text_of_position[positions])
        positions = positions[first_of_text[text_counts[first_of_text] <= COMMON_TEXTS]]

        self.asks = np.array(asks, np.bool_)
        compared_whole = self.asks & ~has_ngrams & (text_lengths >= SHORTEST)
        self._ngram = ngram
        self._word_ids = word_ids
        self._text_of_position = text_of_position
        self._text_lengths = text_lengths
        # (T,) different n-grams of each text that count; 1 for a text that is compared whole.
        self._ngram_counts = np.bincount(text_of_position[positions], minlength=len(texts)) + compared_whole
        self._ngrams = _Lookup(word_ids, ngram, positions)
        # Texts that are compared whole are found by their first words.
        self._whole_texts = _Lookup(word_ids, SHORTEST, text_starts[:-1][compared_whole])

    def search(self, texts: Sequence[str], examples: Sequence[Sequence[int]]) -> list[SharedText]:
        """What examples share with evaluation texts, by example and text. It does not depend on the other examples.

        Args:
            texts: S parts of examples.
            examples: (S,) the examples that have each part.
        """
        all_ids, part_starts = self._number(words_of(texts))
        # Nearly all words of training data are in no stretch of words that evaluation texts have, too, and are left out
        # at once. A stretch is kept with the -1 behind it.
        stretch_starts, stretch_lengths = _stretches(all_ids, SHORTEST)
        kept = ranges(stretch_starts, stretch_lengths + 1)
        matches = self._find(all_ids[kept])

        # Each match once for each example that has the part.
        part = np.searchsorted(part_starts, kept[matches.position], "right") - 1
        examples_per_part = lengths_of(examples)
        example_list = np.array([*chain.from_iterable(examples)], np.int64)
        example = example_list[ranges(starts_of(examples_per_part)[part], examples_per_part[part])]
        matches = matches.take(np.repeat(np.arange(len(part)), examples_per_part[part]))

        # By example, then by text, then matches of equal distance between both positions, which may form one run.
        distance = matches.index_position - matches.position
        text = self._text_of_position[matches.index_position]
        order = np.lexsort((matches.position, distance, text, example))
        matches = matches.take(order)
        example = example[order]
        text = text[order]
        pair_starts = np.flatnonzero(_differs_from_previous(example, text))  # a pair: an example and a text
        shares = self._shares(matches, example, pair_starts)
        is_hit = self.asks[text[pair_starts]] | (shares >= ANSWER_SHARE)
        starts, lengths = _longest_runs(matches, example, pair_starts)
        shared_words = self._read_words(starts[is_hit], lengths[is_hit])
        hits = pair_starts[is_hit]
        return [
            SharedText(*hit)
            for hit in zip(
                example[hits].tolist(), text[hits].tolist(), shares[is_hit].tolist(), shared_words, strict=True
            )
        ]

    def _number(self, words: pa.ListArray) -> tuple[_WordIds, _Positions]:
        """(W,) the numbers of the words of N texts, with -1 at each end, and (N + 1,) where texts begin."""
        word_ids = pc.index_in(words.values, value_set=self._vocabulary).fill_null(-1)
        return view(word_ids), view(words.offsets).astype(np.int64)

    def _find(self, word_ids: _WordIds) -> _Matches:
        """The n-grams, and the texts that are compared whole, that are among (W,) words."""
        position, index_position = self._whole_texts.find(word_ids)
        whole_texts = _Matches(position, index_position, self._text_lengths[self._text_of_position[index_position]])
        # Their first words are the same: compare the others, one at a time, and keep those that still match. Behind the
        # last training text is a -1, which equals no word, so "clip" makes no match.
        for step in range(SHORTEST, int(whole_texts.words.max(initial=0))):
            is_over = whole_texts.words <= step
            word = word_ids.take(whole_texts.position + step, mode="clip")
            index_word = self._word_ids.take(whole_texts.index_position + step, mode="clip")
            whole_texts = whole_texts.take(is_over | (word == index_word))
        position, index_position = self._ngrams.find(word_ids)
        return _Matches(
            np.r_[whole_texts.position, position],
            np.r_[whole_texts.index_position, index_position],
            np.r_[whole_texts.words, np.full(len(position), self._ngram)],
        )

    def _shares(self, matches: _Matches, example: _Positions, pair_starts: _Positions) -> NDArray[np.float64]:
        """(pairs,) the share of each text's n-grams that the example has."""
        # An example may have an n-gram more than once, which counts once. Sorting by the position in the index keeps
        # the pairs where they are, because a text's positions follow each other.
        order = np.lexsort((matches.index_position, example))
        is_new = _differs_from_previous(example[order], matches.index_position[order])
        found_ngrams = np.add.reduceat(is_new, pair_starts, dtype=np.int64)
        text = self._text_of_position[matches.index_position[pair_starts]]
        shares: NDArray[np.float64] = found_ngrams / self._ngram_counts[text]
        return shares

    def _read_words(self, starts: _Positions, lengths: _Positions) -> list[str]:
        """The words of the index from some positions on, at most `_SHOWN_WORDS` of each."""
        lengths = np.minimum(lengths, _SHOWN_WORDS)
        words = self._vocabulary.take(numbers(self._word_ids[ranges(starts, lengths)])).to_pylist()
        ends = np.cumsum(lengths)
        return [" ".join(words[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _longest_runs(matches: _Matches, example: _Positions, pair_starts: _Positions) -> tuple[_Positions, _Positions]:
    """(pairs,) where the longest run of words that a pair shares begins in the index, and how many words it has.

    N-grams that follow each other in both texts are one run: of 13-grams at 7, 8 and 9 in the one and at 70, 71 and 72
    in the other, a run of 15 words.
    """
    match_numbers = np.arange(len(example))
    # Within a run, both positions grow by one with each match, so their differences from the match's number stay.
    run_starts = np.flatnonzero(
        _differs_from_previous(example, matches.position - match_numbers, matches.index_position - match_numbers)
    )
    matches_of_run = np.diff(np.r_[run_starts, len(example)])
    run_lengths = matches.words[run_starts] + matches_of_run - 1
    pair_of_run = np.searchsorted(pair_starts, run_starts, "right")
    # By pair, the longest first; of equal ones the first in the training text.
    order = np.lexsort((matches.position[run_starts], -run_lengths, pair_of_run))
    longest = order[_differs_from_previous(pair_of_run[order])]
    return matches.index_position[run_starts[longest]], run_lengths[longest]


class _Lookup:
    """N-grams of the index, to be found among other words.

    Two filters, indexed by the high and by the low bits of the hashes, say of nearly all n-grams that they are not in
    the index, before the slower binary search. Looking up 4 million words without a match among 540,000 n-grams takes
    0.16 s in place of 2.6 s, and 0.30 s with one filter.

    Args:
        word_ids: (W,) the numbers of the index's words.
        ngram: words of an n-gram.
        positions: (P,) where each n-gram begins.
    """

    def __init__(self, word_ids: _WordIds, ngram: int, positions: _Positions) -> None:
        hashes = _hashes(word_ids, ngram)[positions]
        order = np.argsort(hashes, kind="stable")
        self._word_ids = word_ids
        self._ngram = ngram
        self._sorted_hashes = hashes[order]
        self._positions = positions[order]
        bits = max(10, (_SLOTS_PER_HASH * len(hashes)).bit_length())
        self._high_shift = np.uint64(64 - bits)
        self._low_mask = np.uint64((1 << bits) - 1)
        self._high_filter = np.zeros(1 << bits, np.bool_)
        self._high_filter[hashes >> self._high_shift] = True
        self._low_filter = np.zeros(1 << bits, np.bool_)
        self._low_filter[hashes & self._low_mask] = True

    def find(self, word_ids: _WordIds) -> tuple[_Positions, _Positions]:
        """(M,) positions among (W,) words, and in the index, of each n-gram that both have."""
        if not len(self._sorted_hashes):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        positions = _ngram_positions(word_ids, self._ngram)
        hashes = _hashes(word_ids, self._ngram)[positions]
        # Slots are indexed as signed numbers, which numpy would otherwise convert first.
        passed = np.flatnonzero(self._high_filter[(hashes >> self._high_shift).view(np.int64)])
        passed = passed[self._low_filter[(hashes[passed] & self._low_mask).view(np.int64)]]
        positions = positions[passed]
        hashes = hashes[passed]
        # An n-gram that several texts have stands several times in the index, one behind the other.
        first = np.searchsorted(self._sorted_hashes, hashes, "left")
        counts = np.searchsorted(self._sorted_hashes, hashes, "right") - first
        position = np.repeat(positions, counts)
        index_position = self._positions[ranges(first, counts)]
        # Different n-grams may have one hash.
        steps = np.arange(self._ngram)
        words = word_ids[position[:, None] + steps]
        index_words = self._word_ids[index_position[:, None] + steps]
        is_same = (words == index_words).all(axis=1)
        return position[is_same], index_position[is_same]


def _stretches(word_ids: _WordIds, min_length: int) -> tuple[_Positions, _Positions]:
    """Where each stretch of at least so many words without a -1 begins, and how many words it has.

    Of 5 2 -1 7 -1, with a minimum of 1: (0, 3) and (2, 1).
    """
    ends = np.flatnonzero(word_ids < 0)
    starts = np.r_[-1, ends][:-1] + 1
    is_long = ends - starts >= min_length
    return starts[is_long], (ends - starts)[is_long]


def _ngram_positions(word_ids: _WordIds, ngram: int) -> _Positions:
    """(P,) where each n-gram begins; none contains a -1."""
    starts, lengths = _stretches(word_ids, ngram)
    return ranges(starts, lengths - ngram + 1)


def _hashes(word_ids: _WordIds, ngram: int) -> NDArray[np.uint64]:
    """(max(W - ngram + 1, 0),) the hash of the n-gram at each position.

    The hash of words a b c is a·B² + b·B + c, modulo 2⁶⁴. Those of 2 k words are made of those of k words, so that
    13-grams take five steps over the array in place of 12: from 1 word to 2, 3, 6, 12 and 13.
    """
    word_hashes = word_ids.astype(np.uint64)
    hashes = word_hashes
    length = 1
    for bit in f"{ngram:b}"[1:]:
        hashes = hashes[:-length] * np.uint64(pow(_HASH_BASE, length, 1 << 64)) + hashes[length:]
        length *= 2
        if bit == "1":
            hashes = hashes[:-1] * np.uint64(_HASH_BASE) + word_hashes[length:]
            length += 1
    return hashes


def _count_texts(hashes: NDArray[np.uint64], texts: _Positions) -> tuple[_Positions, _Positions]:
    """(N,) how many texts have the n-gram of each of N hashes, and the first entry of each n-gram in each text.

    Args:
        texts: (N,) the text of each hash, ascending.
    """
    order = np.argsort(hashes, kind="stable")
    is_new_in_text = _differs_from_previous(hashes[order], texts[order])
    ngram_number = np.cumsum(_differs_from_previous(hashes[order])) - 1
    texts_of_ngram = np.bincount(ngram_number[is_new_in_text])
    text_counts = np.empty(len(hashes), np.int64)
    text_counts[order] = texts_of_ngram[ngram_number]
    return text_counts, order[is_new_in_text]


def _differs_from_previous(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether an entry of any of the (N,) columns differs from the one before; the first ones do."""
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs


def _window_sums(flags: NDArray[np.bool_], size: int) -> _Positions:
    """(W - size + 1,) how many flags are set among `size` of them, from each position on."""
    sums = offsets_of(flags)
    window_sums: _Positions = sums[size:] - sums[: max(len(sums) - size, 0)]
    return window_sums


def _is_telling(word_ids: _WordIds, vocabulary: pa.Array, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether each n-gram is not plain."""
    # A word in another script tells as much with one character.
    has_letters = [not word.isascii() or sum(map(str.isalpha, word)) >= 2 for word in vocabulary.to_pylist()]
    lettered_words = _window_sums(np.array([*has_letters, False])[word_ids], ngram)  # -1 takes the last entry
    # Where the same word stood before. A word is the first of its kind in an n-gram if that is before the n-gram.
    order = np.argsort(word_ids, kind="stable")
    is_repeated = word_ids[order[1:]] == word_ids[order[:-1]]
    previous = np.full(len(word_ids), -1)
    previous[order[1:][is_repeated]] = order[:-1][is_repeated]
    count = len(lettered_words)
    positions = np.arange(count)
    different_words = np.zeros(count, np.int64)
    for step in range(ngram):
        different_words += previous[step : step + count] < positions
    telling: NDArray[np.bool_] = (2 * lettered_words >= ngram) & (2 * different_words >= ngram)
    return telling


def _is_framed(word_ids: _WordIds, text_of_position: _Positions, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether half of each n-gram's words or more are in phrases that many texts have."""
    positions = _ngram_positions(word_ids, PHRASE)
    text_counts, _ = _count_texts(_hashes(word_ids, PHRASE)[positions], text_of_position[positions])
    text_count = text_of_position[-1] + 1
    phrases = positions[text_counts > max(PHRASE_TEXTS, PHRASE_SHARE * text_count)]
    in_phrase = np.zeros(len(word_ids), np.bool_)
    for step in range(PHRASE):
        in_phrase[phrases + step] = True
    return 2 * _window_sums(in_phrase, ngram) >= ngram
