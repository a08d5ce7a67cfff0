"""Which rows a step has, and which rank gets each: positions of a keyed order, in O(1), divided among the ranks. A
step has the same rows on any number of ranks.

A permutation passes a position through a Feistel network (Luby and Rackoff, 1988) over the smallest power of two that
holds the rows, with SplitMix64's finaliser as its round function. A result outside of the rows passes through again
until it is inside (cycle walking; Black and Rogaway, 2002): fewer than two passes on average.

Rows of similar cost may be grouped, so that ranks with one row each do similar work: the order is cut into blocks, the
rows of a block are sorted by cost and cut into groups, and the groups, and the rows within each, are permuted. A block
holds the same rows as before, so only the steps within a block differ more from each other than in a random order.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

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
"""Version of a loader's state: another order under the same seed needs another number."""
_BLOCK_ROWS = 1024
"""Positions computed together if rows are not grouped; one at a time would take far longer."""
_GROUPS_PER_BLOCK = 8
"""Groups of similar cost in a block, if rows are grouped."""


class Order(StrEnum):
    """How an epoch is ordered; `ROWS_AT` has what computes each. Part of the loader's state."""

    FULL = "full"
    """A permutation of all rows, different every epoch."""
    SEQUENTIAL = "sequential"
    """The order of the shards, the same in every epoch; packing has already shuffled the rows."""


if TYPE_CHECKING:
    OrderName: TypeAlias = str
else:
    OrderName = Literal[tuple(order.value for order in Order)]
"""The name of an order. pydantic, which reads this at run time, takes one of `Order`; type checkers see a text."""


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
        bits = max(2, (self.size - 1).bit_length())  # at least one for each half
        # A key for each round: the first numbers of SplitMix64, whose counter begins at `key` and goes on by GOLDEN.
        seeds = np.array([self.key % 2**64], np.uint64) + GOLDEN * np.arange(1, ROUNDS + 1, dtype=np.uint64)
        keys = list(mix(seeds))
        images = _network(positions.astype(np.uint64), bits, keys)
        # Cycle walking. Of 5 rows, the network permutes 0 to 7: where 1 → 6 → 3, the image of 1 is 3. No other position
        # gets it, because what leads into 6 is 1 alone.
        outside = np.flatnonzero(images >= np.uint64(self.size))
        while len(outside):
            images[outside] = _network(images[outside], bits, keys)
            outside = outside[images[outside] >= np.uint64(self.size)]
        return images.astype(np.int64)


def epoch_key(seed: int, epoch: int, purpose: str) -> int:
    """A 64-bit key for one purpose in one epoch, unrelated to other keys."""
    state = np.array([seed % 2**64], dtype=np.uint64)
    with np.errstate(over="ignore"):  # products beyond 64 bits wrap around, as they should
        # As a hash takes one word after another: the same epoch and purpose under another seed give another key.
        for word in (epoch % 2**64, *purpose.encode()):
            # The 1, because a word of 0 would leave a state of 0 as it is.
            state = mix(state * GOLDEN + np.uint64(word) + np.uint64(1))
    return int(state[0])


