"""Which row is at a position: a keyed order of one or several datasets, in O(1) for any position of any epoch.

A permutation passes a position through a Feistel network (Luby and Rackoff, 1988) over the smallest power of two that
holds the rows, with SplitMix64's finaliser as its round function. A result outside of the rows passes through again
until it is inside (cycle walking; Black and Rogaway, 2002): fewer than two passes on average.

A mixture gives the first dataset, of weight a out of d, k·a/d of the first k positions, rounded to the nearest integer
(Bresenham's line), and divides the remaining positions among the other datasets in the same way. If the weights are
the datasets' numbers of rows, all datasets end at the last position, and each row is used once.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from ..schemas.fingerprint import GOLDEN, mix
from .packed_rows import PackedRows

SHUFFLE_BLOCK = 4096
"""Number of neighbouring rows in a block of `Order.BLOCKS`."""
ROUNDS = 6
"""Rounds of the Feistel network. In theory three give a pseudorandom permutation; with six, tests of a million
positions find no pattern.
"""
_UNITS = 2**40
"""Weights of a mixture are integers that sum to about this."""


class Order(StrEnum):
    """How an epoch is ordered. Part of the loader's state."""

    SEQUENTIAL = "sequential"
    """The order of the shards, the same in every epoch; packing has already shuffled the rows."""
    FULL = "full"
    """A permutation of all rows, different every epoch."""
    BLOCKS = "blocks"
    """Blocks of neighbouring rows in permuted order, with the rows within each block permuted. Remote shards are read
    one after another, and epochs still differ.
    """


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of 0 .. size - 1, chosen by a key, in constant memory.

    Tests compare it with fixed results, because a change would break every resumed training.

    Raises:
        ValueError: the size is below 1 or above 2**62.
    """

    size: int
    key: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 2**62:
            raise ValueError(f"a permutation of {self.size} rows: the size must be 1 to 2**62")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the image of each position. Positions must be in 0 .. size - 1."""
        if self.size == 1:
            return np.zeros_like(positions)
        bits = max(2, (self.size - 1).bit_length())
        keys = [_round_key(self.key, number) for number in range(ROUNDS)]
        out = _network(positions.astype(np.uint64), bits, keys)
        outside = np.flatnonzero(out >= np.uint64(self.size))
        while len(outside):
            out[outside] = _network(out[outside], bits, keys)
            outside = outside[out[outside] >= np.uint64(self.size)]
        return out.astype(np.int64)


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The row of one dataset at each position; positions continue over the epochs."""

    size: int
    """Number of rows of an epoch."""
    seed: int
    order: Order
    first_sequential: bool
    """Whether epoch 0 is in the order of the shards, whatever `order` is."""
    name: str = "rows"
    """Distinguishes datasets of a mixture, so that each has its own keys."""

    def __call__(self, first: int, last: int) -> NDArray[np.int64]:
        """(last - first,) the rows at positions first .. last - 1."""
        pieces = [np.zeros(0, np.int64)]
        while first < last:
            epoch, begin = divmod(first, self.size)
            end = min(self.size, begin + last - first)
            pieces.append(self._epoch(epoch, np.arange(begin, end, dtype=np.int64)))
            first += end - begin
        return np.concatenate(pieces)

    def _epoch(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.order is Order.SEQUENTIAL or (epoch == 0 and self.first_sequential):
            return positions
        if self.order is Order.FULL:
            return Permutation(self.size, epoch_key(self.seed, epoch, self.name))(positions)
        return self._in_blocks(epoch, positions)

    def _in_blocks(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Permute whole blocks, and rows within each; an incomplete last block keeps its place."""
        whole = self.size // SHUFFLE_BLOCK
        out = np.empty_like(positions)
        blocks = positions // SHUFFLE_BLOCK
        order = Permutation(max(whole, 1), epoch_key(self.seed, epoch, f"{self.name} blocks"))
        for block in np.unique(blocks).tolist():
            here = blocks == block
            target = int(order(np.array([block]))[0]) if block < whole else block
            size = SHUFFLE_BLOCK if block < whole else self.size - whole * SHUFFLE_BLOCK
            inner = Permutation(size, epoch_key(self.seed, epoch * 2**32 + target, f"{self.name} within"))
            out[here] = target * SHUFFLE_BLOCK + inner(positions[here] - block * SHUFFLE_BLOCK)
        return out


