"""Groups rows of similar cost, so that the ranks of a step do similar amounts of work.

1. The order is cut into blocks. A block's rows are sorted by cost and cut into groups.
2. The groups are permuted, so that cost does not rise within a block. The rows within each group are permuted too, so
that the most expensive row is not always on the same rank.

A block holds the same rows as before. So a step of whole blocks has the same rows as in the plain order, and the mean
over a block's steps is unchanged. But the steps within a block differ more from each other than in a random order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.splitmix import mix
from ...schemas.units import plural
from .cost import assign_to_ranks, whole_costs
from .permutation import Permutation, epoch_key

GROUP = 64
"""Rows of a group: the automatic choice is made for this number of ranks with one row each."""
SAMPLE = 4096
"""Rows used for the automatic choice. If there are fewer, blocks larger than half of them are not tried."""
IDLE = 1.05
"""If the slowest rank takes at most this many times the mean, rows are not grouped, because grouping makes steps less
random.
"""
GOAL_ONE, GOAL_EIGHT = 1.10, 1.05
"""Ratios (slowest rank to mean) that a block size must reach: with one row per rank, and with eight."""
LEAST_GAIN = 0.02
"""Minimum saving with one row per rank, as a share of the mean."""
_DOUBLINGS = 5


@dataclass(frozen=True, slots=True)
class Balance:
    """Blocks of `block` consecutive positions, sorted by cost and cut into groups of `group`.

    If `group` is a multiple of the rows per step, all rows of a step have similar cost. With one row per rank on more
    than 64 ranks, use a group as large as the number of ranks, and a block of eight groups.
    """

    block: int = 512
    group: int = GROUP

    def __post_init__(self) -> None:
        if self.block < 1 or self.group < 1 or self.block % self.group:
            raise ValueError(f"balance: block ({self.block}) must be a multiple of group ({self.group})")


def grouped(
    rows: NDArray[np.int64], costs: NDArray[np.float64], balance: Balance, key: int, first: int = 0
) -> NDArray[np.int64]:
    """Return (N,) the rows of one block, grouped by cost.

    Rows before the first and after the last whole group keep their places. They are chosen by the order, not by cost,
    so a run does not always leave out the most expensive rows at its end.

    Args:
        rows: (N,) different rows, at most `balance.block`.
        costs: (N,) the costs of these rows.
        key: chooses the permutations.
        first: the position of `rows[0]`. Groups begin at positions that are multiples of `balance.group`, where
            steps begin too.
    """
    size = balance.group
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


def slowest(costs: NDArray[np.float64], ranks: int, share: int = 1, *, dealt: bool = True) -> NDArray[np.float64]:
    """Return (S,) for each whole step, the cost of its slowest rank divided by the mean of its ranks; 1 if all are
    equal.

    Args:
        costs: (N,) the costs of rows, in their order.
        share: rows per rank.
        dealt: whether rows are assigned by cost (`assign_to_ranks`); else each rank takes `share` consecutive rows.
    """
    steps = whole_costs(costs)[: len(costs) // (ranks * share) * ranks * share].reshape(-1, ranks * share)
    if dealt and share > 1:
        steps = np.array([step[assign_to_ranks(step, ranks)] for step in steps], dtype=np.int64)
    sums = steps.reshape(-1, ranks, share).sum(axis=2)
    totals = sums.sum(axis=1)
    # ranks without any work count as equal
    ratios = np.ones(len(sums))
    np.divide(sums.max(axis=1) * ranks, totals, out=ratios, where=totals > 0)
    return ratios


@dataclass(frozen=True, slots=True)
class BalanceChoice:
    """The automatic choice: whether rows are grouped, and the gain. All figures are means of `slowest` over the
    sample's steps.
    """

    balance: Balance | None
    """The chosen grouping; None if plain order is nearly as good, or if there are too few rows."""
    rows: int
    """Number of rows of the sample."""
    ranks: int
    """Number of ranks that the figures are for; equal to the rows of a group."""
    plain: float
    """Slowest rank over mean with one row per rank in plain order; 1 if the sample has no whole step."""
    balanced: float
    """The same figure with one row per rank and `balance`; equal to `plain` if `balance` is None."""

    def __str__(self) -> str:
        """The choice in one sentence."""
        if self.rows < 4 * self.ranks:
            return f"{plural(self.rows, 'row is', 'rows are')} too few to group by cost for {self.ranks} ranks"
        text = f"{self.ranks} ranks, one row each: the slowest takes {self.plain:.2f} x the mean"
        if self.balance is None:
            return f"{text} in plain order, so rows are not grouped by cost"
        block = self.balance.block
        return f"{text} in plain order, {self.balanced:.2f} x with rows grouped by cost in blocks of {block:,}"


def choose_balance(costs: NDArray[np.float64], group: int = GROUP) -> BalanceChoice:
    """Find the smallest block that reaches the goals, by trying blocks of 2, 4, ... 32 groups on a sample.

    Smaller blocks keep the order closer to a random one. If no block reaches the goals, the closest one is taken. The
    choice depends only on the arguments, because it is part of the order, which must be the same on every rank and for
    any number of ranks and rows per step.

    Args:
        costs: (N,) the costs of about the first `SAMPLE` rows of the plain order, or of all rows.
        group: rows of a group; see `Balance`.
    """
    plain = _mean(slowest(costs, group))
    best, best_one = None, plain
    tried = [Balance(group << n, group) for n in range(1, _DOUBLINGS + 1) if 2 * group << n <= len(costs)]
    for balance in tried if plain > IDLE else []:
        order = np.concatenate(list(_blocks(costs, balance)))
        one = _mean(slowest(order, group))
        if one < best_one and one <= plain - LEAST_GAIN:
            best, best_one = balance, one
            if one <= GOAL_ONE and _mean(slowest(order, group, 8)) <= GOAL_EIGHT:
                break
    return BalanceChoice(best, len(costs), group, plain, best_one)


def _blocks(costs: NDArray[np.float64], balance: Balance) -> Iterator[NDArray[np.float64]]:
    """Return the costs in the order that `balance` gives to rows 0 .. N - 1."""
    for begin in range(0, len(costs), balance.block):
        rows = np.arange(begin, min(begin + balance.block, len(costs)))
        key = epoch_key(0, begin // balance.block, "choice")
        yield costs[grouped(rows, costs[rows], balance, key)]


def _mean(ratios: NDArray[np.float64]) -> float:
    # Rounded, so that machines that add in different orders make the same choice.
    return math.fsum(ratios.tolist()) / len(ratios) if len(ratios) else 1.0
