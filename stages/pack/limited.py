"""Rows of at most `max_docs` pieces: cardinality-constrained bin packing, which best-fit-decreasing does badly.

Tokens and pieces have to be balanced: if the first rows take few short pieces, the last ones hold `max_docs` of them
and are nearly empty. So rows are either opened at once and filled evenly, or filled one after another, with short
pieces first where many pieces are left for each row.

Legend: `N` pieces, `C` capacity, `K` the most pieces of a row.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from .bin_slack import Pattern, Stock, Work

_NEAR = 3
"""A row takes its largest sizes while its space is above this many of them; only the rest is searched for."""
_SHORT = 4
"""A pair may leave less than this of a row empty."""
_THRESHOLDS = 400
_ROW_WORK = 40
"""Work of filling a row, beside that of its bits and its pieces."""


def limited_bound(counts: NDArray[np.int64], max_docs: int) -> int:
    """Return a lower bound on rows from the number of pieces.

    Pieces below a threshold t count nothing. A piece above C / 2 shares its row with at most ⌊(C - size) / t⌋ others,
    and with none above C / 2. So each piece up to C / 2 is worth 1 / K, and a larger one 1 less what may be beside it:
    no row is worth more than 1. For t = 1 and short pieces that gives ⌈N / K⌉.
    """
    capacity = len(counts) - 1
    if max_docs == 2:
        return _rows_of_pairs(counts)
    sizes = np.flatnonzero(counts)
    numbers = counts[sizes]
    large = 2 * sizes > capacity
    middle = sizes[~large]
    at_least = np.cumsum(numbers[~large][::-1])[::-1]
    best = 0
    for index in range(0, max(1, len(middle)), max(1, len(middle) // _THRESHOLDS)):
        threshold = int(middle[index]) if len(middle) else capacity
        beside = np.minimum(max_docs - 1, (capacity - sizes[large]) // threshold)
        worth = int((numbers[large] * (max_docs - beside)).sum()) + (int(at_least[index]) if len(middle) else 0)
        best = max(best, -(-worth // max_docs))
    return best


def _rows_of_pairs(counts: NDArray[np.int64]) -> int:
    """The fewest rows of at most two pieces: the longest left takes the shortest left, if they fit."""
    return len(fill_pairs(np.repeat(np.arange(len(counts)), counts)[::-1], len(counts) - 1)[1]) - 1


def fill_pairs(sizes: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of at most two pieces, as few as possible.

    A piece that does not fit beside the shortest one left fits beside none. Otherwise some optimum pairs these two:
    those that it has beside them fit beside each other.

    Args:
        sizes: (N,) largest first.

    Returns:
        (N,) sizes row by row, and (R + 1,) where each row begins.
    """
    listed = sizes.tolist()
    flat: list[int] = []
    offsets = [0]
    first, last = 0, len(listed) - 1
    while first <= last:
        flat.append(listed[first])
        if first < last and listed[first] + listed[last] <= capacity:
            flat.append(listed[last])
            last -= 1
        first += 1
        offsets.append(len(flat))
    return np.array(flat, dtype=np.int64), np.array(offsets, dtype=np.int64)


def spread(sizes: NDArray[np.int64], capacity: int, max_docs: int, rows: int) -> tuple[NDArray[np.int64], int]:
    """Put each piece, largest first, into the emptiest row that has room for one more; open a row if it has none.

    Longest-processing-time scheduling (Graham, 1969) with a limit on jobs. With no rows to begin with it is the plain
    greedy.

    Args:
        sizes: (N,) largest first.
        rows: rows that are open from the start.

    Returns:
        (N,) the row of each piece, and the number of rows.
    """
    held = [(0, row, 0) for row in range(rows)]  # (tokens, row, pieces) of the rows that may take more
    places = []
    for size in sizes.tolist():
        if held and held[0][0] + size <= capacity:
            tokens, row, number = held[0]
            if number + 1 < max_docs:
                heapq.heapreplace(held, (tokens + size, row, number + 1))
            else:
                heapq.heappop(held)
        else:
            row, rows = rows, rows + 1
            if max_docs > 1:
                heapq.heappush(held, (size, row, 1))
        places.append(row)
    return np.array(places, dtype=np.int64), rows


