"""Several packed datasets read as one: which of them, and which of its rows, stands at a position.

1. The first dataset of weight a among weights that sum to d has, of the first k positions, k·a/d rounded to the
   nearest whole number: as even as it can be (Bresenham's line), and without drawing anything.
2. The positions that are left are numbered anew and dealt to the other datasets in the same way.

All of it is whole-number arithmetic, so a position costs the same anywhere, two machines agree to the last row, and
datasets whose weights are the rows that they have to give all end at the last position, each row given once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError

_UNITS = 2**40
"""Weights are kept as whole numbers that sum to about this many."""


class MixBy(StrEnum):
    """What the weights of a mixture are shares of."""

    TOKENS = "tokens"
    """Tokens of the rows."""
    ROWS = "rows"
    """Packed rows."""


class Until(StrEnum):
    """Where a mixture with weights ends."""

    FIRST = "first"
    """Before the first source would be read more often than its epochs: no row is given too often."""
    ALL = "all"
    """When every source has been read as often as its epochs: the others are read again meanwhile."""


@dataclass(frozen=True, slots=True)
class Source:
    """One packed dataset of a mixture."""

    where: str | Path
    """Folder or URL that `packtrain run` wrote."""
    weight: float | None = None
    """Its share of the mixture; only the proportions count. None for all sources: each is read its epochs, spread
    evenly, and all end together."""
    epochs: int | None = None
    """How often it is read; None for the loader's own number."""
    split: str = "train"


@dataclass(frozen=True, slots=True)
class Mixture:
    """Positions dealt to S datasets in proportion.

    Args:
        weights: (S,) positive whole numbers.
        total: positions in all.
    """

    weights: tuple[int, ...]
    total: int

    def counts(self, position: int) -> list[int]:
        """(S,) how many of the first `position` positions belong to each dataset. They add up to `position`."""
        counts = []
        left, weight = position, sum(self.weights)
        for mine in self.weights[:-1]:
            count = (2 * left * mine + weight) // (2 * weight)
            counts.append(count)
            left, weight = left - count, weight - mine
        return [*counts, left]

    def owners(self, first: int, last: int) -> NDArray[np.int64]:
        """(last - first,) the dataset at each position. What belongs to one dataset are consecutive positions of it."""
        out = np.full(last - first, len(self.weights) - 1, dtype=np.int64)
        left = np.arange(last - first)  # those that no dataset has taken yet
        weight = sum(self.weights)
        for number, mine in enumerate(self.weights[:-1]):
            # Positions are too large to multiply in 64 bits; from the first one on the steps are small.
            doubled = 2 * first * mine + weight
            before, rest = divmod(doubled, 2 * weight)
            counts = (rest + 2 * mine * np.arange(len(left) + 1)) // (2 * weight)
            taken = np.diff(counts) > 0
            out[left[taken]] = number
            left = left[~taken]
            first, weight = first - before, weight - mine
        return out


def even(rows: Sequence[int]) -> Mixture:
    """Datasets that have these many rows to give, spread evenly so that all end together."""
    return Mixture(tuple(rows), sum(rows))


def weighted(shares: Sequence[float], limits: Sequence[int], until: Until) -> Mixture:
    """Datasets in given shares of the rows.

    Args:
        shares: (S,) positive; only the proportions count.
        limits: (S,) rows that each has to give.

    Raises:
        ConfigError: a share is not a positive number, or too small beside the others to be kept.
    """
    for share in shares:
        if not 0 < share < float("inf"):
            raise ConfigError(f"a source has the weight {share}; weights must be positive numbers")
    whole = tuple(round(share / sum(shares) * _UNITS) for share in shares)
    if not all(whole):
        raise ConfigError(f"a source has the share {min(shares) / sum(shares):.1e} of the mixture: leave it out")
    endless = Mixture(whole, 0)
    # The last position at which no source (or: the first at which every source) has given its rows. Found by halving.
    low, high = 0, 1

    def done(position: int) -> bool:
        given = zip(endless.counts(position), limits, strict=True)
        if until is Until.ALL:
            return all(count >= limit for count, limit in given)
        return any(count > limit for count, limit in given)

    while not done(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if done(middle) else (middle, high)
    return Mixture(whole, high if until is Until.ALL else low)
