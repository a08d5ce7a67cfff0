"""What the best row is worth, for given prices of sizes: exact, in integers.

For any prices of 0 or more, no row is worth more than the best one. So all pieces need at least as many rows as they
are worth, divided by the worth of the best row: a lower bound that holds whatever the prices are (Farley, 1990).

A row holds at most two pieces above a third of the capacity. So a table is made for the other sizes alone, and each
large size, and each pair of them, is tried over it. Where the table would be too large, sizes and the capacity are
counted in larger units, rounded down. Pieces that share a row then still share it, so the bound holds, but is weaker.

Legend: `M` sizes, `S` sizes up to a third of the capacity `C`, `L` larger ones.

Source: A. A. Farley, A note on bounding a class of linear programming problems, including cutting stock problems, 1990.
"""

import numpy as np
from numpy.typing import NDArray

from .bin_slack import Work

CELLS = 48_000_000
"""The most cells of a table, of one byte where no row holds more than 255 of a size."""
_OPERATION = 40
"""Work of beginning a few array operations."""


class Knapsack:
    """The best values of rows, for every capacity, and what they hold."""

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
        unit = 1 + int(np.count_nonzero(3 * sizes <= capacity)) * (capacity + 1) // CELLS
        self.sizes, self.capacity = sizes // unit, capacity // unit
        self._real_sizes, self._real_capacity = sizes, capacity
        self.prices = prices
        fits = np.where(self.sizes > 0, self.capacity // np.maximum(self.sizes, 1), numbers)
        self._most = np.minimum(numbers, fits)
        self._small = int(np.count_nonzero(3 * self.sizes <= self.capacity))
        self._values, self._held = self._table(work)
        self._alone, self._beside, self._pair = self._large(work)
        self.best: int = int(max(self._values[-1], self._alone.max(initial=0), self._pair.max(initial=0)))
        """What the best row is worth."""

    def _table(self, work: Work) -> tuple[NDArray[np.int64], NDArray[np.unsignedinteger]]:
        """(C + 1,) the best value of each capacity, of the small sizes; (S, C + 1) how many it has of the size, if it
        holds none of those after it.
        """
        small, wide = self._small, self.capacity + 1
        held = np.zeros((small, wide), np.min_scalar_type(int(self._most[:small].max(initial=0))))
        now, more, better = np.zeros(wide, np.int64), np.empty(wide, np.int64), np.empty(wide, np.bool_)
        listed = zip(self.sizes.tolist(), self._most.tolist(), self.prices.tolist(), strict=True)
        each = _OPERATION + wide // 40
        for row, (size, left, price) in zip(held, listed, strict=False):
            copies, begun = 1, False
            while left > 0 and price > 0:  # 1, 2, 4, … and the rest make every number of copies
                copies = min(copies, left)
                left -= copies
                use = copies * size
                np.add(now[: wide - use], copies * price, out=more[use:])
                np.greater(more[use:], now[use:], out=better[use:])
                if begun:
                    np.copyto(row[use:], row[: wide - use] + row.dtype.type(copies), where=better[use:])
                else:
                    row[use:], begun = better[use:], True
                np.maximum(now[use:], more[use:], out=now[use:])
                copies *= 2
                work.left -= each
        return now, held

    def _large(self, work: Work) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(L,) the best value of a row with each large size and no other one; (L,) the best one beside it; (L,) the
        best value with that one, 0 where none fits.
        """
        sizes, prices = self.sizes[self._small :], self.prices[self._small :]
        spaces = self.capacity - sizes
        alone = prices + self._values[spaces]
        beside, pair = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
        for index in range(int(np.searchsorted(2 * sizes, self.capacity, side="right"))):
            first = index if self._most[self._small + index] > 1 else index + 1
            end = int(np.searchsorted(sizes, spaces[index], side="right"))
            if first < end:
                value = self._values[spaces[index] - sizes[first:end]] + prices[first:end] + prices[index]
                better = value > pair[first:end]
                pair[first:end][better] = value[better]
                beside[first:end][better] = index
                found = int(value.argmax())
                if value[found] > pair[index]:
                    pair[index], beside[index] = value[found], first + found
                work.left -= 3 * _OPERATION + (end - first) // 8
        return alone, beside, pair

    def patterns(self, most: int, work: Work) -> list[dict[int, int]]:
        """Good rows that hold a given size, for the sizes whose rows are worth most: index -> how many.

        Args:
            most: the most rows to return.
        """
        small = self._small
        worth = np.concatenate([np.zeros(small, np.int64), np.maximum(self._alone, self._pair)])
        beside = np.concatenate([np.full(small, -1), np.where(self._pair > self._alone, self._beside + small, -1)])
        spaces = self.capacity - self.sizes
        worth[:small] = self.prices[:small] + self._values[spaces[:small]]
        for index in range(small):
            end = int(np.searchsorted(self.sizes, spaces[index], side="right"))
            if end > small:
                value = self._values[spaces[index] - self.sizes[small:end]] + self.prices[small:end]
                found = int(value.argmax())
                if value[found] + self.prices[index] > worth[index]:
                    worth[index], beside[index] = value[found] + self.prices[index], small + found
                work.left -= 2 * _OPERATION + (end - small) // 8
        chosen = np.argsort(-worth, kind="stable")[:most]
        found_rows: list[dict[int, int]] = [{index: 1} for index in chosen.tolist()]
        found_rows.append({})  # the best of small sizes alone
        beside, spaces = np.append(beside[chosen], -1), np.append(spaces[chosen], self.capacity)
        for row, other in zip(found_rows, beside.tolist(), strict=True):
            if other >= 0:
                row[other] = row.get(other, 0) + 1
        spaces = spaces - np.where(beside >= 0, self.sizes[beside], 0)
        for index in range(small - 1, -1, -1):
            number = self._held[index][spaces].astype(np.int64)
            if number.any():
                for lane in np.flatnonzero(number).tolist():
                    found_rows[lane][index] = found_rows[lane].get(index, 0) + int(number[lane])
                spaces = spaces - number * self.sizes[index]
        work.left -= 2 * _OPERATION * small + 40 * len(found_rows)
        return [self._fitting(one) for one in found_rows if one]

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
