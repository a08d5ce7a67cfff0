"""Hashes of runs of words, 64 bits each, computed for all words of a block at once.

The hash of bytes b[x:y] is a polynomial: the sum of b[i] * M**(i - x), modulo 2**64, mixed at the end. With sums
from the start of the data, S[x] = sum of b[i] * M**i for i < x, it is (S[y] - S[x]) * M**-x, for any x and y. M is
odd, so that it has an inverse. Equal hashes do not prove equal words: callers compare the words themselves.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...schemas.splitmix import GOLDEN
from .words import Words

_MULTIPLIER = 0xD6E8FEB86659FD93
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_WINDOW = 1 << 15
"""Bytes hashed at once: the sums of a window fit into a core's cache, and memory does not grow with the data."""
_WRAP = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """The sums at the words of W words."""

    opens: NDArray[np.uint64]
    """(W + 1,) the sum of all bytes before each word, then of all bytes."""
    shifts: NDArray[np.uint64]
    """(W,) the inverse of the multiplier's power at each word's beginning."""

    @classmethod
    def of(cls, words: Words) -> "Sums":
        """Add up the bytes of all words, one window at a time."""
        powers, inverses = _tables()
        opens, shifts = np.empty(len(words) + 1, np.uint64), np.empty(len(words), np.uint64)
        sums = np.empty(_WINDOW + 1, np.uint64)
        carry, scale, unscale = np.uint64(0), 1, 1
        starts = np.arange(0, len(words.data), _WINDOW)
        first = np.searchsorted(words.begins, [*starts, len(words.data)])
        with np.errstate(over="ignore"):
            for number, low in enumerate(starts.tolist()):
                piece = words.data[low : low + _WINDOW].astype(np.uint64)
                piece *= powers[: len(piece)]
                sums[0] = 0
                np.cumsum(piece, out=sums[1 : len(piece) + 1])
                by, back = np.uint64(scale), np.uint64(unscale)
                here = slice(first[number], first[number + 1])
                at = words.begins[here] - low
                opens[here] = sums[at] * by + carry
                shifts[here] = inverses[at] * back
                carry = carry + sums[len(piece)] * by
                scale, unscale = scale * _STEP & _WRAP, unscale * _BACK & _WRAP
        opens[len(words)] = carry
        return cls(opens, shifts)

    def grams(self, count: int) -> NDArray[np.uint64]:
        """(max(W - count + 1, 0),) the hash of each run of `count` words with their spaces, also across texts."""
        many = max(len(self.shifts) - count + 1, 0)
        return self._mixed(self.opens[count:][:many], self.opens[:many], self.shifts[:many])

    def runs(self, first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(K,) the hash of each run of `counts` words from `first` on."""
        return self._mixed(self.opens[first + counts], self.opens[first], self.shifts[first])

    @staticmethod
    def _mixed(closes: NDArray[np.uint64], opens: NDArray[np.uint64], shifts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        with np.errstate(over="ignore"):
            out = closes - opens
            out *= shifts
            out ^= out >> np.uint64(32)
            out *= np.uint64(GOLDEN)
            out ^= out >> np.uint64(29)
        return out


_STEP = pow(_MULTIPLIER, _WINDOW, 1 << 64)
_BACK = pow(_INVERSE, _WINDOW, 1 << 64)


@lru_cache(maxsize=1)
def _tables() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """(_WINDOW + 1,) the powers of the multiplier, and of its inverse."""
    with np.errstate(over="ignore"):
        powers, inverses = (
            np.cumprod(np.r_[np.uint64(1), np.full(_WINDOW, base, np.uint64)], dtype=np.uint64)
            for base in (_MULTIPLIER, _INVERSE)
        )
    return powers, inverses
