"""Which row is at a position of an epoch: a keyed order, in O(1).

A permutation passes a position through a Feistel network (Luby and Rackoff, 1988) over the smallest power of two that
holds the rows, with SplitMix64's finaliser as its round function. A result outside of the rows passes through again
until it is inside (cycle walking; Black and Rogaway, 2002): fewer than two passes on average.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..schemas.fingerprint import GOLDEN, mix

SHUFFLE_BLOCK = 4096
"""Number of neighbouring rows in a block of `Order.BLOCKS`."""
ROUNDS = 6
"""Rounds of the Feistel network. In theory three give a pseudorandom permutation; with six, tests of a million
positions find no pattern.
"""


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
    """The row at each place of an epoch."""

    size: int
    """Number of rows of an epoch."""
    seed: int
    order: Order
    first_sequential: bool
    """Whether epoch 0 is in the order of the shards, whatever `order` is."""

    def __call__(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the rows at these places."""
        if self.order is Order.SEQUENTIAL or (epoch == 0 and self.first_sequential):
            return places
        if self.order is Order.FULL:
            return Permutation(self.size, epoch_key(self.seed, epoch, "rows"))(places)
        return self._in_blocks(epoch, places)

    def _in_blocks(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Permute whole blocks, and rows within each; an incomplete last block keeps its place."""
        whole = self.size // SHUFFLE_BLOCK
        out = np.empty_like(places)
        blocks = places // SHUFFLE_BLOCK
        order = Permutation(max(whole, 1), epoch_key(self.seed, epoch, "rows blocks"))
        for block in np.unique(blocks).tolist():
            here = blocks == block
            target = int(order(np.array([block]))[0]) if block < whole else block
            size = SHUFFLE_BLOCK if block < whole else self.size - whole * SHUFFLE_BLOCK
            inner = Permutation(size, epoch_key(self.seed, epoch * 2**32 + target, "rows within"))
            out[here] = target * SHUFFLE_BLOCK + inner(places[here] - block * SHUFFLE_BLOCK)
        return out


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
