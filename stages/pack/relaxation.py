"""The linear relaxation of cutting stock by column generation: patterns that it uses, prices, and a bound.

The relaxation over the patterns so far gives prices; the knapsack finds the patterns that are worth more than a row at
these prices, and a bound. The prices that are tried lie between those of the best bound so far and the new ones
(Wentges, 1997), which needs fewer rounds. Prices are linear between a few sizes first, then between more
(`price_knots`).

Sources: P. C. Gilmore and R. E. Gomory, A linear programming approach to the cutting-stock problem, 1961; P. Wentges,
Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming, 1997.

Legend: `M` sizes, `C` capacity.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .bin_slack import Work
from .dual_bounds import DualBound
from .knapsack import Knapsack
from .master_problem import Master
from .price_knots import Held, Knots

_SCALE = 1 << 30
"""A row, in the integers that prices are rounded down to."""
_SHARES = (0.5, 0.0)
"""Weight of the prices of the best bound. The second is tried where the first finds no pattern."""
_ADDED = 250
"""The most patterns to add in a round."""
_KEPT = 4
"""Patterns to keep for each knot when knots are added: those nearest to being used."""
_CLOSE, _CLOSEST = 0.1, 0.001
"""Other knots are taken where the relaxation over the patterns so far needs little more rows than the best prices give:
this share of what they lack, and at least so many rows.
"""


class Relaxation:
    """The relaxation of some pieces, solved as far as the work allows."""

    def __init__(
        self, counts: NDArray[np.int64], seeds: Iterable[Iterable[int]], start: DualBound, knots: Sequence[int] | int
    ) -> None:
        """Begin.

        Args:
            counts: (C + 1,) how many pieces have each size.
            seeds: sizes of patterns to begin with; those that are gone are replaced by the next smaller ones.
            start: a bound to begin with, and prices.
            knots: sizes that have a price of their own at first, or how many.
        """
        self.counts = counts
        ascending = np.flatnonzero(counts)
        self.sizes = ascending[::-1]
        """(M,) largest first."""
        self.bound = start
        self._numbers = counts[self.sizes]
        self._most = np.minimum(self._numbers, (len(counts) - 1) // self.sizes)
        self._near = start.values[self.sizes] / start.full
        self._nearest = int((start.values[self.sizes] * self._numbers).sum()) / start.full
        if isinstance(knots, int):
            at = np.arange(knots) * (len(self.sizes) - 1) // max(1, knots - 1)
        else:
            at = np.searchsorted(-self.sizes, -np.array(knots)).clip(max=len(self.sizes) - 1)
        self._begin(at, list(dict.fromkeys(self._held(seeds, ascending))))

    def _held(self, seeds: Iterable[Iterable[int]], ascending: NDArray[np.int64]) -> Iterator[Held]:
        """Patterns of sizes as patterns of indices; no more of a size than there are."""
        listed, last, numbers = ascending.tolist(), len(ascending) - 1, self._numbers.tolist()
        for seed in seeds:
            held = Counter(last - place for size in seed if (place := bisect_right(listed, size) - 1) >= 0)
            if held:
                yield tuple(sorted((index, min(number, numbers[index])) for index, number in held.items()))

    def _begin(self, at: NDArray[np.int64], patterns: list[Held]) -> None:
        self._knots = knots = Knots.among(self.sizes, at, self._near)
        most = self._most[knots.at]
        self._master = Master(knots.shared(self._numbers), np.append(most, 0.5))
        # The first columns only begin: they lack what their pieces are worth by `near`.
        self._patterns: list[Held] = [()] * (len(knots) + 1)
        self._known: set[Held] = {()}
        singles = [((index, number),) for index, number in zip(knots.at.tolist(), most.tolist(), strict=True)]
        self._add(dict.fromkeys([*singles, *patterns]))

    def _add(self, patterns: Iterable[Held]) -> bool:
        new = [one for one in patterns if one not in self._known]
        self._known.update(new)
        self._patterns += new
        if new:
            self._master.add(self._knots.columns(new))
        return bool(new)

    @property
    def rows(self) -> float:
        """What the relaxation needs over the patterns so far."""
        return self._master.rows

    @property
    def knots(self) -> list[int]:
        """The sizes that have a price of their own."""
        listed: list[int] = self.sizes[self._knots.at].tolist()
        return listed

    def patterns(self) -> Iterator[list[int]]:
        """The sizes of each pattern."""
        for held in self._patterns:
            yield self.sizes_of(held)

    def sizes_of(self, held: Held) -> list[int]:
        """The sizes of a pattern."""
        return [int(self.sizes[index]) for index, number in held for _ in range(number)]

    def used(self) -> list[tuple[float, Held]]:
        """(how often, which pattern) of each pattern that is used."""
        return [(often, self._patterns[pattern]) for often, pattern in self._master.used() if self._patterns[pattern]]

    @property
    def lacks(self) -> float:
        """What the best prices lack of the bound: beyond it, they prove one row more."""
        return self.bound.rows - self._nearest

    def solve(self, rounds: int, most_knots: int, enough: int, work: Work) -> None:
        """Add patterns and knots until the bound is the best one.

        Args:
            rounds: the most rounds with the same knots.
            enough: a bound of so many rows ends it.
        """
        while True:
            for _ in range(rounds):
                if self.bound.rows >= enough or not self._round(work):
                    break
            more = min(len(self._knots), most_knots - len(self._knots))
            if more <= 0 or work.left <= 0 or self.bound.rows >= enough:
                return
            at = self._knots.with_more(self._left(), more)
            if len(at) == len(self._knots):
                return
            order = np.argsort(self._master.reduced()[: len(self._master)], kind="stable")
            work.left -= 100 * len(order)
            self._begin(at, [self._patterns[index] for index in order[: _KEPT * len(at)].tolist()])

    def _left(self) -> NDArray[np.float64]:
        """(M,) pieces of each size less what the patterns hold, as often as they are used."""
        used = self.used()
        flat = np.array([(index, number * often) for often, held in used for index, number in held])
        held = np.bincount(flat[:, 0].astype(np.int64), weights=flat[:, 1], minlength=len(self.sizes))
        out: NDArray[np.float64] = np.subtract(self._numbers, held, dtype=np.float64)
        return out

    def _round(self, work: Work) -> bool:
        """Solve over the patterns so far, and find more. Returns whether there are."""
        whole = len(self._knots) == len(self.sizes)
        near = max(_CLOSEST, _CLOSE * (self.bound.rows - self._nearest))
        enough = self.bound.rows if whole else self._nearest + near
        self._master.solve(work, enough)
        rows = self._master.rows
        if rows <= enough or work.left <= 0:
            return False
        prices = self._knots.at_sizes(self._master.prices)
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
