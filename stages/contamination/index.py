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
begins there; see `ngrams`.

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
from .ngrams import (
    NgramLookup,
    Positions,
    WordIds,
    differs_from_previous,
    ngram_hashes,
    ngram_positions,
    stretches,
)
from .words import END, words_of

COMMON_TEXTS = 10
"""An n-gram in more texts than this is common. Variants of a problem, such as an easy and a hard one, are fewer."""
PHRASE = 4
PHRASE_TEXTS = 3
PHRASE_SHARE = 0.01
SHORTEST = 5
"""Fewer words say too little to be found again."""
ANSWER_SHARE = 0.5
_SHOWN_WORDS = 60


class SharedText(NamedTuple):
    """What a training example shares with an evaluation text."""

    example: int
    """Its number, as the caller of `search` counts examples."""
    text: int
    """The number of the evaluation text in the index."""
    share: float
    """The share of the evaluation text's n-grams that the example has; 1 if the text was compared whole."""
    longest: str
    """The longest run of words that both share, as they were compared; at most `_SHOWN_WORDS` of its words."""


class _Matches(NamedTuple):
    """(M,) n-grams, and whole texts, that training and evaluation texts share."""

    position: Positions
    """In the training texts."""
    index_position: Positions
    """In the evaluation texts."""
    words: Positions
    """How many words are the same: all of an n-gram, or all of a text that was compared whole."""

    def take(self, which: NDArray[Any]) -> "_Matches":
        """The matches at some positions, or where a mask is set."""
        return _Matches(self.position[which], self.index_position[which], self.words[which])


class _PairMatches(NamedTuple):
    """(M,) matches of pairs of an example and an evaluation text, sorted by example, then by text, then by `diagonal`.

    The diagonal is the distance between both positions: n-grams that follow each other in both texts have the same one.
    """

    matches: _Matches
    example: Positions
    """(M,) the example of each match, by its number."""
    text: Positions
    """(M,) the evaluation text of each match, by its number."""
    pair_starts: Positions
    """(pairs,) the first match of each pair."""


