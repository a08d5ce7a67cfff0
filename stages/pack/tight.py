"""Rows of strategy `tight`: those of best-fit-decreasing, or fewer where filling one row after another needs fewer.

The largest size left opens a row. It takes the largest size that fits, until a pair fills the rest exactly. Sets of
sizes are bits of Python integers, so such a pair is found with one shift and one AND.

With `max_docs`, tokens and pieces have to be balanced: if the first rows take few short pieces, the last ones hold
`max_docs` of them and are nearly empty. So rows take short pieces first where many are left for each row.

Legend: `N` pieces, `R` rows, `C` capacity.
"""

from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...schemas.fingerprint import mix64
from ...schemas.ragged import offsets_of
from .best_fit import Placement, best_fit_decreasing, descending
from .bounds import bound_of_whole_pieces

Pattern: TypeAlias = tuple[dict[int, int], int]
"""What some rows hold: how many of each size, and the number of such rows."""
_FEW, _UNITS, _FEW_UNITS = 200_000, 1 << 17, 1 << 12
"""Sizes are rounded up to at most so many units, and of more than `_FEW` pieces to the fewer, so that enough of them
are alike: filling takes about a second at most."""
_ATTEMPTS, _ATTEMPTED, _OTHER = 24, 4800, 24
"""While the bound is not reached, few pieces are filled up to so many times more, of so many pieces in all; one in so
many pieces is then drawn in place of the best. It takes 0.05 s for 200 pieces, and saves the row that is too many in
about a fifth of 98 made sets of 200 that have one. For 2,000 pieces it found nothing."""
_PERCENT = 90
"""Rows take short pieces first where the pieces left are more than this share of `max_docs` for each row that their
tokens would fill."""