def spread_and_pair(
    sizes: NDArray[np.int64], capacity: int, max_docs: int, rows: int, work: Work
) -> tuple[list[Pattern], NDArray[np.int64]]:
    """Spread all pieces but two a row, taken evenly from all sizes, then fill each row with a pair of these.

    Args:
        sizes: (N,) largest first.
        max_docs: at least 3.
        rows: rows to fill.

    Returns:
        The rows, which may be more, and (C + 1,) the pieces left.
    """
    kept = np.unique((np.arange(2 * rows) * 2 + 1) * len(sizes) // (4 * rows))
    rest = np.delete(sizes, kept)
    work.left -= 20 * len(rest)
    places, number = spread(rest, capacity, max_docs - 2, rows)
    stock = Stock(np.bincount(sizes[kept], minlength=capacity + 1))
    held: list[dict[int, int]] = [{} for _ in range(number)]
    for size, place in zip(rest.tolist(), places.tolist(), strict=True):
        held[place][size] = held[place].get(size, 0) + 1
    out: list[Pattern] = []
    for one in held:
        space = capacity - sum(size * many for size, many in one.items())
        row = _Row(stock, space, max_docs - sum(one.values()), one)
        row.fill(False, True)
        work.left -= row.work
        if one:
            out.append((one, 1))
    left = np.zeros(capacity + 1, dtype=np.int64)
    left[list(stock.counts)] = list(stock.counts.values())
    return out, left


def fill_limited(
    counts: NDArray[np.int64],
    max_docs: int,
    worth: tuple[NDArray[np.int64], int],
    percent: int,
    work: Work,
    *,
    apart: bool = False,
) -> list[Pattern]:
    """Fill one row after another: the largest size left, short ones if many are left, and a pair that fills the rest.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
        max_docs: the most pieces of a row, at least 3.
        worth: (C + 1,) what a piece of each size is worth, and a full row (`dual_bounds.DualBound`): the pieces left
            need about as many rows as they are worth.
        percent: rows take short pieces first where the pieces left are more than this share of `max_docs` a row.
        apart: see `Stock.pair`.
    """
    stock = Stock(counts)
    values, full = worth
    pieces = int(counts.sum())
    value = int((counts * values).sum())
    rows: list[Pattern] = []
    while stock.present:
        largest = stock.present.bit_length() - 1
        stock.take(largest)
        row = _Row(stock, stock.capacity - largest, max_docs - 1, {largest: 1})
        many = pieces * full * 100 > percent * max_docs * value
        if many:
            row.add_smallest()
        row.fill(apart, many)
        work.left -= row.work
        held = row.held
        again = min(stock.counts[size] // number for size, number in held.items())
        again = min(again, max(1, value // full) // 64)
        if again:
            for size, number in held.items():
                stock.take(size, number * again)
        pieces -= (again + 1) * sum(held.values())
        value -= (again + 1) * sum(int(values[size]) * number for size, number in held.items())
        rows.append((held, again + 1))
    return rows


class _Row:
    """A row that is being filled."""

    __slots__ = ("held", "slots", "space", "stock")

    def __init__(self, stock: Stock, space: int, slots: int, held: dict[int, int]) -> None:
        self.stock = stock
        self.space = space
        self.slots = slots
        self.held = held

    @property
    def work(self) -> int:
        """What filling it took, in the units of `Work`."""
        return _ROW_WORK + self.stock.unit * (20 + 4 * sum(self.held.values()))

    def add(self, size: int) -> None:
        self.stock.take(size)
        self.held[size] = self.held.get(size, 0) + 1
        self.space -= size
        self.slots -= 1

    def add_smallest(self) -> None:
        """Add the smallest sizes, and leave two slots for a pair."""
        while self.slots > 2 and (left := self.stock.present):
            smallest = (left & -left).bit_length() - 1
            if smallest > self.space:
                return
            self.add(smallest)

    def fill(self, apart: bool, many: bool) -> None:
        """Add the largest sizes while there is much space or few slots, then a pair that leaves nearly none.

        Args:
            many: a pair comes before one size that fills the space, so that all slots are used.
        """
        stock = self.stock
        while self.slots and self.space:
            fits = stock.present & ((1 << (self.space + 1)) - 1)
            if not fits:
                return
            largest = fits.bit_length() - 1
            alone = self.slots == 1 or self.space >= self.slots * largest or (largest == self.space and not many)
            if not alone and (self.slots <= 3 or self.space <= _NEAR * largest):
                for target in range(self.space, max(1, self.space - _SHORT), -1):
                    if larger := stock.pair(target, apart):
                        self.add(larger)
                        self.add(target - larger)
                        return
            self.add(largest)
