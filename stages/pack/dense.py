"""Rows filled as full as the sizes left allow, by minimum bin slack.

The largest size left opens a row, and a subset of the sizes left fills it as near to the brim as can be. Sets of sizes
and of sums are bits of Python integers, so a pair that fills a row is found with one shift and one AND. Small sizes are
kept back in some fillings, and put into the space that the others leave; the filling with the fewest rows is taken.

Legend: `N` pieces, `C` capacity.

Source: J. N. D. Gupta and J. C. Ho, A new heuristic algorithm for the one-dimensional bin-packing problem, 1999.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pattern: TypeAlias = tuple[dict[int, int], int]
"""What some rows hold: how many of each size, and the number of such rows."""

_FLOORS = (0.0, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 8, 1 / 12)
"""Sizes below this share of the capacity are kept back, filling by filling."""
NEAR = 3
"""A row takes its largest sizes while its space is above this many of them; only the rest is searched for."""
_ONE_SEARCH = 60_000
"""The most work of one search for sums."""


@dataclass(slots=True)
class Work:
    """Work that may still be done, counted and not timed, so that a plan is the same on every machine."""

    left: int


class Stock:
    """The sizes left: counts, and as two sets of bits, bit s and bit C - s for each size s."""

    __slots__ = ("_mirrored", "capacity", "counts", "present")

    def __init__(self, counts: NDArray[np.int64]) -> None:
        """Args: counts: (C + 1,) how many pieces have each size; none of size 0."""
        self.capacity = len(counts) - 1
        self.counts = {size: int(counts[size]) for size in np.flatnonzero(counts).tolist()}
        self.present = _bits(counts > 0)
        self._mirrored = _bits(counts[::-1] > 0)

    def take(self, size: int, number: int = 1) -> None:
        self.counts[size] -= number
        if not self.counts[size]:
            self.present ^= 1 << size
            self._mirrored ^= 1 << (self.capacity - size)

    def pair(self, space: int) -> int:
        """The larger size of the pair that fills `space` exactly with sizes nearest to each other, or 0."""
        half = (space + 1) // 2
        both = (self.present & (self._mirrored >> (self.capacity - space))) >> half
        if not space & 1 and both & 1 and self.counts[half] < 2:
            both ^= 1
        return half + (both & -both).bit_length() - 1 if both else 0

    def again(self, held: dict[int, int], most: int) -> int:
        """Take what a row holds as often as there is enough of it, at most so often; return how often."""
        times = min(most, *(self.counts[size] // number for size, number in held.items()))
        if times:
            for size, number in held.items():
                self.take(size, number * times)
        return times


def _bits(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def fillings(counts: NDArray[np.int64], work: Work) -> Iterator[list[Pattern]]:
    """Yield several ways to put all pieces into rows, until the work is done.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
    """
    for floor in _FLOORS:
        if work.left <= 0:
            return
        low = counts.copy()
        low[max(1, int(floor * (len(counts) - 1))) :] = 0
        rows, over = _topped_up(_filled(counts - low, work), low)
        yield rows + _filled(over, work)


def _filled(counts: NDArray[np.int64], work: Work) -> list[Pattern]:
    """Fill one row after another; without work left, each with the largest sizes that fit."""
    stock = Stock(counts)
    pieces = int(counts.sum())
    rows: list[Pattern] = []
    while stock.present:
        largest = stock.present.bit_length() - 1
        stock.take(largest)
        held = {largest: 1}
        _fill_row(stock, stock.capacity - largest, held, work)
        work.left -= 24 + (stock.capacity >> 9)
        rows.append((held, 1 + stock.again(held, pieces)))
    return rows


def _fill_row(stock: Stock, space: int, held: dict[int, int], work: Work) -> None:
    """Add sizes to a row with `space` left: the largest while there is much space, then what fills the rest best."""
    while space and (fits := stock.present & ((1 << (space + 1)) - 1)):
        largest = fits.bit_length() - 1
        work.left -= 16 + (stock.capacity >> 9)
        beyond = space - NEAR * largest
        last = False
        if largest == space or beyond > 0 or work.left <= 0:
            chosen = [(largest, min(stock.counts[largest], max(1, -(-beyond // largest))))]
        elif larger := stock.pair(space):
            chosen = [(larger, 1), (space - larger, 1)]
        else:
            chosen, last = _best_sum(stock, space, fits, work), True
        for size, number in chosen:
            held[size] = held.get(size, 0) + number
            stock.take(size, number)
            space -= size * number
        if last:
            return


def _best_sum(stock: Stock, space: int, fits: int, work: Work) -> list[tuple[int, int]]:
    """The sizes, and how many of each, whose sum is the largest up to `space`. Larger sizes come first.

    Args:
        fits: the sizes that fit, as bits.
    """
    sums, mask, words, least = 1, (1 << (space + 1)) - 1, 1 + (space >> 12), work.left - _ONE_SEARCH
    before_size: list[tuple[int, int]] = []
    while fits and work.left > least and not sums >> space & 1:
        size = fits.bit_length() - 1
        fits ^= 1 << size
        before = more = sums
        for _ in range(min(stock.counts[size], space // size)):
            more = (more << size) & mask
            sums |= more
            work.left -= 3 * words
        work.left -= 4
        if sums != before:
            before_size.append((size, before))
    reached = sums.bit_length() - 1
    found = []
    for size, before in reversed(before_size):
        number = 0
        while not before >> reached & 1:
            reached, number = reached - size, number + 1
        if number:
            found.append((size, number))
    return found


def _topped_up(rows: list[Pattern], low: NDArray[np.int64]) -> tuple[list[Pattern], NDArray[np.int64]]:
    """Put small sizes into the space that rows have left, best fit.

    Args:
        low: (C + 1,) how many of each small size there are.

    Returns:
        The rows, and (C + 1,) what fits into none.
    """
    capacity = len(low) - 1
    over = np.zeros_like(low)
    groups: dict[int, list[Pattern]] = {}
    spaces = 0
    if not low.any():
        return rows, over
    for held, times in rows:
        space = capacity - sum(size * number for size, number in held.items())
        groups.setdefault(space, []).append((held, times))
        spaces |= 1 << space
    for size in np.flatnonzero(low)[::-1].tolist():
        todo = int(low[size])
        while todo:
            fits = spaces >> size
            if not fits:
                over[size] = todo
                break
            space = size + (fits & -fits).bit_length() - 1
            held, times = groups[space].pop()
            if not groups[space]:
                del groups[space]
                spaces ^= 1 << space
            each = min(space // size, todo)
            full = min(times, todo // each)
            todo -= full * each
            more = {**held, size: held.get(size, 0) + each}
            for pattern, number, left in ((held, times - full, space), (more, full, space - each * size)):
                if number:
                    groups.setdefault(left, []).append((pattern, number))
                    spaces |= 1 << left
    return [pattern for group in groups.values() for pattern in group], over