def tight_rows(
    sizes: NDArray[np.integer],
    counts: NDArray[np.int64],
    max_docs: int | None = None,
    most: NDArray[np.int64] | None = None,
    rows_apart: int | None = None,
) -> Placement:
    """Pack `sizes` into rows of capacity `C`: never more rows than `best_fit_decreasing` with the same `most`.

    Args:
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) how many pieces have each size.
        max_docs: the most pieces in a row.
        most: (C + 1,) how many of each size a row may take; None for no limit.
        rows_apart: about how many rows keep to `most`; what is left then fills rows without that limit. None: all.
    """
    placement = best_fit_decreasing(sizes, counts, max_docs, most)
    least, capacity = len(placement.row_offsets) - 1, len(counts) - 1
    if least <= bound_of_whole_pieces(counts, max_docs) or (max_docs is not None and max_docs < 3):
        return placement  # it has the fewest rows; those of up to two pieces always are
    unit = 1 + (capacity - 1) // (_UNITS if len(sizes) <= _FEW else _FEW_UNITS)
    units = capacity // unit
    rounded = np.minimum((sizes - 1) // unit + 1, units)  # one that fills more than all whole units is alone in its row
    limits = None
    if most is not None:
        limits = np.full(units + 1, len(sizes))
        np.minimum.at(limits, rounded, most[sizes])
    stock_of = np.bincount(rounded, minlength=units + 1)
    patterns = _filled(stock_of, max_docs or len(sizes), limits, rows_apart)
    fewest, bound = min(least, _rows_of(patterns)), bound_of_whole_pieces(counts, max_docs)
    for attempt in range(min(_ATTEMPTS, _ATTEMPTED // len(sizes)) if most is None else 0):
        if fewest <= bound:
            break
        tried = _filled(stock_of, max_docs or len(sizes), chance=_numbers(attempt))
        if _rows_of(tried) < fewest:
            patterns, fewest = tried, _rows_of(tried)
    if _rows_of(patterns) >= least:
        return placement
    flat: list[int] = []
    numbers: list[int] = []
    for held, times in patterns:
        row = [size for size in sorted(held, reverse=True) for _ in range(held[size])]
        flat += row * times
        numbers += [len(row)] * times
    # The k-th largest place takes the k-th largest piece: pieces of one size in the order of their indices.
    order = np.empty(len(sizes), dtype=np.int64)
    order[np.argsort(-np.array(flat, dtype=np.int64), kind="stable")] = descending(sizes, capacity)
    return Placement(order, offsets_of(numbers))


def _rows_of(patterns: list[Pattern]) -> int:
    return sum(times for _, times in patterns)


def _numbers(seed: int) -> Iterator[int]:
    """Numbers that look random and depend on the seed alone."""
    for begin in count(0, 1024):
        yield from mix64(np.arange(begin, begin + 1024, dtype=np.uint64), seed).tolist()


class _Stock:
    """The sizes left: counts, and as two sets of bits, bit s and bit C - s for each size s."""

    __slots__ = ("_mirrored", "capacity", "counts", "most", "present")

    def __init__(self, counts: NDArray[np.int64], most: NDArray[np.int64] | None = None) -> None:
        """
        Args:
            counts: (C + 1,) how many pieces have each size; none of size 0.
            most: (C + 1,) how many of each size a row may take; None for no limit.
        """
        self.most = most.tolist() if most is not None else None
        self.capacity = len(counts) - 1
        self.counts = {size: int(counts[size]) for size in np.flatnonzero(counts).tolist()}
        self.present, self._mirrored = (
            int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")
            for flags in (counts > 0, counts[::-1] > 0)
        )

    def take(self, size: int, number: int = 1) -> None:
        self.counts[size] -= number
        if not self.counts[size]:
            self.flip(size)

    def flip(self, size: int) -> None:
        """Hide a size that is left, or show it again."""
        self.present ^= 1 << size
        self._mirrored ^= 1 << (self.capacity - size)

    def allows(self, size: int, held: dict[int, int], number: int) -> bool:
        """Whether a row that holds some sizes may take so many more of one."""
        return self.most is None or held.get(size, 0) + number <= self.most[size]

    def pair(self, space: int, held: dict[int, int]) -> int:
        """The larger size of the pair that fills `space` exactly with sizes nearest to each other, or 0.

        Args:
            held: what the row holds.
        """
        half = (space + 1) // 2
        both = (self.present & (self._mirrored >> (self.capacity - space))) >> half
        if not space & 1 and both & 1 and (self.counts[half] < 2 or not self.allows(half, held, 2)):
            both ^= 1
        return half + (both & -both).bit_length() - 1 if both else 0

    def again(self, held: dict[int, int], most: int) -> int:
        """Take what a row holds as often as there is enough of it, at most so often; return how often."""
        times = min(most, *(self.counts[size] // number for size, number in held.items()))
        if times:
            for size, number in held.items():
                self.take(size, number * times)
        return times


def _filled(
    counts: NDArray[np.int64],
    max_docs: int,
    most: NDArray[np.int64] | None = None,
    rows_apart: int | None = None,
    chance: Iterator[int] | None = None,
) -> list[Pattern]:
    """Fill one row after another.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
        max_docs: the most pieces of a row, at least 3.
        most: (C + 1,) how many of each size a row may take; None for no limit.
        rows_apart: about how many rows keep to `most`; the last ones do not. None: all.
        chance: numbers by which rows sometimes take another size than the best.
    """
    stock = _Stock(counts, most)
    capacity = stock.capacity
    pieces, tokens = int(counts.sum()), int((counts * np.arange(capacity + 1)).sum())
    rows: list[Pattern] = []
    filled = 0
    while stock.present:
        if rows_apart is not None and filled >= rows_apart:
            stock.most = None
        largest = stock.present.bit_length() - 1
        stock.take(largest)
        held = {largest: 1}
        many = pieces * capacity * 100 > _PERCENT * max_docs * tokens
        _fill_row(stock, held, max_docs - 1, many=many, chance=chance)
        number, size = sum(held.values()), sum(one * times for one, times in held.items())
        times = 1 + stock.again(held, tokens // capacity // 64)  # not all alike at once, as tokens and pieces change
        pieces -= times * number
        tokens -= times * size
        filled += times
        rows.append((held, times))
    return rows


def _fill_row(
    stock: _Stock, held: dict[int, int], slots: int, *, many: bool, chance: Iterator[int] | None = None
) -> None:
    """Add the smallest sizes if there are many; then the largest, until a pair fills the rest.

    Args:
        held: the one size that the row holds.
        slots: pieces that it may still take.
        many: short pieces are to be used, so a pair comes before one size that fills the space.
    """
    space = stock.capacity - sum(held)
    limited = stock.most is not None
    full: list[int] = []  # sizes of which the row may take no more

    def hide_full(size: int) -> None:
        if stock.counts[size] and not stock.allows(size, held, 1):
            stock.flip(size)
            full.append(size)

    def add(size: int) -> None:
        nonlocal slots, space
        stock.take(size)
        held[size] = held.get(size, 0) + 1
        slots, space = slots - 1, space - size
        if limited:
            hide_full(size)

    if limited:
        hide_full(next(iter(held)))
    while many and slots > 2 and (left := stock.present) and (smallest := (left & -left).bit_length() - 1) <= space:
        add(smallest)
    while slots and space and (fits := stock.present & ((1 << (space + 1)) - 1)):
        largest = fits.bit_length() - 1
        if chance is not None and not next(chance) % _OTHER:
            below = fits & ((1 << (2 + next(chance) % space)) - 1)  # the sizes up to one that is drawn
            add((below or fits).bit_length() - 1)
            continue
        alone = slots == 1 or space >= slots * largest or (largest == space and not many)
        if not alone and (larger := stock.pair(space, held)):
            add(larger)
            add(space)
            break
        add(largest)
    for size in full:
        stock.flip(size)