@dataclass(frozen=True, slots=True)
class Mixture:
    """Divides positions among S datasets in proportion to their weights."""

    weights: tuple[int, ...]
    """(S,) positive."""
    total: int
    """Number of positions."""

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
        """(last - first,) the dataset at each position. A dataset's positions are consecutive in its own order."""
        out = np.full(last - first, len(self.weights) - 1, dtype=np.int64)
        left = np.arange(last - first)  # positions that no dataset has taken yet
        weight = sum(self.weights)
        for number, mine in enumerate(self.weights[:-1]):
            # Positions are too large to multiply in 64 bits; offsets from the first one are small.
            before, rest = divmod(2 * first * mine + weight, 2 * weight)
            counts = (rest + 2 * mine * np.arange(len(left) + 1)) // (2 * weight)
            taken = np.diff(counts) > 0
            out[left[taken]] = number
            left = left[~taken]
            first, weight = first - before, weight - mine
        return out


def mixture_of(corpus: PackedRows, epochs: int) -> Mixture | None:
    """How the sources of a corpus are mixed; None for one.

    Args:
        epochs: of sources that do not say theirs.

    Raises:
        ConfigError: some have a weight and others do not, or one is too small compared with the others.
    """
    if len(corpus.parts) == 1:
        return None
    pairs = list(zip(corpus.sources, corpus.parts, strict=True))
    limits = [part.rows * (source.epochs or epochs) for source, part in pairs]
    # By the average tokens per row: sources with fuller rows get fewer rows.
    shares = [source.weight * part.rows / max(part.tokens, 1) for source, part in pairs if source.weight is not None]
    if not shares:
        return Mixture(tuple(limits), sum(limits))
    if len(shares) != len(pairs):
        raise ConfigError(
            "some sources of the mixture have a weight and others do not; give all of them a weight, or none"
        )
    return weighted_mixture(shares, limits)


def weighted_mixture(shares: Sequence[float], limits: Sequence[int]) -> Mixture:
    """Mix datasets in given shares of the rows, until one is used up.

    Args:
        shares: (S,) positive; only the proportions count.
        limits: (S,) how many rows of each dataset are read.

    Raises:
        ConfigError: a share is too small compared with the others.
    """
    whole = tuple(round(share / sum(shares) * _UNITS) for share in shares)
    if not all(whole):
        raise ConfigError(f"a source has the share {min(shares) / sum(shares):.1e} of the mixture: leave it out")
    endless = Mixture(whole, 0)

    def over(position: int) -> bool:
        return any(count > limit for count, limit in zip(endless.counts(position), limits, strict=True))

    # The first position by which a source would have given more than it has.
    return Mixture(whole, bisect_left(range(sum(limits) + 1), True, key=over) - 1)


def epoch_key(seed: int, epoch: int, purpose: str) -> int:
    """A 64-bit key for one purpose in one epoch, unrelated to other keys."""
    state = np.array([seed % 2**64], dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in (epoch % 2**64, *purpose.encode()):
            state = mix(state * GOLDEN + np.uint64(word) + np.uint64(1))
    return int(state[0])


def _network(x: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Pass positions through the network once. The halves may differ in width by a bit; they swap places and widths
    every round.
    """
    left_bits, right_bits = np.uint64((bits + 1) // 2), np.uint64(bits // 2)
    left, right = x >> right_bits, x & _mask(right_bits)
    for key in keys:
        mixed = mix(right ^ key) & _mask(left_bits)
        left, right = right, left ^ mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


def _round_key(key: int, number: int) -> np.uint64:
    with np.errstate(over="ignore"):
        seeded = np.array([key % 2**64], dtype=np.uint64) + GOLDEN * np.uint64(number + 1)
    return np.uint64(mix(seeded)[0])


def _mask(bits: np.uint64) -> np.uint64:
    return np.uint64((1 << int(bits)) - 1)