class ContaminationIndex:
    """What training text is compared with: the n-grams of evaluation texts that count, and short questions as a whole.

    Args:
        texts: T evaluation texts, at least one.
        asks: (T,) whether each is a question, not an answer.
        ngram: words of an n-gram, at least `SHORTEST`.
    """

    def __init__(self, texts: Sequence[str], asks: Sequence[bool], ngram: int) -> None:
        self.asks = np.array(asks, np.bool_)
        self._ngram = ngram

        # 1. The words of all texts as numbers, in one array. Of the texts `a b a` and `c`:
        #     word_ids           0 1 0 -1 2 -1    with a -1 at each end
        #     text_starts        0 4 6
        #     text_lengths       3 1              without the ends
        #     text_of_position   0 0 0 0 1 1
        words = words_of(texts)
        distinct = pc.unique(words.values)
        self._vocabulary = distinct.filter(pc.not_equal(distinct, END))
        word_ids, text_starts = self._number(words)
        text_lengths = np.diff(text_starts) - 1
        text_of_position = np.repeat(np.arange(len(texts)), text_lengths + 1)
        self._word_ids = word_ids
        self._text_lengths = text_lengths
        self._text_of_position = text_of_position

        # 2. (P,) where n-grams begin that are neither plain nor framed, and the text of each.
        positions = ngram_positions(word_ids, ngram)
        is_plain = _is_plain(word_ids, self._vocabulary, ngram)[positions]
        is_framed = _is_framed(word_ids, text_of_position, ngram)[positions]
        positions = positions[~(is_plain | is_framed)]
        text_of_ngram = text_of_position[positions]

        # 3. Texts without any are compared whole, and found by their first words. This is decided before common n-grams
        # are removed: a text of which every n-gram is common is itself a frame.
        has_ngrams = np.bincount(text_of_ngram, minlength=len(texts)) > 0
        compared_whole = self.asks & ~has_ngrams & (text_lengths >= SHORTEST)
        self._whole_texts = NgramLookup(word_ids, SHORTEST, text_starts[:-1][compared_whole])

        # 4. The n-grams that are not common, each once for each text that has it: the share of a text that an example
        # has is counted in different n-grams.
        hashes = ngram_hashes(word_ids, ngram)[positions]
        text_counts, first_of_text = _count_texts(hashes, text_of_ngram)
        counted = first_of_text[text_counts[first_of_text] <= COMMON_TEXTS]
        self._ngrams = NgramLookup(word_ids, ngram, positions[counted])
        # (T,) what a share of 1 is of: the different n-grams of each text; 1 for a text that is compared whole, which
        # is one match.
        self._ngram_counts = np.bincount(text_of_ngram[counted], minlength=len(texts)) + compared_whole

    def search(self, texts: Sequence[str], examples: Sequence[Sequence[int]]) -> list[SharedText]:
        """What examples share with evaluation texts, by example and text. What one example shares does not depend on
        the other examples.

        Args:
            texts: S parts of examples.
            examples: (S,) the examples that have each part.
        """
        word_ids, part_starts = self._number(words_of(texts))
        matches = self._find(word_ids)
        # (M,) the part of each match: the last one that begins at its position or before it.
        part = np.searchsorted(part_starts, matches.position, "right") - 1
        pairs = self._pairs_of(matches, part, examples)
        # Of each pair of an example and an evaluation text:
        example_of_pair = pairs.example[pairs.pair_starts]
        text_of_pair = pairs.text[pairs.pair_starts]
        shares = self._shares(pairs)
        longest_starts, longest_lengths = _longest_runs(pairs)
        shared_texts: list[SharedText] = []
        # A question is found by any of its n-grams.
        for pair in np.flatnonzero(self.asks[text_of_pair] | (shares >= ANSWER_SHARE)).tolist():
            # The run is shown as the evaluation text has it: it begins at this position of the index.
            index_start = longest_starts[pair]
            length = min(longest_lengths[pair], _SHOWN_WORDS)
            shown_ids = self._word_ids[index_start : index_start + length]
            words = self._vocabulary.take(numbers(shown_ids)).to_pylist()  # Arrow takes by an Arrow array
            hit = SharedText(
                example=int(example_of_pair[pair]),
                text=int(text_of_pair[pair]),
                share=float(shares[pair]),
                longest=" ".join(words),
            )
            shared_texts.append(hit)
        return shared_texts

    def _number(self, words: pa.ListArray) -> tuple[WordIds, Positions]:
        """(W,) the numbers of the words of N texts, with -1 at each end, and (N + 1,) where texts begin."""
        word_ids = pc.index_in(words.values, value_set=self._vocabulary).fill_null(-1)
        return view(word_ids), view(words.offsets).astype(np.int64)

    def _find(self, word_ids: WordIds) -> _Matches:
        """Where (W,) words of training texts hold n-grams of evaluation texts, or whole texts that have no n-grams."""
        # Most words of training data are in stretches of fewer than `SHORTEST` words that evaluation texts have, too.
        # These are left out first; a longer stretch is kept with the -1 behind it.
        stretch_starts, stretch_lengths = stretches(word_ids, SHORTEST)
        kept = ranges(stretch_starts, stretch_lengths + 1)
        kept_ids = word_ids[kept]
        whole_texts = self._find_whole_texts(kept_ids)
        position, index_position = self._ngrams.find(kept_ids)
        # `kept` turns positions among the kept words into positions among all words.
        return _Matches(
            position=kept[np.r_[whole_texts.position, position]],
            index_position=np.r_[whole_texts.index_position, index_position],
            words=np.r_[whole_texts.words, np.full(len(position), self._ngram)],
        )

    def _find_whole_texts(self, word_ids: WordIds) -> _Matches:
        """Where (W,) words of training texts hold a whole evaluation text, one of those without n-grams."""
        # Where the first `SHORTEST` words of such a text stand.
        position, index_position = self._whole_texts.find(word_ids)
        # As many words must be the same as the evaluation text has that begins there.
        matches = _Matches(position, index_position, self._text_lengths[self._text_of_position[index_position]])
        # The first words are the same by now: compare the others, one at a time, and keep those that still match.
        # Behind the last training text is a -1, which equals no word, so "clip" makes no match.
        for step in range(SHORTEST, int(matches.words.max(initial=0))):
            # A shorter text has matched already.
            is_over = matches.words <= step
            word = word_ids.take(matches.position + step, mode="clip")
            index_word = self._word_ids.take(matches.index_position + step, mode="clip")
            matches = matches.take(is_over | (word == index_word))
        return matches

    def _pairs_of(self, matches: _Matches, part: Positions, examples: Sequence[Sequence[int]]) -> _PairMatches:
        """The matches, each once for each example that has the part, sorted as `_PairMatches` says.

        Args:
            part: (M,) of the training texts, in which each match is.
            examples: (S,) the examples that have each part.
        """
        # If part 0 is in the examples 4 and 5, and part 1 in example 5, three matches in the parts 0, 0 and 1 become
        # five:
        #     part                 0 0 1
        #     examples_per_match   2 2 1
        #     match                0 0 1 1 2
        #     examples_of_parts    4 5 5        those of part 0, then those of part 1
        #     example              4 5 4 5 5
        examples_per_part = lengths_of(examples)
        examples_per_match = examples_per_part[part]
        match = np.repeat(np.arange(len(part)), examples_per_match)
        examples_of_parts = np.array([*chain.from_iterable(examples)], np.int64)
        example = examples_of_parts[ranges(starts_of(examples_per_part)[part], examples_per_match)]
        matches = matches.take(match)
        text = self._text_of_position[matches.index_position]

        # Sorted by example, then text: np.lexsort takes the last key first.
        diagonal = matches.index_position - matches.position
        order = np.lexsort((matches.position, diagonal, text, example))
        example = example[order]
        text = text[order]
        pair_starts = np.flatnonzero(differs_from_previous(example, text))
        return _PairMatches(matches.take(order), example, text, pair_starts)

    def _shares(self, pairs: _PairMatches) -> NDArray[np.float64]:
        """(pairs,) the share of each text's n-grams that the example has: 0.75 if it has 3 of 4, one of them twice."""
        # Of each n-gram that an example has several times, one match counts. Sorted by their position in the index,
        # these stand together: of the index positions 7 9 7 of a pair, 7 7 9, of which the first and the third count.
        # Pairs stay where they are, because all positions of one text come before those of the next.
        index_position = pairs.matches.index_position
        order = np.lexsort((index_position, pairs.example))
        is_new = differs_from_previous(pairs.example[order], index_position[order])
        # (pairs,) how many count, from the start of each pair to that of the next.
        found_ngrams = np.add.reduceat(is_new, pairs.pair_starts, dtype=np.int64)
        shares: NDArray[np.float64] = found_ngrams / self._ngram_counts[pairs.text[pairs.pair_starts]]
        return shares


