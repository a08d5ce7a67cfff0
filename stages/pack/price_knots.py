"""Prices that are linear between a few sizes, the knots.

With a price for every size, a relaxation over many sizes takes too long. Prices that are linear between knots need one
constraint a knot: what the patterns hold, shared between the two knots beside each size, is at least the same of the
pieces. Such prices give a bound like any others. Knots are added where the solution holds too few pieces on one side
and too many on the other, that is, where a price of its own would change most; with all sizes as knots nothing is left
out.

Legend: `M` sizes, largest first, `K` knots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of

Held = tuple[tuple[int, int], ...]
"""A pattern: (index of a size, how many of it), sizes in order."""
Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Patterns by knots: (P + 1,) where each begins; the knots; how much of each."""


@dataclass(frozen=True, slots=True, eq=False)
class Knots:
    """The knots among some sizes."""

    sizes: NDArray[np.int64]
    """(M,)"""
    at: NDArray[np.int64]
    """(K,) the index of each knot; the first and the last size are knots."""
    before: NDArray[np.int64]
    """(M,) the last knot whose size is not smaller."""
    share: NDArray[np.float64]
    """(M,) how much of a size counts as the knot after that one."""
    base: NDArray[np.float64]
    """(M,) prices of which a multiple is added."""

    @classmethod
    def among(cls, sizes: NDArray[np.int64], at: NDArray[np.int64], base: NDArray[np.float64]) -> "Knots":
        """Knots at some indices and at both ends."""
        at = np.union1d(at, [0, len(sizes) - 1])
        before = np.searchsorted(at, np.arange(len(sizes)), side="right") - 1
        upper, lower = sizes[at[before]], sizes[at[np.minimum(before + 1, len(at) - 1)]]
        return cls(sizes, at, before, (upper - sizes) / np.maximum(upper - lower, 1), base)

    def __len__(self) -> int:
        return len(self.at)

    def at_sizes(self, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """(M,) prices of all sizes, from (K,) those of the knots."""
        after = np.minimum(self.before + 1, len(self.at) - 1)
        out: NDArray[np.float64] = prices[self.before] * (1 - self.share) + prices[after] * self.share
        out += prices[-1] * self.base
        return out

    def shared(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """(K,) numbers of pieces by knot, from (M,) those by size."""
        own = np.bincount(self.before, weights=numbers * (1 - self.share), minlength=len(self.at))
        other = np.bincount(self.before + 1, weights=numbers * self.share, minlength=len(self.at) + 1)
        return np.append(own + other[: len(self.at)], np.cumsum(numbers * self.base)[-1])

    def columns(self, patterns: Sequence[Held]) -> Columns:
        """Patterns by knots."""
        flat = np.array([pair for one in patterns for pair in one], dtype=np.int64).reshape(-1, 2)
        index, number = flat[:, 0], flat[:, 1]
        wide = len(self.at) + 1
        first = np.repeat(np.arange(len(patterns)) * wide, [len(one) for one in patterns])
        keys = first + self.before[index]
        share = self.share[index]
        keys, where = np.unique(np.concatenate([keys, keys + 1, first + wide - 1]), return_inverse=True)
        parts = [number * (1 - share), number * share, number * self.base[index]]
        held: NDArray[np.float64] = np.bincount(where, weights=np.concatenate(parts)).astype(np.float64)
        keys, held = keys[held > 0], held[held > 0]
        return offsets_of(np.bincount(keys // wide, minlength=len(patterns))), keys % wide, held

    def with_more(self, left: NDArray[np.float64], most: int) -> NDArray[np.int64]:
        """(K,) the knots and more, where they change most.

        Args:
            left: (M,) pieces of each size less what the patterns hold of it.
            most: how many to add.
        """
        # A hat over the gap between two knots, its peak at a size: what is left under it is what a price there adds.
        number, tokens = np.cumsum(left), np.cumsum(left * self.sizes)
        first, last = self.at[self.before], self.at[np.minimum(self.before + 1, len(self.at) - 1)]
        upper, lower = self.sizes[first], self.sizes[last]
        before, after = np.maximum(last - 1, 0), np.arange(len(self.sizes))
        rising = upper * (number - number[first]) - (tokens - tokens[first])
        falling = (tokens[before] - tokens[after]) - lower * (number[before] - number[after])
        gain = rising / np.maximum(upper - self.sizes, 1) + falling / np.maximum(self.sizes - lower, 1)
        gain = np.where(self.share > 0, np.abs(gain), 0)
        # The best of each gap: neighbours would change the same.
        order = np.lexsort((-gain, self.before))
        best = order[np.append(True, np.diff(self.before[order]) > 0)]
        best = best[gain[best] > 1e-6]
        chosen = best[np.argsort(-gain[best], kind="stable")[:most]]
        return np.union1d(self.at, chosen)
