"""Which rows a step has, and which rank gets each: positions of a keyed order, in O(1), dealt to the ranks. A step has
the same rows on any number of ranks.

A permutation passes a position through a Feistel network (Luby and Rackoff, 1988) over the smallest power of two that
holds the rows, with SplitMix64's finaliser as its round function. A result outside of the rows passes through again
until it is inside (cycle walking; Black and Rogaway, 2002): fewer than two passes on average.

Rows of similar cost may be grouped, so that ranks with one row each do similar work: the order is cut into blocks, the
rows of a block are sorted by cost and cut into groups, and the groups, and the rows within each, are permuted. A block
holds the same rows as before, so only the steps within a block differ more from each other than in a random order.
"""

import heapq
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from ..schemas.fingerprint import GOLDEN, mix
from ..schemas.units import plural
from .packed_rows import PackedRows

ROUNDS = 6
"""Rounds of the Feistel network. In theory three give a pseudorandom permutation; with six, tests of a million
positions find no pattern.
"""
FORMAT = 4
_TOGETHER = 1024
"""Positions computed together if rows are not grouped; one at a time would take far longer."""
_GROUPS = 8
"""Groups of a block, if they are."""


class Order(StrEnum):
    """How an epoch is ordered. Part of the loader's state."""

    SEQUENTIAL = "sequential"
    """The order of the shards, the same in every epoch; packing has already shuffled the rows."""
    FULL = "full"
    """A permutation of all rows, different every epoch."""


class Tail(StrEnum):
    """What happens to the rows after the last full step. The number of steps is the same on every rank."""

    DROP = "drop"
    """Leave out the remaining rows."""
    PAD = "pad"
    """Fill the last step with untrained rows."""


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of 0 .. size - 1, chosen by a key, in constant memory.

    Tests compare it with fixed results, because a change would break every resumed training.
    """

    size: int
    """1 to 2**62."""
    key: int

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) the image of each position. Positions must be in 0 .. size - 1."""
        bits = max(2, (self.size - 1).bit_length())
        seeds = np.array([self.key % 2**64], np.uint64) + GOLDEN * np.arange(1, ROUNDS + 1, dtype=np.uint64)
        keys = list(mix(seeds))
        out = _network(positions.astype(np.uint64), bits, keys)
        outside = np.flatnonzero(out >= np.uint64(self.size))
        while len(outside):
            out[outside] = _network(out[outside], bits, keys)
            outside = outside[out[outside] >= np.uint64(self.size)]
        return out.astype(np.int64)


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
    left_bits, right_bits, one = np.uint64((bits + 1) // 2), np.uint64(bits // 2), np.uint64(1)
    left, right = x >> right_bits, x & ((one << right_bits) - one)
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & ((one << left_bits) - one))
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


def grouped(
    rows: NDArray[np.int64], costs: NDArray[np.float64], size: int, key: int, first: int = 0
) -> NDArray[np.int64]:
    """(N,) the rows of one block, in groups of similar cost.

    Rows before the first and after the last whole group keep their places. They are chosen by the order, not by cost,
    so a run does not always leave out the most expensive rows at its end.

    Args:
        rows: (N,) different rows.
        costs: (N,) the costs of these rows.
        size: rows of a group.
        key: chooses the permutations.
        first: the position of `rows[0]`. Groups begin at positions that are multiples of `size`, where steps begin too.
    """
    begin = -first % size
    whole = max(len(rows) - begin, 0) // size
    if whole < 2:
        return rows
    end = begin + whole * size
    groups = rows[begin:end][np.argsort(costs[begin:end], kind="stable")].reshape(whole, size)
    tickets = mix(groups.astype(np.uint64) ^ np.uint64(key % 2**64))
    groups = np.take_along_axis(groups, np.argsort(tickets, axis=1), axis=1)
    groups = groups[Permutation(whole, key)(np.arange(whole))]
    return np.concatenate([rows[:begin], groups.ravel(), rows[end:]])


def deal(costs: NDArray[np.float64], ranks: int) -> list[list[int]]:
    """Give every rank equally many rows, with similar sums of costs: longest processing time first (Graham, 1969).

    A rank's rows are ascending, and ranks are ordered by their first rows, so the most expensive row of a step is not
    always on rank 0.

    Args:
        costs: (B,) not negative; B is a multiple of `ranks`.

    Returns:
        For each rank, B / ranks indices into `costs`.
    """
    share = len(costs) // ranks
    heap = [(0, rank) for rank in range(ranks)]
    hands: list[list[int]] = [[] for _ in range(ranks)]
    # In whole numbers, so that all machines agree.
    whole = np.rint(costs / max(float(costs.max(initial=0)), 1e-300) * 2.0**40).astype(np.int64)
    for row in np.argsort(-whole, kind="stable").tolist():
        cost, rank = heapq.heappop(heap)
        hands[rank].append(row)
        if len(hands[rank]) < share:
            heapq.heappush(heap, (cost + int(whole[row]), rank))
    return sorted(sorted(hand) for hand in hands)


@dataclass(slots=True)  # not frozen, as `Row`
class Step:
    """The rows of a step, and their ranks."""

    rows: NDArray[np.int64]
    """(B,) the rows."""
    real: int
    """Number of rows that count; the others fill up the last step."""
    hands: list[list[int]]
    """For each rank, indices into `rows`."""


