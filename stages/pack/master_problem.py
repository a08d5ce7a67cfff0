"""The linear relaxation of cutting stock over some patterns: how often each is used, and what each size is worth.

    minimise  sum of x_p   with   sum of held_ip x_p >= numbers_i,   x >= 0

A revised primal simplex with an explicit inverse of the basis and devex pricing. Beside the patterns there are columns
that let a smaller size use the place of the next larger one: they keep prices monotone, which saves most pivots.

Floats are used here, and only to propose: a bound from its prices is computed again in integers (`knapsack`), and rows
hold pieces that were counted. They are added and multiplied one by one, never summed by a library whose order of
operations depends on the processor, so a plan is the same on every machine.

Sources: P. C. Gilmore and R. E. Gomory, A linear programming approach to the cutting-stock problem, 1961; J. M.
Valério de Carvalho, Using extra dual cuts to accelerate column generation, 2005; P. M. J. Harris, Pivot selection
methods of the Devex LP code, 1973.

Legend: `M` sizes, largest first, `P` patterns, `K` the most different sizes of a pattern.
"""

import numpy as np
from numpy.typing import NDArray

from ...schemas.splitmix import mix
from .bin_slack import Work
from .price_knots import Columns

_ZERO = 1e-9
_PIVOT = 1e-7
"""The smallest pivot."""
_SPREAD = 1e-4
"""Added to the numbers, times 0.5 to 1.5, so that no two patterns leave the basis at once and pivots do not cycle."""
_LARGE_WEIGHT = 1e9
_PIVOT_WORK = 1200
"""Work of a pivot, in the units of `Work`, beside that of its arrays."""


