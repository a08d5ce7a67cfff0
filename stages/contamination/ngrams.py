"""N-grams (n words that follow each other) of numbered words: where they begin, their hashes, and a fast look-up.

Legend: W words and ends of texts, numbered, -1 for an end or a word of no evaluation text; P n-grams; M matches.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import ranges

WordIds = NDArray[np.int32]
Positions = NDArray[np.int64]
_HASH_BASE = 0xD6E8FEB86659FD93
"""The B of `ngram_hashes`."""
_SLOTS_PER_HASH = 16
"""Slots of the table for each hash, at least: of other hashes, fewer than one in 16 meets a slot that is used."""


def stretches(word_ids: WordIds, min_length: int) -> tuple[Positions, Positions]:
    """Where each stretch of at least `min_length` words without a -1 begins, and how many words it has. The last of all
    words must be a -1.

    Of the words 5 2 -1 7 -1, with a minimum of 1: they begin at 0 and 3, and have 2 and 1 words.
    """
    ends = np.flatnonzero(word_ids < 0)
    # Each stretch begins behind the end of the one before it, the first at 0.
    starts = np.r_[-1, ends][:-1] + 1
    is_long = ends - starts >= min_length
    return starts[is_long], (ends - starts)[is_long]


def ngram_positions(word_ids: WordIds, ngram: int) -> Positions:
    """(P,) where each n-gram begins; none contains a -1."""
    starts, lengths = stretches(word_ids, ngram)
    return ranges(starts, lengths - ngram + 1)


def ngram_hashes(word_ids: WordIds, ngram: int) -> NDArray[np.uint64]:
    """(max(W - ngram + 1, 0),) the hash of the n-gram at each position.

    The hash of words a b c is a·B² + b·B + c, modulo 2⁶⁴. The hash of 2 k words is made of two hashes of k words, so
    that 13-grams take five steps over the array in place of 12: from 1 word to 2, 3, 6, 12 and 13.
    """
    word_hashes = word_ids.astype(np.uint64)
    hashes = word_hashes
    length = 1
    # The bits of 13, 1101, behind the first: 1 doubles 1 word and adds one, which gives 3; 0 doubles them to 6; and 1
    # gives 13.
    for bit in f"{ngram:b}"[1:]:
        # The n-gram of 2 k words at a position is the one of k words there, then the one k positions later.
        hashes = hashes[:-length] * np.uint64(pow(_HASH_BASE, length, 1 << 64)) + hashes[length:]
        length *= 2
        if bit == "1":
            hashes = hashes[:-1] * np.uint64(_HASH_BASE) + word_hashes[length:]
            length += 1
    return hashes


class NgramLookup:
    """Some n-grams of one text of numbered words, to be found among the words of others.

    A table says of nearly all n-grams that none of these has their hash, before the slower binary search: looking up 4
    million words without a match among 540,000 n-grams takes 0.3 s in place of 2.6 s.

    Args:
        word_ids: (W,) the numbers of the words, in which the n-grams are.
        ngram: n.
        positions: (P,) where each n-gram begins in them.
    """

    def __init__(self, word_ids: WordIds, ngram: int, positions: Positions) -> None:
        hashes = ngram_hashes(word_ids, ngram)[positions]
        order = np.argsort(hashes, kind="stable")
        self._word_ids = word_ids
        self._ngram = ngram
        self._sorted_hashes = hashes[order]
        self._positions = positions[order]
        # 540,000 hashes get 2^24 slots, and the last 24 bits of a hash say which is its own.
        bits = max(10, (_SLOTS_PER_HASH * len(hashes)).bit_length())
        self._slot_mask = np.uint64((1 << bits) - 1)
        self._is_slot_used = np.zeros(1 << bits, np.bool_)
        self._is_slot_used[hashes & self._slot_mask] = True

    def find(self, word_ids: WordIds) -> tuple[Positions, Positions]:
        """(M,) where n-grams of the look-up begin among (W,) words, and (M,) where each begins in the look-up's own
        words.

        An n-gram that several evaluation texts have is found as often.
        """
        if not len(self._sorted_hashes):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        positions = ngram_positions(word_ids, self._ngram)
        hashes = ngram_hashes(word_ids, self._ngram)[positions]
        # As signed numbers, into which numpy would convert an index anyway, more slowly.
        slots = (hashes & self._slot_mask).view(np.int64)
        likely = np.flatnonzero(self._is_slot_used[slots])
        positions = positions[likely]
        hashes = hashes[likely]
        # Equal hashes stand one behind the other: of the sorted hashes 3 5 5 8, hash 5 has the 2 entries from 1 on.
        first_entry = np.searchsorted(self._sorted_hashes, hashes, "left")
        entry_count = np.searchsorted(self._sorted_hashes, hashes, "right") - first_entry
        position = np.repeat(positions, entry_count)
        index_position = self._positions[ranges(first_entry, entry_count)]
        # Different n-grams may have one hash, so their words are compared: (M, n) of each.
        steps = np.arange(self._ngram)
        words = word_ids[position[:, None] + steps]
        index_words = self._word_ids[index_position[:, None] + steps]
        is_same = (words == index_words).all(axis=1)
        return position[is_same], index_position[is_same]


def differs_from_previous(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether an entry of any of the (N,) columns differs from the one before; the first entry counts as one.

    Of the columns 3 3 3 7 and 0 0 1 1: yes no yes yes.
    """
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs
