"""Fewer rows and a better bound from the linear relaxation of cutting stock, by column generation and diving.

The relaxation over the patterns so far gives prices; the knapsack finds the patterns that are worth more than a row at
these prices, and a bound. The prices that are tried lie between those of the best bound so far and the new ones
(Wentges, 1997), which needs fewer rounds. Then the patterns that the relaxation uses whole are fixed, and the rest is
solved again, until a plain heuristic fills what is left (diving).

Sources: P. C. Gilmore and R. E. Gomory, A linear programming approach to the cutting-stock problem, 1961; P. Wentges,
Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming, 1997.

Legend: `M` sizes, `C` capacity.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from .bin_slack import Work, fill_rows
from .dual_bounds import DualBound
from .knapsack import Knapsack
from .master_problem import Held, Master
from .rows import Rows

_SCALE = 1 << 30
"""A row, in the integers that prices are rounded down to."""
_SHARES = (0.5, 0.0)
"""Weight of the prices of the best bound. The second is tried where the first finds no pattern."""
_ADDED = 250
"""The most patterns to add in a round."""
_SEEDS = 4_000
"""The most rows to take patterns from."""
_ROUNDS, _LATER_ROUNDS = 200, 4
"""Rounds of column generation: for all pieces, and for those left in a dive."""
_DIVES = (0.1, 0.02, 0.3)
"""The share of the patterns used in part that a step of a dive fixes."""
_WHOLE = 0.01
"""A pattern that is used less than this below a whole number counts as that number."""
_FLOORS = (0.0, 1 / 3, 0.25, 0.2, 1 / 6)
"""See `tight`."""
_FILL = 200_000
"""The most work of filling what a dive leaves, each way."""


@dataclass(frozen=True, slots=True, eq=False)
class _Relaxed:
    """The relaxation of some pieces, solved as far as the work allowed."""

    counts: NDArray[np.int64]
    """(C + 1,) how many pieces have each size."""
    sizes: NDArray[np.int64]
    """(M,) largest first."""
    master: Master
    bound: DualBound

    def patterns(self) -> Iterator[list[int]]:
        """The sizes of each pattern."""
        listed = self.sizes.tolist()
        for held in self.master.patterns:
            yield [listed[index] for index, number in held for _ in range(number)]

    def fixed(self, share: float) -> Rows:
        """Rows of the patterns that are used whole, and of a share of the others: those used most. At least one."""
        whole = [(int(often + _WHOLE), pattern) for often, pattern in self.master.used()]
        rest = sorted(
            (number - often, pattern) for (often, pattern), (number, _) in zip(self.master.used(), whole, strict=True)
        )
        often = Counter({pattern: number for number, pattern in whole if number})
        rest = [one for one in rest if one[0] < -_WHOLE]
        often.update(pattern for _, pattern in rest[: max(int(not often), int(share * len(rest)))])
        listed = self.sizes.tolist()
        held = self.master.patterns
        return Rows.of(({listed[index]: many for index, many in held[one]}, number) for one, number in often.items())


def improved(rows: Rows, bound: DualBound, capacity: int, work: Work) -> tuple[Rows, DualBound]:
    """Look for fewer rows and a better bound.

    Args:
        bound: a bound for the pieces of these rows.
    """
    counts = np.bincount(rows.sizes, minlength=capacity + 1)
    rest = work.left // 3
    work.left -= rest
    step = 1 + len(rows) // _SEEDS
    seeds = (rows.sizes[a:b].tolist() for a, b in zip(rows.offsets[:-1:step], rows.offsets[1::step], strict=True))
    relaxed = _relax(counts, seeds, bound, _ROUNDS, work)
    work.left += rest
    best, bound = rows, relaxed.bound
    for share in _DIVES:
        if len(best) <= bound.rows or work.left <= 0:
            break
        best = _dive(relaxed, best, bound, share, work)
    return best, bound


def _relax(
    counts: NDArray[np.int64], seeds: Iterable[list[int]], start: DualBound, rounds: int, work: Work
) -> _Relaxed:
    """Solve the relaxation until it proves that its bound is the best one.

    Args:
        seeds: patterns to begin with; sizes that are gone are replaced by the next smaller ones.
        start: a bound to begin with, and prices.
    """
    capacity = len(counts) - 1
    ascending = np.flatnonzero(counts)
    sizes = ascending[::-1]
    numbers = counts[sizes]
    master = Master(numbers, np.minimum(numbers, capacity // sizes))
    master.add(_held(seeds, ascending, numbers.tolist()))
    bound, near = start, start.values[sizes] / start.full
    nearest = int((start.values[sizes] * numbers).sum()) / start.full
    for _ in range(rounds):
        master.solve(work, bound.rows)
        if master.rows <= bound.rows or work.left <= 0:
            break
        exact = np.floor(master.prices * _SCALE).astype(np.int64)
        found: list[Held] = []
        for share in _SHARES:
            mixed = np.floor((share * near + (1 - share) * master.prices) * _SCALE).astype(np.int64)
            table = Knapsack(ascending, numbers[::-1], mixed[::-1], capacity, work)
            worth = int((mixed * numbers).sum())
            if not table.best:
                break
            if -(-worth // table.best) > bound.rows:
                values = np.zeros(capacity + 1, dtype=np.int64)
                values[sizes] = mixed
                bound = DualBound(-(-worth // table.best), "prices", values, table.best)
            if worth / table.best > nearest:
                nearest, near = worth / table.best, mixed / table.best
            last = len(sizes) - 1
            patterns = (
                sorted((last - index, number) for index, number in one.items()) for one in table.patterns(_ADDED, work)
            )
            found = [tuple(one) for one in patterns if _worth(one, exact) > _SCALE + len(one)]
            if found or master.rows <= bound.rows:
                break
        if not master.add(found):
            break
    return _Relaxed(counts, sizes, master, bound)


def _worth(held: list[tuple[int, int]], prices: NDArray[np.int64]) -> int:
    return sum(int(prices[index]) * number for index, number in held)


def _held(seeds: Iterable[list[int]], ascending: NDArray[np.int64], numbers: list[int]) -> list[Held]:
    """Patterns of sizes as patterns of indices, largest first; no more of a size than there are."""
    listed, last = ascending.tolist(), len(ascending) - 1
    out = []
    for seed in seeds:
        held = Counter(last - place for size in seed if (place := bisect_right(listed, size) - 1) >= 0)
        if held:
            out.append(tuple(sorted((index, min(number, numbers[index])) for index, number in held.items())))
    return out


def _dive(relaxed: _Relaxed, best: Rows, bound: DualBound, share: float, work: Work) -> Rows:
    """Fix rows step by step. Returns `best`, or fewer rows.

    Args:
        bound: the search ends with so few rows.
    """
    fixed = Rows.of([])
    while work.left > 0 and len(fixed) + relaxed.master.rows < len(best) - 0.99:
        taken, left = _placed(relaxed.fixed(share), relaxed.counts)
        fixed = fixed.with_more(taken)
        found = fixed
        if left.any():
            found = fixed.with_more(_completed(left, work))
        if len(found) < len(best):
            best = found
        if len(best) <= bound.rows or not left.any():
            break
        relaxed = _relax(left, relaxed.patterns(), DualBound(0, "", bound.values, bound.full), _LATER_ROUNDS, work)
    return best


def _placed(places: Rows, counts: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
    """Put pieces into the places of rows: the largest place takes the largest piece left that fits.

    Returns:
        Rows of pieces, and (C + 1,) the pieces left.
    """
    order = np.argsort(-places.sizes, kind="stable")
    pieces = np.repeat(np.arange(len(counts)), counts)[::-1]
    # The j-th place takes piece max(first that fits, the one after the last taken).
    step = np.arange(len(order))
    first = np.searchsorted(-pieces, -places.sizes[order])
    index = np.maximum.accumulate(first - step) + step
    order, index = order[index < len(pieces)], index[index < len(pieces)]
    held = np.zeros(len(places.sizes), dtype=np.int64)
    held[order] = pieces[index]
    row = np.repeat(np.arange(len(places)), np.diff(places.offsets))
    number = np.bincount(row[held > 0], minlength=len(places))
    taken = held[held > 0]
    return Rows(taken, offsets_of(number[number > 0])), counts - np.bincount(taken, minlength=len(counts))


def _completed(counts: NDArray[np.int64], work: Work) -> Rows:
    """The fewest rows that filling finds."""
    capacity = len(counts) - 1
    found = []
    for floor in _FLOORS:
        share = Work(min(_FILL, work.left))
        begin = share.left
        found.append(Rows.of(fill_rows(counts, max(1, int(floor * capacity)), share, False)))
        work.left -= begin - share.left + 20 * int(counts.sum()) + capacity // 100
    return min(found, key=len)
