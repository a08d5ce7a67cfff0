"""The linear relaxation of cutting stock over some patterns: how often each is used, and what each size is worth.

    minimise  sum of x_p   with   sum over i <= j of (sum of held_ip x_p - numbers_i) >= 0  for each j,   x >= 0

Sizes come largest first, so a smaller size may use the place of a larger one, and prices never rise with i: they are
steps. A revised primal simplex with devex pricing. Its basis needs no constraint that is not tight, so the inverse has
as many rows as there are steps, mostly far fewer than sizes.

Floats are used here, and only to propose: a bound from its prices is computed again in integers (`knapsack`), and rows
hold pieces that were counted. They are added and multiplied one by one, never summed by a library whose order of
operations depends on the processor, so a plan is the same on every machine.

Sources: P. C. Gilmore and R. E. Gomory, A linear programming approach to the cutting-stock problem, 1961; J. M.
Valério de Carvalho, Using extra dual cuts to accelerate column generation, 2005; P. M. J. Harris, Pivot selection
methods of the Devex LP code, 1973.

Legend: `M` sizes, largest first, `P` patterns, `K` steps.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import lengths_of, ranges
from ...schemas.splitmix import mix
from .bin_slack import Work

Held = tuple[tuple[int, int], ...]
"""A pattern: (index of a size, how many of it), sizes in order."""

_ZERO = 1e-9
_PIVOT = 1e-7
"""The smallest pivot."""
_SPREAD = 1e-4
"""Added to the numbers, times 0.5 to 1.5, so that no two patterns leave the basis at once and pivots do not cycle."""
_NOTHING = 1e-12
_LARGE_WEIGHT = 1e9
_PIVOT_WORK = 4000
"""Work of a pivot, in the units of `Work`, beside that of its arrays."""


class Master:
    """The relaxation over the patterns so far, and the last basis."""

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        """Begin with one pattern, of one piece of the largest size.

        Args:
            numbers: (M,) how many pieces have each size.
        """
        count = len(numbers)
        noise = (mix(np.arange(count, dtype=np.uint64)) >> np.uint64(40)) / float(1 << 24)
        need = np.cumsum(np.stack([numbers + _SPREAD * (0.5 + noise), numbers]), axis=1)
        self._x = need[:, -1:].copy()
        """(2, K) how often each pattern of the basis is used, with `_SPREAD` and without."""
        self._over = need[:, -1:] - need
        """(2, M) places for sizes up to each, less what needs them."""
        self._steps = np.array([count - 1])
        """(K,) the sizes up to which as many places are used as are needed, in order."""
        self._level = np.zeros(count, np.int64)
        """(M,) between which steps each size is: steps before it. K after the last one."""
        self._rises = np.ones(1)
        """(K,) what prices rise by, from the next size to each of these."""
        self._basis = np.array([0])
        """(K,) the patterns in use."""
        self._space, self._buffer = np.ones((1, 1)), np.ones(1)
        """The inverse of the basis is (K, K) of it: how often a pattern is used for a piece between two steps."""
        self._offsets, self._owners = np.arange(2), np.zeros(1, np.int64)
        self._sizes, self._held = np.zeros(1, np.int64), np.ones(1)
        """Sizes of all patterns, and how many of each. (P + 1,) offsets; owners: the pattern of each."""
        self.rows = float(self._x[1, 0])
        """What the basis needs, without `_SPREAD`."""
        self.solved = False
        """Whether no pattern so far improves the basis."""

    @property
    def prices(self) -> NDArray[np.float64]:
        """(M,) what a piece of each size is worth, in rows."""
        out: NDArray[np.float64] = np.maximum(np.append(self._levels, 0.0)[self._level], 0)
        return out

    def used(self) -> list[tuple[float, int]]:
        """(how often, which pattern) of each pattern that the basis uses."""
        pairs = zip(self._x[1].tolist(), self._basis.tolist(), strict=True)
        return [(often, pattern) for often, pattern in pairs if often > 1e-6]

    def __len__(self) -> int:
        """Patterns, that of one piece of the largest size first."""
        return len(self._offsets) - 1

    def add(self, patterns: Sequence[Held]) -> None:
        """Add patterns."""
        flat = np.array([pair for held in patterns for pair in held], dtype=np.int64).reshape(-1, 2)
        self._offsets = np.append(self._offsets, self._offsets[-1] + np.cumsum(lengths_of(patterns)))
        self._sizes, self._held = np.append(self._sizes, flat[:, 0]), np.append(self._held, flat[:, 1])
        self._owners = np.repeat(np.arange(len(self)), np.diff(self._offsets))
        self.solved = False

    def reduced(self) -> NDArray[np.float64]:
        """(P,) what a row costs beyond what each pattern is worth."""
        out: NDArray[np.float64] = 1 - self._worth(self._levels)
        return out

    @property
    def _levels(self) -> NDArray[np.float64]:
        """(K,) prices between steps."""
        return np.cumsum(self._rises[::-1])[::-1]

    @property
    def _inverse(self) -> NDArray[np.float64]:
        return self._space[: len(self._basis), : len(self._steps)]

    def _worth(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """(P,) what the pieces of each pattern are worth, by (K,) levels between steps."""
        values = np.append(levels, 0.0)[self._level]
        return np.bincount(self._owners, values[self._sizes] * self._held).astype(np.float64, copy=False)

    def _pieces(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """What the patterns at some places of the basis hold: the place, the size, how many."""
        begins = self._offsets[self._basis[places]]
        numbers = self._offsets[self._basis[places] + 1] - begins
        flat = ranges(begins, numbers)
        return np.repeat(places, numbers), self._sizes[flat], self._held[flat]

    def solve(self, work: Work, goal: float = 0) -> None:
        """Pivot until no pattern improves the basis, it needs at most `goal` rows, or the work is done."""
        reduced, weights, step_weights = self.reduced(), np.ones(len(self)), np.ones(self._over.shape[1])
        exact = True
        while work.left > 0 and self.rows > goal:
            score = np.where(reduced < -_ZERO, reduced * reduced / weights, 0.0)
            falling = np.where(self._rises < -_ZERO, self._rises**2 / step_weights[self._steps], 0.0)
            entering, step = int(score.argmax()), int(falling.argmax())
            if not max(score[entering], falling[step]) > 0:
                if exact:
                    self.solved = True
                    return
                reduced, exact = self.reduced(), True
                weights[:], step_weights[:] = 1, 1
                continue
            exact = False
            if score[entering] >= falling[step]:
                step = -1  # a pattern enters the basis, or else a step leaves the prices
            gain = reduced[entering] if step < 0 else self._rises[step]
            weight = weights[entering] if step < 0 else step_weights[self._steps[step]]
            move, rate = self._moves(entering, step)
            leaving, tight = self._limit(move, rate)
            if leaving < 0 and tight < 0:
                return  # rounding errors: every real column has a limit
            if tight >= 0:
                pivot, times = rate[tight], self._over[:, tight] / -rate[tight]
                at = int(self._level[tight])
                step += 0 <= at <= step
                levels = self._with_step(at, tight)
            else:
                pivot, times = move[leaving], self._x[:, leaving] / move[leaving]
                levels = self._inverse[leaving].copy()
            price, factor = gain / pivot, weight / pivot**2
            rises = levels.copy()
            rises[:-1] -= levels[1:]
            along = self._worth(levels)
            reduced -= price * along
            self._rises += price * rises
            np.maximum(weights, along * along * factor, out=weights)
            step_weights[self._steps] = np.maximum(step_weights[self._steps], rises * rises * factor)
            if leaving >= 0:
                weights[self._basis[leaving]], reduced[self._basis[leaving]] = max(factor, 1.0), -price
            else:
                step_weights[tight] = max(factor, 1.0)
            if step < 0:
                reduced[entering] = 0
            if max(weights.max(), step_weights.max()) > _LARGE_WEIGHT:
                weights[:], step_weights[:] = 1, 1
            self.rows += float(gain * times[1])
            self._x -= times[:, None] * move
            self._over += times[:, None] * rate
            if tight >= 0:
                self._over[:, tight] = 0
            work.left -= _PIVOT_WORK + len(self._held) // 4 + self._over.shape[1] // 4
            work.left -= self._update(move, levels / pivot, leaving)
            if step < 0:
                self._enter(entering, times, leaving, levels / pivot)
            else:
                self._leave(step, leaving)

    def _moves(self, entering: int, step: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(K,) how much less each pattern of the basis is used, and (M,) how many more places there are for sizes up to
        each, for one row of a pattern, or for one place more than needed at a step if there is one.
        """
        inverse, sizes = self._inverse, self._over.shape[1]
        held = np.zeros(sizes)
        if step < 0:
            move = np.zeros(len(self._basis))
            own = slice(self._offsets[entering], self._offsets[entering + 1])
            for level, number in zip(self._level[self._sizes[own]].tolist(), self._held[own].tolist(), strict=True):
                if level < len(self._steps):
                    move += inverse[:, level] * number
            held[self._sizes[own]] = self._held[own]
        else:
            move = -inverse[:, step]
            if step + 1 < len(self._steps):
                move += inverse[:, step + 1]
        places, index, number = self._pieces(np.flatnonzero(np.abs(move) > _NOTHING))
        rate: NDArray[np.float64] = np.cumsum(held - np.bincount(index, number * move[places], minlength=sizes))
        rate[self._steps] = 0
        if step >= 0:
            rate[self._steps[step]] = 1
        return move, rate

    def _limit(self, move: NDArray[np.float64], rate: NDArray[np.float64]) -> tuple[int, int]:
        """The place of the pattern that is used no more first, or the size whose places are used up first; else -1."""
        patterns, sizes = np.flatnonzero(move > _PIVOT), np.flatnonzero(rate < -_PIVOT)
        often = self._x[0, patterns] / move[patterns]
        spare = self._over[0, sizes] / -rate[sizes]
        if len(patterns) and not spare.min(initial=np.inf) < often.min():
            return int(patterns[often.argmin()]), -1
        return -1, int(sizes[spare.argmin()]) if len(sizes) else -1

    def _with_step(self, at: int, size: int) -> NDArray[np.float64]:
        """Insert a step. Returns (K,) the levels that raise it, and leave the worth of the basis as it is."""
        count = len(self._steps)
        if count == len(self._space):
            self._space = np.pad(self._space, (0, 1 + count // 2))
            self._buffer = np.empty(self._space.size)
        inverse = self._space[:count, : count + 1]
        inverse[:, at + 1 :] = inverse[:, at:-1].copy()
        if at == count:
            inverse[:, at] = 0
        before = int(self._steps[at - 1])
        self._steps, self._rises = np.insert(self._steps, at, size), np.insert(self._rises, at, 0.0)
        self._level[size + 1 :] += 1
        levels = np.zeros(count + 1)
        # One step's row of the inverse is known, that of a neighbour: they differ by the pieces between them.
        if at < count:
            low, high, sign = size, int(self._steps[at + 1]), 1.0
            levels[at + 1] = -1
        else:
            low, high, sign = before, size, -1.0
            levels[at] = 1
        places, index, many = self._pieces(np.arange(count))
        held = np.bincount(places, np.where((index > low) & (index <= high), many, 0.0), minlength=count)
        differ = np.flatnonzero(held)
        for place, number in zip(differ.tolist(), (sign * held[differ]).tolist(), strict=True):
            levels += inverse[place] * number
        return levels

    def _update(self, move: NDArray[np.float64], row: NDArray[np.float64], leaving: int) -> int:
        """Update the inverse, which has many zeros, but for the new row, and return the work."""
        inverse = self._inverse
        if leaving >= 0:
            move[leaving] = 0
        changed = np.flatnonzero(np.abs(move) > _NOTHING)
        # Into one buffer: fresh memory for every product would cost several times the arithmetic.
        if 2 * len(changed) < len(move):
            part = self._buffer[: len(changed) * len(row)].reshape(-1, len(row))
            np.multiply(move[changed, None], row, out=part)
            inverse[changed] -= part
            return part.size // 16
        part = self._buffer[: len(move) * len(row)].reshape(-1, len(row))
        np.multiply(move[:, None], row, out=part)
        np.subtract(inverse, part, out=inverse)
        return part.size // 30

    def _enter(self, pattern: int, times: NDArray[np.float64], leaving: int, row: NDArray[np.float64]) -> None:
        """Put a pattern into the basis, for another one or at its end."""
        if leaving < 0:
            leaving = len(self._basis)
            self._basis = np.append(self._basis, 0)
            self._x = np.append(self._x, np.zeros((2, 1)), axis=1)
        self._basis[leaving], self._x[:, leaving], self._inverse[leaving] = pattern, times, row

    def _leave(self, step: int, leaving: int) -> None:
        """Take a step out of the prices, and a pattern out of the basis if one leaves it."""
        inverse = self._inverse
        inverse[:, step:-1] = inverse[:, step + 1 :].copy()
        if leaving >= 0:
            inverse[leaving], self._basis[leaving], self._x[:, leaving] = inverse[-1], self._basis[-1], self._x[:, -1]
            self._basis, self._x = self._basis[:-1], self._x[:, :-1]
        self._level[self._steps[step] + 1 :] -= 1
        self._steps, self._rises = np.delete(self._steps, step), np.delete(self._rises, step)
