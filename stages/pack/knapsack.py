"""What the best row is worth, for given prices of sizes: exact, in integers.

For any prices of 0 or more, no row is worth more than the best one. So all pieces need at least as many rows as they
are worth, divided by the worth of the best row: a lower bound that holds whatever the prices are (Farley, 1990).

Where the table would be too large, sizes and the capacity are counted in larger units, rounded down. Pieces that share
a row then still share it, so the bound holds, but it is weaker.

Legend: `M` sizes, `C` capacity.

Source: A. A. Farley, A note on bounding a class of linear programming problems, including cutting stock problems, 1990.
"""

import numpy as np
from numpy.typing import NDArray

from .bin_slack import Work

CELLS = 8_000_000
"""The most cells of a table: 64 MB."""
_OPERATION = 60
"""Work of beginning a few array operations."""


class Knapsack:
    """The table of the best values, for every number of sizes and every capacity."""

    def __init__(
        self,
        sizes: NDArray[np.int64],
        numbers: NDArray[np.int64],
        prices: NDArray[np.int64],
        capacity: int,
        work: Work,
    ) -> None:
        """Compute the table.

        Args:
            sizes: (M,) from the smallest.
            numbers: (M,) how many pieces have each size; a row holds no more of it.
            prices: (M,) integers of 0 or more.
        """
        unit = 1 + (len(sizes) + 1) * (capacity + 1) // CELLS
        self.sizes, self.capacity = sizes // unit, capacity // unit
        self._real_sizes, self._real_capacity = sizes, capacity
        self.prices = prices
        most = np.where(self.sizes > 0, self.capacity // np.maximum(self.sizes, 1), numbers)
        self._most = np.minimum(numbers, most)
        table = np.zeros((len(sizes) + 1, self.capacity + 1), dtype=np.int64)
        each = _OPERATION + self.capacity // 25
        listed = zip(self.sizes.tolist(), self._most.tolist(), prices.tolist(), strict=True)
        for index, (size, left, price) in enumerate(listed):
            now = table[index + 1]
            now[:] = table[index]
            copies = 1
            while left > 0 and price > 0:  # 1, 2, 4, … and the rest make every number of copies
                copies = min(copies, left)
                left -= copies
                use = copies * size
                np.maximum(now[use:], now[: self.capacity + 1 - use] + copies * price, out=now[use:])
                copies *= 2
                work.left -= each
        work.left -= len(sizes) * each
        self._table = table
        self.best: int = int(table[-1, -1])
        """What the best row is worth."""

    def patterns(self, most: int, work: Work) -> list[dict[int, int]]:
        """The best rows that hold a given size, for the sizes of which these are worth most: index -> how many.

        Args:
            most: the most rows to return.
        """
        spaces = self.capacity - self.sizes
        worth = self.prices + self._table[-1][spaces]
        chosen = np.argsort(-worth, kind="stable")[:most]
        spaces = spaces[chosen]
        found: list[dict[int, int]] = [{index: 1} for index in chosen.tolist()]
        for index in range(len(self.sizes) - 1, -1, -1):
            before, size, price = self._table[index], int(self.sizes[index]), int(self.prices[index])
            value = self._table[index + 1][spaces]
            todo = np.flatnonzero(value != before[spaces])
            number = 0
            while len(todo):
                number += 1
                rest = spaces[todo] - number * size
                hit = (rest >= 0) & (before[np.maximum(rest, 0)] + number * price == value[todo])
                for row in todo[hit].tolist():
                    found[row][index] = found[row].get(index, 0) + number
                spaces[todo[hit]] = rest[hit]
                todo = todo[~hit] if number < self._most[index] else todo[:0]
                work.left -= 4 * _OPERATION
            work.left -= 2 * _OPERATION
        work.left -= 40 * len(found)
        return [self._fitting(one) for one in found]

    def _fitting(self, held: dict[int, int]) -> dict[int, int]:
        """No more of each size than there are, and no more than fits; the smallest go first."""
        space = self._real_capacity
        out: dict[int, int] = {}
        for index in sorted(held, reverse=True):
            size = int(self._real_sizes[index])
            number = min(held[index], int(self._most[index]), space // size)
            if number:
                out[index] = number
                space -= number * size
        return out
