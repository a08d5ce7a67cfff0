"""Minimum bin slack by classes: rows that are filled as full as the sizes left allow, one row after another.

The largest size left opens a row, and the rest of the row is filled with a subset of the sizes left whose sum is as
near to the space as can be: looked for first among single sizes and pairs, then by dynamic programming over all sums.
Sizes are integers, so sets of sizes and of sums are bits of Python integers. A pattern that was found is used as often
as there are sizes for it.

Source: J. N. D. Gupta and J. C. Ho, A new heuristic algorithm for the one-dimensional bin-packing problem, 1999. Here a
search for one exact subset replaces their enumeration of all.

Legend: `C` capacity.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pattern = tuple[dict[int, int], int]
"""What some rows hold: size -> how many of it, and the number of such rows."""

_NEAR = 3
"""A row takes its largest sizes while its space is above this many of them; only the rest is searched for."""
_THIRDS = 16
"""Third sizes to try with a pair, before all sums are computed."""
_SUMS_WORK = 60_000
"""The most work of one search over all sums."""
_WORDS = 64
"""Machine words that are worked on in the time that it takes to begin an operation."""


@dataclass(slots=True)
class Work:
    """Work that may still be done, counted and not timed, so that a plan is the same on every machine.

    A unit is about 50 ns: one operation on an integer of few words.
    """

    left: int

    @contextmanager
    def share(self, share: float) -> Iterator[None]:
        """Keep the rest back while a share of the work may be done."""
        kept = max(0, int(self.left * (1 - share)))
        self.left -= kept
        yield
        self.left += kept


class Stock:
    """The sizes left, as counts and as two sets of bits: bit s, and bit C - s, for each size s."""

    __slots__ = ("capacity", "classes", "counts", "mirrored", "present", "unit")

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.capacity = len(counts) - 1
        there = counts > 0
        sizes = np.flatnonzero(there)
        self.counts: dict[int, int] = dict(zip(sizes.tolist(), counts[sizes].tolist(), strict=True))
        self.classes = len(sizes)
        self.present = _bits(there)
        self.mirrored = _bits(there[::-1])
        self.unit = 1 + (self.capacity >> 6) // _WORDS
        """Work of one operation on as many bits as the capacity."""

    def take(self, size: int, number: int = 1) -> None:
        left = self.counts[size] - number
        self.counts[size] = left
        if not left:
            self.present ^= 1 << size
            self.mirrored ^= 1 << (self.capacity - size)
            self.classes -= 1

    def put_back(self, size: int) -> None:
        if not self.counts[size]:
            self.present ^= 1 << size
            self.mirrored ^= 1 << (self.capacity - size)
            self.classes += 1
        self.counts[size] += 1

    def pair(self, space: int, apart: bool) -> int:
        """The larger size of a pair that fills `space` exactly, or 0. Of all such pairs the one whose sizes are nearest
        to each other, so that small ones are left for later; or, if `apart`, the one whose sizes differ most.
        """
        both = self.present & (self.mirrored >> (self.capacity - space))
        if not both:
            return 0
        half = (space + 1) // 2
        both >>= half
        if not space & 1 and both & 1 and self.counts[half] < 2:
            both ^= 1
        if not both:
            return 0
        return half + (both.bit_length() if apart else (both & -both).bit_length()) - 1


def _bits(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def minimum_bin_slack(counts: NDArray[np.int64], work: Work, *, apart: bool = False) -> list[Pattern]:
    """Fill rows with all sizes. When the work is used up, the rest of each row takes the largest sizes that fit.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
        apart: see `Stock.pair`.
    """
    stock = Stock(counts)
    rows: list[Pattern] = []
    while stock.present:
        largest = stock.present.bit_length() - 1
        stock.take(largest)
        held = {largest: 1}
        _fill(stock, stock.capacity - largest, held, work, apart)
        again = min(stock.counts[size] // number for size, number in held.items())
        if again:
            for size, number in held.items():
                stock.take(size, number * again)
        rows.append((held, again + 1))
    return rows


def _fill(stock: Stock, space: int, held: dict[int, int], work: Work, apart: bool) -> None:
    """Add sizes to a row with `space` left."""
    counts, unit = stock.counts, stock.unit

    def add(size: int, number: int = 1) -> None:
        held[size] = held.get(size, 0) + number
        stock.take(size, number)

    while space:
        work.left -= 4 + 8 * unit
        fits = stock.present & ((1 << (space + 1)) - 1)
        if not fits:
            return
        largest = fits.bit_length() - 1
        if largest == space:
            add(space)
            return
        many = space - _NEAR * largest
        if many > 0 or work.left <= 0:
            number = min(counts[largest], max(1, -(-many // largest)))
            add(largest, number)
            space -= number * largest
            continue
        if larger := stock.pair(space, apart):
            add(larger)
            add(space - larger)
            return
        if stock.classes > 400 and _triple(stock, space, fits, add, work, apart):
            return
        for size, number in _best_sum(stock, space, fits, work):
            add(size, number)
        return


def _triple(stock: Stock, space: int, fits: int, add: Callable[[int], None], work: Work, apart: bool) -> bool:
    """Fill `space` exactly with a size and a pair, if one of the largest sizes allows it."""
    for _ in range(_THIRDS):
        if not fits:
            return False
        third = fits.bit_length() - 1
        fits ^= 1 << third
        work.left -= 8 * stock.unit
        if space - third < 2:
            continue
        stock.take(third)
        larger = stock.pair(space - third, apart)
        stock.put_back(third)
        if larger:
            for size in (third, larger, space - third - larger):
                add(size)
            return True
    return False


def _best_sum(stock: Stock, space: int, fits: int, work: Work) -> list[tuple[int, int]]:
    """The sizes whose sum is the largest one up to `space`: (size, how many).

    Larger sizes are added to the sums first, and the search ends when `space` is reached, so small ones are left for
    later.
    """
    counts, unit = stock.counts, 1 + (space >> 6) // _WORDS
    sums, mask = 1, (1 << (space + 1)) - 1
    trace: list[tuple[int, int]] = []
    left, least = work.left, max(0, work.left - _SUMS_WORK)
    while fits:
        size = fits.bit_length() - 1
        fits ^= 1 << size
        before = more = sums
        number = counts[size]
        if number * size > space:
            number = space // size
        for _ in range(number):
            more = (more << size) & mask
            left -= 3 * unit
            if not more:
                break
            sums |= more
        left -= 2 * unit + 4
        if sums != before:
            trace.append((size, before))
        if left <= least or (sums >> space) & 1:
            break
    work.left = left
    reached = sums.bit_length() - 1
    found = []
    for size, before in reversed(trace):
        number = 0
        while not (before >> reached) & 1:
            reached -= size
            number += 1
        if number:
            found.append((size, number))
    return found


def fill_spaces(rows: list[Pattern], counts: NDArray[np.int64]) -> tuple[list[Pattern], NDArray[np.int64]]:
    """Put sizes into the space that rows have left, best fit, largest first; no row is opened.

    Args:
        counts: (C + 1,) the sizes to put.

    Returns:
        The rows, and (C + 1,) the sizes that fit nowhere.
    """
    capacity = len(counts) - 1
    groups: dict[int, list[Pattern]] = {}
    spaces = 0

    def keep(held: dict[int, int], number: int, space: int) -> None:
        nonlocal spaces
        groups.setdefault(space, []).append((held, number))
        spaces |= 1 << space

    for held, number in rows:
        keep(held, number, capacity - sum(size * many for size, many in held.items()))
    left = np.zeros_like(counts)
    present = np.flatnonzero(counts)[::-1]
    for size, todo in zip(present.tolist(), counts[present].tolist(), strict=True):
        while todo:
            fitting = spaces >> size
            if not fitting:
                left[size] = todo
                break
            space = size + (fitting & -fitting).bit_length() - 1
            held, number = groups[space].pop()
            if not groups[space]:
                del groups[space]
                spaces ^= 1 << space
            each = space // size
            full = min(number, todo // each)
            todo -= full * each
            if full:
                keep({**held, size: held.get(size, 0) + each}, full, space - each * size)
            if full < number and todo:
                keep({**held, size: held.get(size, 0) + todo}, 1, space - todo * size)
                full, todo = full + 1, 0
            if full < number:
                keep(held, number - full, space)
    return [pattern for space in sorted(groups) for pattern in groups[space]], left


def fill_rows(counts: NDArray[np.int64], floor: int, work: Work, apart: bool) -> list[Pattern]:
    """Fill rows with sizes of at least `floor`, then the space left with the others."""
    low = counts.copy()
    low[floor:] = 0
    rows = minimum_bin_slack(counts - low, work, apart=apart)
    if not low.any():
        return rows
    rows, left = fill_spaces(rows, low)
    return rows + minimum_bin_slack(left, work, apart=apart) if left.any() else rows