def _longest_runs(pairs: _PairMatches) -> tuple[Positions, Positions]:
    """(pairs,) where the longest run of words that a pair shares begins in the index, and (pairs,) how many words it
    has.

    N-grams that follow each other in both texts are one run: three 13-grams are a run of 13 + 3 - 1 = 15 words.
    """
    # Matches are sorted by pair and, within a pair, by how far both positions are from each other, then by position.
    # Within a run, both positions grow by one with each match, so their distances from the match's number stay. Of five
    # matches of one pair:
    #     match            0  1  2  3  4
    #     position         7  8  9 30 31
    #     index_position  70 71 72 75 76
    #     position - match         7  7  7 27 27
    #     index_position - match  70 70 70 72 72
    # So runs start at the matches 0 and 3.
    matches = pairs.matches
    match = np.arange(len(pairs.example))
    is_run_start = differs_from_previous(pairs.example, matches.position - match, matches.index_position - match)
    run_starts = np.flatnonzero(is_run_start)
    matches_of_run = np.diff(np.r_[run_starts, len(match)])
    run_lengths = matches.words[run_starts] + matches_of_run - 1
    pair_of_run = np.searchsorted(pairs.pair_starts, run_starts, "right") - 1
    # Of each pair the longest run, which is sorted to be its first; of equal ones the first in the training text.
    order = np.lexsort((matches.position[run_starts], -run_lengths, pair_of_run))
    longest = order[differs_from_previous(pair_of_run[order])]
    return matches.index_position[run_starts[longest]], run_lengths[longest]


