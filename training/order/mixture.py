"""Reads several packed datasets as one: computes which dataset, and which of its rows, is at a position.

1. Let the first dataset's weight be a, and the sum of all weights d. Of the first k positions it gets k·a/d, rounded to
the nearest integer. That is as even as possible (Bresenham's line), and not random.
2. The remaining positions are renumbered and divided among the other datasets in the same way.

This is integer arithmetic, so all positions take the same time, and all machines agree. If the weights are the
datasets' numbers of rows, all datasets end at the last position, and each row is used once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ConfigError

_UNITS = 2**40
"""Weights are stored as integers that sum to about this."""


class MixBy(StrEnum):
    """What the weights of a mixture refer to."""

    TOKENS = "tokens"
    """Weights are shares of tokens."""
    ROWS = "rows"
    """Weights are shares of packed rows."""


class Until(StrEnum):
    """When a mixture with weights ends."""

    FIRST = "first"
    """As soon as any source has been read for its number of epochs."""
    ALL = "all"
    """When every source has been read for its number of epochs; shorter sources are repeated until then."""


@dataclass(frozen=True, slots=True)
class Source:
    """One packed dataset of a mixture."""

    where: str | Path
    """Folder or URL that `packtrain run` wrote."""
    weight: float | None = None
    """The source's share of the mixture; only proportions count. If it is None for all sources, each source is read for
    its number of epochs, spread evenly, and all end together.
    """
    epochs: int | None = None
    """Number of times that the dataset is read; None for the loader's number of epochs."""
    split: str = "train"


@dataclass(frozen=True, slots=True)
class Mixture:
    """Divides positions among S datasets in proportion to their weights.

    Args:
        weights: (S,) positive integers.
        total: number of positions.
    """

    weights: tuple[int, ...]
    total: int

    def counts(self, position: int) -> list[int]:
        """Return (S,) how many of the first `position` positions belong to each dataset. They add up to `position`."""
        counts = []
        left, weight = position, sum(self.weights)
        for mine in self.weights[:-1]:
            count = (2 * left * mine + weight) // (2 * weight)
            counts.append(count)
            left, weight = left - count, weight - mine
        return [*counts, left]

    def owners(self, first: int, last: int) -> NDArray[np.int64]:
        """Return (last - first,) the dataset at each position. A dataset's positions map to consecutive positions of
        its own order.
        """
        out = np.full(last - first, len(self.weights) - 1, dtype=np.int64)
        left = np.arange(last - first)  # positions that no dataset has taken yet
        weight = sum(self.weights)
        for number, mine in enumerate(self.weights[:-1]):
            # Positions are too large to multiply in 64 bits; offsets from the first one are small.
            doubled = 2 * first * mine + weight
            before, rest = divmod(doubled, 2 * weight)
            counts = (rest + 2 * mine * np.arange(len(left) + 1)) // (2 * weight)
            taken = np.diff(counts) > 0
            out[left[taken]] = number
            left = left[~taken]
            first, weight = first - before, weight - mine
        return out


def even(rows: Sequence[int]) -> Mixture:
    """Mix datasets with these numbers of rows evenly, so that all end together."""
    return Mixture(tuple(rows), sum(rows))


def weighted(shares: Sequence[float], limits: Sequence[int], until: Until) -> Mixture:
    """Mix datasets in given shares of the rows.

    Args:
        shares: (S,) positive; only the proportions count.
        limits: (S,) number of rows of each dataset.

    Raises:
        ConfigError: a share is not a positive number, or too small compared with the others.
    """
    for share in shares:
        if not 0 < share < float("inf"):
            raise ConfigError(f"a source has the weight {share}; weights must be positive numbers")
    whole = tuple(round(share / sum(shares) * _UNITS) for share in shares)
    if not all(whole):
        raise ConfigError(f"a source has the share {min(shares) / sum(shares):.1e} of the mixture: leave it out")
    endless = Mixture(whole, 0)
    # Binary search for the last position at which no source (or the first at which every source) is used up.
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
