"""Which rows a step has, and which rank gets each: positions of a keyed order, in O(1), dealt to the ranks. A step has
the same rows on any number of ranks.

A permutation passes a position through a Feistel network (Luby and Rackoff, 1988) over the smallest power of two that
holds the rows, with SplitMix64's finaliser as its round function. A result outside of the rows passes through again
until it is inside (cycle walking; Black and Rogaway, 2002): fewer than two passes on average.

Rows of similar cost may be grouped, so that the ranks of a step do similar work: the order is cut into blocks, the rows
of a block are sorted by cost and cut into groups, and the groups, and the rows within each, are permuted. A block holds
the same rows as before, so only the steps within a block differ more from each other than in a random order.
"""

import heapq
import math
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from ..schemas.fingerprint import GOLDEN, mix
from ..schemas.units import plural
from .packed_rows import PackedRows

SHUFFLE_BLOCK = 4096
"""Number of neighbouring rows in a block of `Order.BLOCKS`."""
ROUNDS = 6
"""Rounds of the Feistel network. In theory three give a pseudorandom permutation; with six, tests of a million
positions find no pattern.
"""
GROUP, BLOCK = 64, 8
"""Rows of a group, and groups of a block: the automatic choice is made for 64 ranks with one row each."""
SAMPLE = 4096
"""Rows that the automatic choice looks at."""
IDLE = 1.05
"""If the slowest of `GROUP` ranks takes at most this many times the mean, rows are not grouped, because grouping makes
steps less random.
"""
FORMAT = 3
_BLOCK = 1024
"""Positions computed together if rows are not grouped; one at a time would take far longer."""


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


class Tail(StrEnum):
    """What happens to the rows after the last full step. The number of steps is the same on every rank."""

    DROP = "drop"
    """Leave out the remaining rows."""
    PAD = "pad"
    """Fill the last step with untrained rows."""


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


def group_of(costs: NDArray[np.float64]) -> int | None:
    """How many rows a group has; None for no groups. The same on every rank, for any rows per step.

    Args:
        costs: (N,) the costs of the first `SAMPLE` rows of the order, or of all.
    """
    if len(costs) < 4 * GROUP:
        return None
    steps = costs[: len(costs) // GROUP * GROUP].reshape(-1, GROUP)
    means = np.maximum(steps.mean(axis=1), 1e-300)
    # Rounded, so that machines that add in different orders make the same choice.
    plain = round(math.fsum((steps.max(axis=1) / means).tolist()) / len(steps), 6)
    return GROUP if plain > IDLE else None


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
        balance: rows of a group of similar cost; `auto` groups them if that saves time; None keeps the order, and then
            each rank takes consecutive rows, too.
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
        balance: int | str | None,
        rows_per_step: int,
        ranks: int,
        tail: Tail,
    ) -> None:
        self.corpus, self.seed, self.order = corpus, seed, order
        self.rows_per_step, self.ranks, self.tail, self.dealt = rows_per_step, ranks, tail, balance is not None
        stored = bool(corpus.manifest.plan["config"]["pack"]["shuffle"])
        self._order = EpochOrder(len(corpus), seed, order, stored)
        self.total = len(corpus) * epochs
        """Number of positions."""
        if tail is Tail.DROP and self.total < rows_per_step:
            raise ConfigError(
                f"rows_per_step={rows_per_step:,}, but the data has only {plural(self.total, 'row')} in all: not one "
                "step would be full; take fewer rows a step, or tail='pad'"
            )
        if isinstance(balance, str):
            balance = group_of(self.corpus.costs(self._order(0, np.arange(min(SAMPLE, len(corpus))))))
        self.balance = balance
        """Rows of a group; None if rows are not grouped."""
        # Blocks begin at multiples of their size, as steps do, counted over all epochs. But they end with an epoch, so
        # that each epoch has the same rows.
        self._size = _BLOCK if balance is None else BLOCK * balance
        self._block = lru_cache(8)(self._block_of)

    @property
    def beginning(self) -> dict[str, Any]:
        """The state before the first step: what the order depends on, and the rows returned by then. It is equal on all
        ranks, for any number of ranks and rows per step.
        """
        depends = {"dataset": self.corpus.fingerprint, "seed": self.seed, "order": self.order.value}
        return {"format": FORMAT, **depends, "balance": self.balance or 0, "rows": 0}

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
        if self.dealt and 1 < share < width and real == width:
            return Step(rows, real, deal(self.corpus.costs(rows), self.ranks))
        return Step(rows, real, [list(range(begin, begin + share)) for begin in range(0, width, share)])

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows at positions first .. last - 1, as far as there are any; positions continue over epochs."""
        pieces, last = [np.zeros(0, np.int64)], min(last, self.total)
        while first < last:
            epoch, block = first // len(self.corpus), first // self._size
            begin = max(block * self._size, epoch * len(self.corpus))
            pieces.append(self._block(epoch, block)[first - begin : last - begin])
            first += len(pieces[-1])
        return np.concatenate(pieces)

    def _block_of(self, epoch: int, block: int) -> NDArray[np.int64]:
        """The rows of one block of positions within an epoch, grouped if there is a balance."""
        start = epoch * len(self.corpus)
        begin = max(block * self._size, start)
        end = min((block + 1) * self._size, start + len(self.corpus))
        rows = self._order(epoch, np.arange(begin - start, end - start))
        if self.balance is not None:
            key = epoch_key(self.seed, epoch * 2**32 + block - start // self._size, "groups")
            rows = grouped(rows, self.corpus.costs(rows), self.balance, key, begin)
        return rows


# Ranks


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A rank, the number of ranks, and where they were read from."""

    rank: int
    world_size: int
    origin: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} of {self.world_size} ({self.origin}): ranks count from 0")


def detect_rank(rank: int | None = None, world_size: int | None = None) -> RankInfo:
    """The given rank; else the one from torch.distributed, or from the environment of torchrun or Slurm; else a single
    rank.

    Raises:
        ConfigError: only one of the two was given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return RankInfo(rank, world_size, "given")
    # Only if already imported: a process without torch.distributed is not one of its ranks.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return RankInfo(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    for launcher, mine, all_of_them in (("torchrun", "RANK", "WORLD_SIZE"), ("Slurm", "SLURM_PROCID", "SLURM_NTASKS")):
        if mine in os.environ and all_of_them in os.environ:
            return RankInfo(int(os.environ[mine]), int(os.environ[all_of_them]), f"the environment of {launcher}")
    return RankInfo(0, 1, "single process: neither torch.distributed nor the environment names a rank")


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