class Steps:
    """The canonical order of rows over all epochs, cut into steps: any position of any epoch in O(1). Safe in threads.

    Epoch 0 is in stored order if packing shuffled the rows.

    Args:
        seed, order: of the rows; see `Order`.
        epochs: how often the rows are read.
        balance: rows of a group of similar cost; 1 for no groups.
        rows_per_step: over all ranks, a multiple of `ranks`.

    Raises:
        ConfigError: no step would be full.
    """

    def __init__(
        self,
        corpus: PackedRows,
        *,
        seed: int,
        order: Order,
        epochs: int,
        balance: int,
        rows_per_step: int,
        ranks: int,
        tail: Tail,
    ) -> None:
        self.corpus, self.seed, self.order, self.balance = corpus, seed, order, balance
        self.rows_per_step, self.ranks, self.tail = rows_per_step, ranks, tail
        self._shuffled = corpus.manifest.pack.shuffle
        self.total = len(corpus) * epochs
        """Number of positions."""
        if tail is Tail.DROP and self.total < rows_per_step:
            raise ConfigError(
                f"rows_per_step={rows_per_step:,}, but the data has only {plural(self.total, 'row')} in all: not one "
                "step would be full; take fewer rows a step, or tail=pad"
            )
        # Blocks begin at multiples of their size, as steps do, counted over all epochs.
        self._size = _TOGETHER if balance == 1 else _GROUPS * balance
        self._block = lru_cache(8)(self._block_of)

    @property
    def beginning(self) -> dict[str, Any]:
        """The state before the first step: what the order depends on, and the rows returned by then. It is equal on all
        ranks, for any number of ranks and rows per step.
        """
        depends = {"dataset": self.corpus.fingerprint, "seed": self.seed, "order": self.order.value}
        return {"format": FORMAT, **depends, "balance": self.balance, "rows": 0}

    def left(self, position: int) -> int:
        """The number of steps from a position on."""
        whole, rest = divmod(max(0, self.total - position), self.rows_per_step)
        return whole + (1 if rest and self.tail is not Tail.DROP else 0)

    def at(self, position: int) -> Step:
        """The step that begins at a position of the order."""
        width = self.rows_per_step
        rows = self.rows(position, position + width)
        real, share = len(rows), width // self.ranks
        if real < width:
            rows = np.concatenate([rows, np.resize(self.rows(0, width), width - real)])
        if 1 < share < width and real == width:
            return Step(rows, real, deal(self.corpus.costs(rows), self.ranks))
        return Step(rows, real, [list(range(begin, begin + share)) for begin in range(0, width, share)])

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows at positions first .. last - 1, as far as there are any; positions continue over epochs."""
        numbers = range(first // self._size, -(-min(last, self.total) // self._size))
        found = np.concatenate([np.zeros(0, np.int64), *map(self._block, numbers)])
        return found[first % self._size :][: last - first]

    def _block_of(self, number: int) -> NDArray[np.int64]:
        """The rows of a block of positions. Each epoch in it is grouped by itself, and so has the same rows."""
        size, begin, pieces = len(self.corpus), number * self._size, []
        epochs, places = np.divmod(np.arange(begin, min(begin + self._size, self.total)), size)
        for epoch in np.unique(epochs).tolist():
            rows = places[epochs == epoch]
            if self.order is Order.FULL and not (epoch == 0 and self._shuffled):
                rows = Permutation(size, epoch_key(self.seed, epoch, "rows"))(rows)
            if self.balance > 1:
                key = epoch_key(self.seed, epoch * 2**32 + number, "groups")
                rows = grouped(rows, self.corpus.costs(rows), self.balance, key, max(begin, epoch * size))
            pieces.append(rows)
        return np.concatenate(pieces)


# Ranks


class RankInfo(NamedTuple):
    """A rank, the number of ranks, and where they were read from."""

    rank: int
    world_size: int
    origin: str


def detect_rank(rank: int | None = None, world_size: int | None = None) -> RankInfo:
    """The given rank; else the one from torch.distributed, or from the environment of torchrun or Slurm; else a single
    rank.

    Raises:
        ConfigError: only one of the two was given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    found = RankInfo(0, 1, "single process: neither torch.distributed nor the environment names a rank")
    # Only if already imported: a process without torch.distributed is not one of its ranks.
    distributed = sys.modules.get("torch.distributed")
    if rank is not None and world_size is not None:
        found = RankInfo(rank, world_size, "given")
    elif distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = RankInfo(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    else:
        for launcher, mine, every in (
            ("torchrun", "RANK", "WORLD_SIZE"),
            ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ):
            if mine in os.environ and every in os.environ:
                numbers = os.environ[mine], os.environ[every]
                if not all(map(str.isdecimal, numbers)):
                    raise ConfigError(f"{mine}={numbers[0]}, {every}={numbers[1]}: both must be numbers")
                found = RankInfo(int(numbers[0]), int(numbers[1]), f"the environment of {launcher}")
                break
    if not 0 <= found.rank < found.world_size:
        raise ConfigError(f"rank {found.rank} of {found.world_size} ({found.origin}): ranks count from 0")
    return found


def divisible(rows_per_step: int, world_size: int, accumulate: int = 1) -> int:
    """`rows_per_step`, if it can be divided equally among ranks and their batches.

    Raises:
        ConfigError: it cannot; the message names the nearest numbers that can.
    """
    if accumulate < 1:
        raise ConfigError(f"accumulate={accumulate}: must be at least 1")
    shares = world_size * accumulate
    if rows_per_step >= 1 and rows_per_step % shares == 0:
        return rows_per_step
    batches = f" with {accumulate:,} batches each" if accumulate > 1 else ""
    raise ConfigError(
        f"rows_per_step={rows_per_step:,} cannot be divided among {world_size:,} ranks{batches}, which must all get "
        f"the same number; take {nearest(rows_per_step, shares)}"
    )


def nearest(number: int, factor: int) -> str:
    """The multiples of `factor` next to a number, for a message; only the larger one if the smaller would be 0."""
    low = number // factor * factor
    return f"{low:,} or {low + factor:,}" if low > 0 else f"{factor:,}"
