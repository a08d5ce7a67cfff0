"""The linear relaxation of cutting stock by column generation: patterns that it uses, prices, and a bound.

The relaxation over the patterns so far gives prices; the knapsack finds the patterns that are worth more than a row at
these prices, and a bound. The prices that are tried lie between those of the best bound so far and the new ones
(Wentges, 1997), which needs fewer rounds.

Sources: P. C. Gilmore and R. E. Gomory, A linear programming approach to the cutting-stock problem, 1961; P. Wentges,
Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming, 1997.

Legend: `M` sizes, `C` capacity.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from .bin_slack import Work
from .dual_bounds import DualBound
from .knapsack import Knapsack
from .master_problem import Held, Master

_SCALE = 1 << 30
"""A row, in the integers that prices are rounded down to."""
_SHARES = (0.9, 0.5, 0.0)
"""Weights of the prices of the best bound. The next one is tried where one finds no pattern."""
_ADDED = 250
"""The most patterns to add in a round."""


class Relaxation:
    """The relaxation of some pieces, solved as far as the work allows."""

    def __init__(self, counts: NDArray[np.int64], seeds: Iterable[Iterable[int]], start: DualBound) -> None:
        """Begin.

        Args:
            counts: (C + 1,) how many pieces have each size.
            seeds: sizes of patterns to begin with; those that are gone are replaced by the next smaller ones.
            start: a bound to begin with, and prices.
        """
        self.counts = counts
        ascending = np.flatnonzero(counts)
        self.sizes = ascending[::-1]
        """(M,) largest first."""
        self.bound = start
        self._numbers = counts[self.sizes]
        self._near = start.values[self.sizes] / start.full
        self._nearest = int((start.values[self.sizes] * self._numbers).sum()) / start.full
        self._master = Master(self._numbers)
        first: Held = ((0, 1),)
        self._patterns, self._known = [first], {first}
        most = np.minimum(self._numbers, (len(counts) - 1) // self.sizes).tolist()
        self._add(
            dict.fromkeys([*(((index, number),) for index, number in enumerate(most)), *self._held(seeds, ascending)])
        )

    def _held(self, seeds: Iterable[Iterable[int]], ascending: NDArray[np.int64]) -> Iterator[Held]:
        """Patterns of sizes as patterns of indices; no more of a size than there are."""
        listed, last, numbers = ascending.tolist(), len(ascending) - 1, self._numbers.tolist()
        for seed in seeds:
            held = Counter(last - place for size in seed if (place := bisect_right(listed, size) - 1) >= 0)
            if held:
                yield tuple(sorted((index, min(number, numbers[index])) for index, number in held.items()))

    def _add(self, patterns: Iterable[Held]) -> bool:
        new = [one for one in patterns if one not in self._known]
        self._known.update(new)
        self._patterns += new
        if new:
            self._master.add(new)
        return bool(new)

    @property
    def rows(self) -> float:
        """What the relaxation needs over the patterns so far."""
        return self._master.rows

    def patterns(self) -> Iterator[list[int]]:
        """The sizes of each pattern."""
        for held in self._patterns:
            yield self.sizes_of(held)

    def sizes_of(self, held: Held) -> list[int]:
        """The sizes of a pattern."""
        return [int(self.sizes[index]) for index, number in held for _ in range(number)]

    def used(self) -> list[tuple[float, Held]]:
        """(how often, which pattern) of each pattern that is used."""
        return [(often, self._patterns[pattern]) for often, pattern in self._master.used()]

    def solve(self, rounds: int, enough: int, work: Work) -> None:
        """Add patterns until the bound is the best one.

        Args:
            rounds: the most rounds.
            enough: a bound of so many rows ends it.
        """
        for _ in range(rounds):
            if self.bound.rows >= enough or not self._round(work):
                break

    def _round(self, work: Work) -> bool:
        """Solve over the patterns so far, and find more. Returns whether there are."""
        self._master.solve(work, self.bound.rows)
        if self._master.rows <= self.bound.rows or work.left <= 0:
            return False
        prices = self._master.prices
        exact = np.floor(prices * _SCALE).astype(np.int64)
        last = len(self.sizes) - 1
        capacity = len(self.counts) - 1
        for share in _SHARES:
            mixed = np.floor((share * self._near + (1 - share) * prices) * _SCALE).astype(np.int64)
            table = Knapsack(self.sizes[::-1], self._numbers[::-1], mixed[::-1], capacity, work)
            if not table.best:
                return False
            worth = int((mixed * self._numbers).sum())
            least = -(-worth // table.best)
            if least > self.bound.rows:
                values = np.zeros(len(self.counts), dtype=np.int64)
                values[self.sizes] = mixed
                self.bound = DualBound(least, "prices", values, table.best)
            if worth / table.best > self._nearest:
                self._nearest, self._near = worth / table.best, mixed / table.best
            patterns = (
                sorted((last - index, number) for index, number in one.items()) for one in table.patterns(_ADDED, work)
            )
            found = [tuple(one) for one in patterns if _worth(one, exact) > _SCALE + len(one)]
            if found:
                break
        return self._add(dict.fromkeys(found))


def _worth(held: list[tuple[int, int]], prices: NDArray[np.int64]) -> int:
    return sum(int(prices[index]) * number for index, number in held)