# Which n-grams count


def _count_texts(hashes: NDArray[np.uint64], texts: Positions) -> tuple[Positions, Positions]:
    """(N,) how many texts have the n-gram of each of N hashes, and the first entry of each n-gram in each text.

    Of the hashes 7 5 7 7 of the texts 0 0 0 1, the counts are 2 1 2 2, and the first entries 1, 0 and 3.

    Args:
        texts: (N,) the text of each hash, ascending.
    """
    # Of these hashes:
    #     order             1 0 2 3
    #     hashes[order]     5 7 7 7
    #     texts[order]      0 0 0 1
    #     is_new_in_text    1 1 0 1
    #     ngram_number      0 1 1 1
    #     texts_of_ngram    1 2
    order = np.argsort(hashes, kind="stable")
    is_new_in_text = differs_from_previous(hashes[order], texts[order])
    ngram_number = np.cumsum(differs_from_previous(hashes[order])) - 1
    texts_of_ngram = np.bincount(ngram_number[is_new_in_text])
    text_counts = np.empty(len(hashes), np.int64)
    text_counts[order] = texts_of_ngram[ngram_number]
    return text_counts, order[is_new_in_text]


def _window_sums(flags: NDArray[np.bool_], size: int) -> Positions:
    """(W - size + 1,) how many of `size` flags are set, from each position on: of 1 0 1 1, with a size of 2, 1 1 2."""
    sums = offsets_of(flags)
    window_sums: Positions = sums[size:] - sums[: max(len(sums) - size, 0)]
    return window_sums


def _is_plain(word_ids: WordIds, vocabulary: pa.Array, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether fewer than half of an n-gram's words have two letters, or fewer than half differ."""
    # A word in another script tells as much with one character.
    has_letters = [not word.isascii() or sum(map(str.isalpha, word)) >= 2 for word in vocabulary.to_pylist()]
    lettered_words = _window_sums(np.array([*has_letters, False])[word_ids], ngram)  # -1 takes the last entry
    # A word is the first of its kind in an n-gram if the same word stood last before the n-gram begins. Of the n-gram
    # 7 4 7 that begins at 0, `previous` is -1 -1 0: two of these are before 0, so two words differ.
    previous = _previous_positions(word_ids)
    count = len(lettered_words)
    begins = np.arange(count)
    different_words = np.zeros(count, np.int64)
    for step in range(ngram):
        different_words += previous[step : step + count] < begins
    plain: NDArray[np.bool_] = (2 * lettered_words < ngram) | (2 * different_words < ngram)
    return plain


def _previous_positions(word_ids: WordIds) -> Positions:
    """(W,) where the same word stood before; -1 for the first of its kind. Of 7 4 7 7: -1 -1 0 2."""
    order = np.argsort(word_ids, kind="stable")
    is_repeated = word_ids[order[1:]] == word_ids[order[:-1]]
    previous = np.full(len(word_ids), -1)
    previous[order[1:][is_repeated]] = order[:-1][is_repeated]
    return previous


def _is_framed(word_ids: WordIds, text_of_position: Positions, ngram: int) -> NDArray[np.bool_]:
    """(W - n + 1,) whether half of each n-gram's words or more are in phrases that many texts have."""
    positions = ngram_positions(word_ids, PHRASE)
    text_counts, _ = _count_texts(ngram_hashes(word_ids, PHRASE)[positions], text_of_position[positions])
    text_count = text_of_position[-1] + 1
    # The share, because among 10,000 texts a phrase in 4 of them is no frame yet; the number, because among 50 texts a
    # phrase of one of them would be.
    phrases = positions[text_counts > max(PHRASE_TEXTS, PHRASE_SHARE * text_count)]
    in_phrase = np.zeros(len(word_ids), np.bool_)
    for step in range(PHRASE):
        in_phrase[phrases + step] = True
    return 2 * _window_sums(in_phrase, ngram) >= ngram