def _network(positions: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Pass positions through the network once.

    A position is split into two halves, of which the left one may be a bit wider: of 5 bits, 10110 is 101 and 10. Each
    round mixes one half into the other, then they swap places, and so widths.
    """
    left_bits = np.uint64((bits + 1) // 2)
    right_bits = np.uint64(bits // 2)
    left = positions >> right_bits
    right = positions & _low_bits(right_bits)
    for key in keys:
        mixed = left ^ (mix(right ^ key) & _low_bits(left_bits))
        left, right = right, mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


def _low_bits(count: np.uint64) -> np.uint64:
    """A mask of the lowest bits: 0b111 for 3."""
    return np.uint64((np.uint64(1) << count) - np.uint64(1))


def grouped(
    rows: NDArray[np.int64], costs: NDArray[np.float64], size: int, key: int, first: int = 0
) -> NDArray[np.int64]:
    """(N,) the rows of one block, in groups of similar cost.

    Two groups of two, of rows 5 to 8 with costs 9, 1, 8, 2: sorted by cost the rows are 6 8 7 5, so the groups are
    {6, 8} and {7, 5}. Groups, and the rows within each, are then permuted: 7 5 8 6, for example.

    Rows before the first and after the last whole group keep their places. Which rows these are does not depend on
    costs: else a run that leaves out its last rows would always leave out the most expensive ones.

    Args:
        rows: (N,) different rows.
        costs: (N,) the costs of these rows.
        size: rows of a group.
        key: chooses the permutations.
        first: the position of `rows[0]`. Groups begin at positions that are multiples of `size`, where steps begin too.
    """
    # With groups of 4 and the 15 rows at positions 6 to 20, the whole groups are at positions 8, 12 and 16: they are
    # rows[2:14].
    begin = -first % size
    count = max(len(rows) - begin, 0) // size
    if count < 2:  # a single group has the same rows in any order of costs
        return rows
    end = begin + count * size
    by_cost = np.argsort(costs[begin:end], kind="stable")
    groups = rows[begin:end][by_cost].reshape(count, size)
    # Within each group, in the order of random numbers that depend on the row and the key alone: sorted by cost, the
    # first rank would always get the cheapest row.
    tickets = mix(groups.astype(np.uint64) ^ np.uint64(key % 2**64))
    groups = np.take_along_axis(groups, np.argsort(tickets, axis=1), axis=1)
    # And the groups themselves, or each block would begin with its cheapest rows.
    groups = groups[Permutation(count, key)(np.arange(count))]
    return np.concatenate([rows[:begin], groups.ravel(), rows[end:]])


def divide_by_cost(costs: NDArray[np.float64], ranks: int) -> list[list[int]]:
    """Give every rank equally many rows, with similar sums of costs: longest processing time first (Graham, 1969).

    Costs 9, 1, 8, 2 for two ranks: 9 goes to the first rank, and 8 to the second. The second has the lower sum, so it
    gets 2, and is full. The first gets 1. The shares are rows 0, 1 and rows 2, 3.

    A rank's rows are ascending, and ranks are ordered by their first rows, so the most expensive row of a step is not
    always on rank 0.

    Args:
        costs: (B,) not negative; B is a multiple of `ranks`.

    Returns:
        For each rank, B / ranks indices into `costs`.
    """
    share_size = len(costs) // ranks
    # The sum of the costs of each rank's rows so far, and the rank: the first entry has the lowest sum. Only ranks that
    # are not full are in it.
    heap = [(0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    # In whole numbers, so that all machines agree: the most expensive row costs 2**40.
    highest_cost = max(float(costs.max(initial=0)), 1e-300)  # not 0, by which nothing can be divided
    whole_costs = np.rint(costs / highest_cost * 2.0**40).astype(np.int64)
    for index in np.argsort(-whole_costs, kind="stable").tolist():
        cost, rank = heapq.heappop(heap)
        shares[rank].append(index)
        if len(shares[rank]) < share_size:  # else the rank is full, and not put back
            heapq.heappush(heap, (cost + int(whole_costs[index]), rank))
    return sorted(sorted(share) for share in shares)


@dataclass(slots=True)  # not frozen: a frozen dataclass takes four times as long to make, and each step makes one
class Step:
    """The rows of a step, and their ranks."""

    rows: NDArray[np.int64]
    """(B,) their numbers in the split."""
    real: int
    """The first so many rows are trained; the others only fill up the last step."""
    shares: list[list[int]]
    """For each rank, indices into `rows`."""


class Epoch(NamedTuple):
    """What the order of an epoch may depend on."""

    number: int
    """From 0."""
    size: int
    """Rows of the dataset."""
    seed: int
    is_stored_shuffled: bool
    """Whether packing shuffled the rows."""


def _permuted(places: NDArray[np.int64], epoch: Epoch) -> NDArray[np.int64]:
    """The rows at places of an epoch, in an order of its own."""
    # What packing has shuffled needs no second permutation, and rows in stored order are read faster.
    if epoch.number == 0 and epoch.is_stored_shuffled:
        return places
    return Permutation(epoch.size, epoch_key(epoch.seed, epoch.number, "rows"))(places)


def _as_stored(places: NDArray[np.int64], epoch: Epoch) -> NDArray[np.int64]:
    """The rows at places of an epoch in the order of the shards: row n is at place n."""
    return places


ROWS_AT: dict[Order, Callable[[NDArray[np.int64], Epoch], NDArray[np.int64]]] = {
    Order.FULL: _permuted,
    Order.SEQUENTIAL: _as_stored,
}
"""(N,) places of an epoch, 0 to size - 1 → (N,) the rows there. All places together give each row once."""


class Steps:
    """The canonical order of rows over all epochs, cut into steps: any position of any epoch in O(1). Safe in threads.

    Epoch 0 is in stored order if packing shuffled the rows.

    Args:
        seed: chooses the permutations of rows.
        order: how each epoch is ordered.
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
        self.corpus = corpus
        self.seed = seed
        self.order = order
        self.balance = balance
        self.rows_per_step = rows_per_step
        self.ranks = ranks
        self.tail = tail
        self._is_stored_shuffled = corpus.manifest.pack.shuffle
        self.total = len(corpus) * epochs
        """Number of positions."""
        if tail is Tail.DROP and self.total < rows_per_step:
            raise ConfigError(
                f"rows_per_step={rows_per_step:,}, but the data has only {plural(self.total, 'row')} in all: not one "
                "step would be full; take fewer rows a step, or tail=pad"
            )
        # Rows are permuted block by block, so that the rows of any position are found without those before it. Blocks
        # begin at multiples of their size, as steps do, counted over all epochs.
        self._block_size = _BLOCK_ROWS if balance == 1 else _GROUPS_PER_BLOCK * balance
        # A block by its number; the last 8 that were used are kept, because neighbouring steps read the same ones.
        self._block = lru_cache(8)(self._rows_of_block)

    @property
    def beginning(self) -> dict[str, Any]:
        """The state before the first step: what the order depends on, and the rows returned by then. It is equal on all
        ranks, for any number of ranks and rows per step.
        """
        return {
            "format": FORMAT,
            "dataset": self.corpus.fingerprint,
            "seed": self.seed,
            "order": self.order.value,
            "balance": self.balance,
            "rows": 0,
        }

    def left(self, position: int) -> int:
        """The number of steps from a position on: of 10 rows, with 4 a step, 2 from the beginning, and 3 with
        `tail=pad`.
        """
        full_steps, last_rows = divmod(max(0, self.total - position), self.rows_per_step)
        if last_rows > 0 and self.tail is Tail.PAD:
            return full_steps + 1
        return full_steps

    def at(self, position: int) -> Step:
        """The step that begins at a position of the order."""
        size = self.rows_per_step
        rows = self.rows(position, position + size)
        real = len(rows)
        if real < size:
            # The last step is filled up with the first rows of the order, repeated if they are too few: an order of
            # rows 7 and 3 fills a step of 5 as 7 3 7 3 7.
            rows = np.concatenate([rows, np.resize(self.rows(0, size), size - real)])
        share_size = size // self.ranks
        # Where a rank has one row or all of them, costs change nothing: of 3 rows for 3 ranks, [[0], [1], [2]].
        if share_size in (1, size):
            return Step(rows, real, np.arange(size).reshape(self.ranks, share_size).tolist())
        return Step(rows, real, divide_by_cost(self.corpus.costs(rows), self.ranks))

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows at positions first .. last - 1, as far as there are any; positions continue over epochs."""
        # In blocks of 1,024, positions 1,000 to 2,099 are in blocks 0 to 2, whose first 1,000 positions are cut off.
        size = self._block_size
        first_block = first // size
        end_block = -(-min(last, self.total) // size)  # rounded up: one past the last block
        no_rows = np.zeros(0, np.int64)  # for positions beyond the last one
        rows = np.concatenate([no_rows, *(self._block(number) for number in range(first_block, end_block))])
        return rows[first % size :][: last - first]  # from 1,000 % 1,024 on, and 1,100 of them

    def _rows_of_block(self, number: int) -> NDArray[np.int64]:
        """The rows of a block of positions. Each epoch in it is grouped by itself, so that no row changes its epoch."""
        size = len(self.corpus)
        begin = number * self._block_size
        end = min(begin + self._block_size, self.total)
        # With 700 rows, a block of positions 0 to 1,023 has epoch 0 whole, and places 0 to 323 of epoch 1.
        epochs, places = np.divmod(np.arange(begin, end), size)
        rows_of_epochs = []
        for epoch in np.unique(epochs).tolist():
            about_epoch = Epoch(epoch, size, self.seed, self._is_stored_shuffled)
            rows = ROWS_AT[self.order](places[epochs == epoch], about_epoch)
            if self.balance > 1:
                key = epoch_key(self.seed, epoch * 2**32 + number, "groups")  # another one in each block of an epoch
                first_position = max(begin, epoch * size)  # of the epoch's rows in this block
                rows = grouped(rows, self.corpus.costs(rows), self.balance, key, first_position)
            rows_of_epochs.append(rows)
        return np.concatenate(rows_of_epochs)