class Master:
    """The relaxation over the patterns so far, and the last basis."""

    def __init__(self, numbers: NDArray[np.float64], most: NDArray[np.float64]) -> None:
        """Begin with patterns of one size each.

        Args:
            numbers: (M,) how many pieces have each size.
            most: (M,) how many pieces of each size the first patterns hold.
        """
        count = len(numbers)
        inverse = np.zeros((count, count))
        np.fill_diagonal(inverse, 1 / most)
        self._inverse, self._buffer = inverse, np.empty_like(inverse)
        noise = (mix(np.arange(count, dtype=np.uint64)) >> np.uint64(40)) / float(1 << 24)
        self._x = np.stack([numbers + _SPREAD * (0.5 + noise), numbers]) / most
        """(2, M) how often each column of the basis is used, with `_SPREAD` and without."""
        self._prices = np.append(1 / most, 0.0)
        """(M + 1,); the last one is that of no size."""
        self._next = np.minimum(np.arange(1, count + 1), count)
        """(M,) the next smaller size; M for none."""
        self._next[-2:] = count
        self._basis = np.arange(count)
        """(M,) the pattern of each column; -1 - i for a place of size i that holds the next smaller size."""
        self._index = np.arange(count).reshape(1, count)
        self._held = most.reshape(1, count)
        """(K, P) the sizes of each pattern, and how many of each; 0 of size M in the other places."""
        self.rows = float(np.cumsum(self._x[1])[-1])
        """What the basis needs, without `_SPREAD`."""
        self.solved = False
        """Whether no pattern so far improves the basis."""

    @property
    def prices(self) -> NDArray[np.float64]:
        """(M,) what a piece of each size is worth, in rows."""
        out: NDArray[np.float64] = np.maximum(self._prices[:-1], 0)
        return out

    def used(self) -> list[tuple[float, int]]:
        """(how often, which pattern) of each pattern that the basis uses."""
        pairs = zip(self._x[1].tolist(), self._basis.tolist(), strict=True)
        return [(often, pattern) for often, pattern in pairs if pattern >= 0 and often > 1e-6]

    def __len__(self) -> int:
        """Patterns, the first M of one size each."""
        return self._index.shape[1]

    def add(self, columns: Columns) -> None:
        """Add patterns."""
        offsets, sizes, numbers = columns
        each = np.diff(offsets)
        before = len(self)
        wide, long = max(len(self._index), int(each.max(initial=0))), before + len(each)
        index = np.full((wide, long), len(self._basis))
        held = np.zeros((wide, long))
        index[: len(self._index), :before], held[: len(self._held), :before] = self._index, self._held
        column = np.repeat(np.arange(before, long), each)
        slot = np.arange(len(sizes)) - np.repeat(offsets[:-1], each)
        index[slot, column], held[slot, column] = sizes, numbers
        self._index, self._held = index, held
        self.solved = False

    def _valued(self, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """(P + M,) what the pieces of each column are worth, by (M + 1,) prices."""
        out = np.zeros(len(self) + len(self._basis))
        patterns = out[: len(self)]
        for index, held in zip(self._index, self._held, strict=True):
            patterns += prices[index] * held
        out[len(self) :] = prices[self._next] - prices[:-1]
        return out

    def reduced(self) -> NDArray[np.float64]:
        out = -self._valued(self._prices)
        out[: len(self)] += 1
        return out

    def _column(self, column: int) -> NDArray[np.float64]:
        """(M,) a column in terms of the basis."""
        place = column - len(self)
        if place < 0:
            out = np.zeros(len(self._basis))
            for size, number in zip(self._index[:, column].tolist(), self._held[:, column].tolist(), strict=True):
                if number:
                    out += self._inverse[:, size] * number
            return out
        out = -self._inverse[:, place]
        after = int(self._next[place])
        return out + self._inverse[:, after] if after < len(out) else out

    def solve(self, work: Work, goal: float = 0) -> None:
        """Pivot until no pattern improves the basis, it needs at most `goal` rows, or the work is done."""
        reduced, weights = self.reduced(), np.ones(len(self) + len(self._basis))
        wide = (len(self._index) * 4 + 14) * len(weights) // 80
        while work.left > 0 and self.rows > goal:
            score = np.where(reduced < -_ZERO, reduced * reduced / weights, 0.0)
            entering = int(score.argmax())
            if not score[entering] > 0:
                reduced = self.reduced()
                work.left -= wide
                if not reduced.min() < -_ZERO:
                    self.solved = True
                    return
                weights[:] = 1
                continue
            direction = self._column(entering)
            rising = np.flatnonzero(direction > _PIVOT)
            if not len(rising):
                return  # rounding errors: every real column has a limit
            leaving = int(rising[(self._x[0][rising] / direction[rising]).argmin()])
            pivot = direction[leaving]
            row = self._inverse[leaving] / pivot
            step, gain = self._x[:, leaving] / pivot, reduced[entering]
            self._x -= step[:, None] * direction
            self._x[:, leaving] = step
            self._prices[:-1] += gain * row
            self.rows += float(gain * step[1])
            along = self._valued(np.append(row, 0.0))
            reduced -= gain * along
            out = int(self._basis[leaving])
            out = out if out >= 0 else len(self) - 1 - out
            weight = weights[entering]
            np.maximum(weights, along * along * weight, out=weights)
            weights[out] = max(weight / pivot**2, 1.0)
            if weights[out] > _LARGE_WEIGHT:
                weights[:] = 1
            reduced[out], reduced[entering] = -gain / pivot, 0
            self._basis[leaving] = entering if entering < len(self) else len(self) - 1 - entering
            work.left -= _PIVOT_WORK + wide + self._update(direction, row, leaving)

    def _update(self, direction: NDArray[np.float64], row: NDArray[np.float64], leaving: int) -> int:
        """Update the inverse, which has many zeros, and return the work."""
        direction[leaving] = 0
        rows = np.flatnonzero(np.abs(direction) > 1e-12)
        # Into one buffer: fresh memory for every product would cost several times the arithmetic.
        if 2 * len(rows) < len(row):
            part = self._buffer[: len(rows)]
            np.multiply(direction[rows, None], row, out=part)
            self._inverse[rows] -= part
            work = len(rows) * len(row) // 36
        else:
            np.multiply(direction[:, None], row, out=self._buffer)
            np.subtract(self._inverse, self._buffer, out=self._inverse)
            work = len(row) ** 2 // 60
        self._inverse[leaving] = row
        return work
