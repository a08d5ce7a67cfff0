"""Which rows a step has, and which rank gets each. A step has the same rows on any number of ranks.

Rows of similar cost may be grouped, so that the ranks of a step do similar work: the order is cut into blocks, the rows
of a block are sorted by cost and cut into groups, and the groups, and the rows within each, are permuted. A block holds
the same rows as before, so only the steps within a block differ more from each other than in a random order.
"""

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from ..schemas.escape import escape_line
from ..schemas.fingerprint import mix
from ..schemas.units import plural
from .order import EpochOrder, Order, Permutation, epoch_key
from .packed_rows import PackedRows

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


class Tail(StrEnum):
    """What happens to the rows after the last full step. The number of steps is the same on every rank."""

    DROP = "drop"
    """Leave out the remaining rows."""
    PAD = "pad"
    """Fill the last step with untrained rows."""
    REPEAT = "repeat"
    """Fill the last step with the first rows of the order."""


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


def choose_balance(costs: NDArray[np.float64]) -> tuple[int | None, str]:
    """How many rows a group has, None for no groups; and why in a sentence. The same on every rank, for any rows per
    step.

    Args:
        costs: (N,) the costs of the first `SAMPLE` rows of the order, or of all.
    """
    if len(costs) < 4 * GROUP:
        return None, f"{plural(len(costs), 'row is', 'rows are')} too few to group by cost for {GROUP} ranks"
    steps = costs[: len(costs) // GROUP * GROUP].reshape(-1, GROUP)
    means = np.maximum(steps.mean(axis=1), 1e-300)
    # Rounded, so that machines that add in different orders make the same choice.
    plain = round(math.fsum((steps.max(axis=1) / means).tolist()) / len(steps), 6)
    text = f"{GROUP} ranks, one row each: the slowest takes {plain:.2f} x the mean in plain order, so rows are"
    if plain <= IDLE:
        return None, f"{text} not grouped by cost"
    return GROUP, f"{text} grouped by cost in blocks of {BLOCK * GROUP}"


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
                "step would be full; take fewer rows a step, or tail='pad' or 'repeat'"
            )
        self.note = f"rows are in groups of {balance} by cost" if balance else "rows are not grouped by cost"
        """Whether rows are grouped by cost, and why."""
        if isinstance(balance, str):
            balance, self.note = choose_balance(self.corpus.costs(self._order(0, np.arange(min(SAMPLE, len(corpus))))))
        self.balance = balance
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


def read_state(given: Any, mine: dict[str, Any], of: str, counts: Collection[str]) -> dict[str, Any]:
    """A state that was saved, from untrusted plain data.

    Args:
        mine: the state at the beginning.
        of: name of the object that it belongs to, for messages.
        counts: the keys that say where it is, in whole numbers from 0. All others must be as in `mine`.

    Raises:
        ConfigError: it is of another version or order, or not a state of this kind; the message names the key.
    """
    found = dict(given) if isinstance(given, Mapping) else {}
    if (version := found.get("format")) != mine["format"]:
        raise ConfigError(
            f"this is not the state of a {of}, which has format {mine['format']}, not {shown(version)}: give what its "
            "state_dict() returned, or resume with the packtrain that wrote it"
        )
    for key in {**mine, **found}:
        theirs: Any = found.get(key)
        if key not in mine or type(theirs) is not type(mine[key]) or (key in counts and not 0 <= theirs <= 2**62):
            raise ConfigError(
                f"the state of a {of} is damaged: {escape_line(str(key))} is {shown(theirs)}; "
                "resume from another checkpoint"
            )
        if key not in counts and theirs != mine[key]:
            raise ConfigError(
                f"{key} differs: the {of} has {shown(mine[key])}, the state {shown(theirs)}. Resuming would repeat "
                "some rows and leave others out; configure it as before, or start again without the state"
            )
    return found


def shown(value: Any) -> str:
    """A value of a state in a message: short, and without control characters."""
    text = repr(value) if type(value) is not int or abs(value) < 2**63 else f"a number of {value.bit_length()} bits"
    return text if len(text) <= 60 else f"{text[:57]}..."
