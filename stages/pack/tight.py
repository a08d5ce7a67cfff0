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
_FEW_PIECES = 200_000
_UNITS_OF_FEW = 1 << 17
_UNITS_OF_MANY = 1 << 12
"""Sizes are rounded up to at most so many units, and of more than `_FEW_PIECES` to fewer, so that enough of them are
alike: filling takes about a second at most."""
_MAX_ATTEMPTS = 24
"""How often few pieces are filled again while the bound is not reached. It takes 0.05 s for 200 pieces, and saves the
row that is too many in about a fifth of 98 made sets of 200 that have one. For 2,000 pieces it found nothing."""
_ATTEMPTED_PIECES = 4800
"""Most pieces of all attempts together: 200 pieces are filled 24 times, 1,200 pieces 4 times, and 5,000 never again."""
_DRAWN_OF = 24
"""In such an attempt, about one in so many pieces is drawn in place of the best."""
_SHORT_FIRST_PERCENT = 90
"""Rows take short pieces first where the pieces left are more than this share of `max_docs` for each row that their
tokens would fill."""


def tight_rows(
    sizes: NDArray[np.integer],
    counts: NDArray[np.int64],
    max_docs: int | None = None,
    max_of_size: NDArray[np.int64] | None = None,
    rows_apart: int | None = None,
) -> Placement:
    """Pack `sizes` into rows of capacity `C`: never more rows than `best_fit_decreasing` with the same `max_of_size`.

    Args:
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) how many pieces have each size.
        max_docs: the most pieces in a row; None for no limit.
        max_of_size: (C + 1,) how many of each size a row may take; None for no limit.
        rows_apart: about how many rows keep to `max_of_size`; what is left then fills rows without that limit. None:
            all rows do.
    """
    placement = best_fit_decreasing(sizes, counts, max_docs, max_of_size)
    rows = len(placement.row_offsets) - 1
    capacity = len(counts) - 1
    bound = bound_of_whole_pieces(counts, max_docs)
    # Of rows of up to two pieces, best fit always needs the fewest.
    if rows <= bound or (max_docs is not None and max_docs < 3):
        return placement
    most_units = _UNITS_OF_FEW if len(sizes) <= _FEW_PIECES else _UNITS_OF_MANY
    unit = 1 + (capacity - 1) // most_units  # tokens
    units = capacity // unit
    # A size that fills more than all whole units is alone in its row: with C = 10 and a unit of 3, which are 3 units, a
    # size of 10 would round up to 4, and takes all 3.
    rounded = np.minimum((sizes - 1) // unit + 1, units)
    limits = None
    if max_of_size is not None:
        # Of the sizes that are rounded to one, the strictest limit holds.
        limits = np.full(units + 1, len(sizes))  # as many as there are pieces is no limit
        np.minimum.at(limits, rounded, max_of_size[sizes])
    counts_of_units = np.bincount(rounded, minlength=units + 1)
    most_in_row = max_docs or len(sizes)
    patterns = _filled(counts_of_units, most_in_row, limits, rows_apart)
    fewest = min(rows, _rows_of(patterns))
    attempts = 0
    if max_of_size is None:  # further attempts know no limits of sizes
        attempts = min(_MAX_ATTEMPTS, _ATTEMPTED_PIECES // len(sizes))
    for attempt in range(attempts):
        if fewest <= bound:
            break
        other_patterns = _filled(counts_of_units, most_in_row, chance=_numbers(attempt))
        if _rows_of(other_patterns) < fewest:
            patterns = other_patterns
            fewest = _rows_of(other_patterns)
    if _rows_of(patterns) >= rows:
        return placement
    return _placement_of(patterns, sizes, capacity)


def _placement_of(patterns: list[Pattern], sizes: NDArray[np.integer], capacity: int) -> Placement:
    """Put the pieces into the rows of some patterns.

    Args:
        patterns: what the rows hold, with sizes in units.
        sizes: (N,) of the pieces, in tokens.
    """
    place_sizes: list[int] = []
    pieces_of_rows: list[int] = []
    for held, times in patterns:
        row = [size for size in sorted(held, reverse=True) for _ in range(held[size])]
        place_sizes += row * times
        pieces_of_rows += [len(row)] * times
    # The k-th largest place takes the k-th largest piece, which fits: places are as large as the pieces rounded up, and
    # rounding keeps their order. Pieces of one size go in the order of their indices.
    order = np.empty(len(sizes), dtype=np.int64)
    order[np.argsort(-np.array(place_sizes, dtype=np.int64), kind="stable")] = descending(sizes, capacity)
    return Placement(order, offsets_of(pieces_of_rows))


def _rows_of(patterns: list[Pattern]) -> int:
    """How many rows have these patterns."""
    return sum(times for _, times in patterns)


def _numbers(seed: int) -> Iterator[int]:
    """Numbers that look random and depend on the seed alone."""
    for begin in count(0, 1024):
        yield from mix64(np.arange(begin, begin + 1024, dtype=np.uint64), seed).tolist()


def _as_bits(flags: NDArray[np.bool_]) -> int:
    """A number of which bit i is flag i."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


class _Stock:
    """The pieces left: how many there are of each size, and which sizes are left, as the bits of two numbers: a size s
    that is left is bit s of `present`, and bit C - s of `_mirrored`.
    """

    __slots__ = ("_mirrored", "capacity", "counts", "max_of_size", "present")

    def __init__(self, counts: NDArray[np.int64], max_of_size: NDArray[np.int64] | None = None) -> None:
        """
        Args:
            counts: (C + 1,) how many pieces have each size; none of size 0.
            max_of_size: (C + 1,) how many of each size a row may take; None for no limit.
        """
        self.max_of_size = max_of_size.tolist() if max_of_size is not None else None
        self.capacity = len(counts) - 1
        self.counts = {size: int(counts[size]) for size in np.flatnonzero(counts).tolist()}
        # With C = 5, the sizes 1 and 3 are the bits 1 and 3 of `present`, and 4 and 2 of the other.
        self.present = _as_bits(counts > 0)
        self._mirrored = _as_bits(counts[::-1] > 0)

    def take(self, size: int, number: int = 1) -> None:
        """Take so many pieces of a size."""
        self.counts[size] -= number
        if not self.counts[size]:
            self.flip(size)

    def flip(self, size: int) -> None:
        """Hide a size that is left, or show it again."""
        self.present ^= 1 << size
        self._mirrored ^= 1 << (self.capacity - size)

    def allows(self, size: int, held: dict[int, int], number: int) -> bool:
        """Whether a row that holds some sizes may take so many more of one."""
        return self.max_of_size is None or held.get(size, 0) + number <= self.max_of_size[size]

    def pair(self, space: int, held: dict[int, int]) -> int:
        """The larger size of the pair that fills `space` exactly with sizes nearest to each other, or 0.

        Args:
            held: what the row holds.
        """
        half = (space + 1) // 2
        # Shifted by C - space, `_mirrored` has bit i if the size space - i is left. So bit i of `pairs` says that
        # half + i and its partner are both left. In a space of 10, half is 5: bit 0 is 5 and 5, and bit 2 is 7 and 3.
        pairs = (self.present & (self._mirrored >> (self.capacity - space))) >> half
        if not space & 1 and pairs & 1 and (self.counts[half] < 2 or not self.allows(half, held, 2)):
            pairs ^= 1  # a size is its own partner only if two of it are left
        return half + (pairs & -pairs).bit_length() - 1 if pairs else 0

    def again(self, held: dict[int, int], most: int) -> int:
        """Take what a row holds as often as there is enough of it, at most `most` times; return how often."""
        times = min(most, *(self.counts[size] // number for size, number in held.items()))
        if times:
            for size, number in held.items():
                self.take(size, number * times)
        return times


def _filled(
    counts: NDArray[np.int64],
    max_docs: int,
    max_of_size: NDArray[np.int64] | None = None,
    rows_apart: int | None = None,
    chance: Iterator[int] | None = None,
) -> list[Pattern]:
    """Fill one row after another.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
        max_docs: the most pieces of a row, at least 3.
        max_of_size: (C + 1,) how many of each size a row may take; None for no limit.
        rows_apart: about how many rows keep to `max_of_size`; the last ones do not. None: all.
        chance: numbers by which rows sometimes take another size than the best; None: never.

    Returns:
        Patterns in the order of the rows; sizes are those of `counts`.
    """
    stock = _Stock(counts, max_of_size)
    capacity = stock.capacity
    pieces = int(counts.sum())
    tokens = int((counts * np.arange(capacity + 1)).sum())
    patterns: list[Pattern] = []
    filled = 0
    while stock.present:
        if rows_apart is not None and filled >= rows_apart:
            stock.max_of_size = None
        largest = stock.present.bit_length() - 1
        stock.take(largest)
        held = {largest: 1}
        # The tokens left fill tokens / capacity rows. Whether each of these has to take more than 90 % of `max_docs`
        # pieces, so that none is left:
        short_first = pieces * capacity * 100 > _SHORT_FIRST_PERCENT * max_docs * tokens
        _fill_row(stock, held, max_docs - 1, short_first=short_first, chance=chance)
        # Equal rows at once, which saves most of the time; but at most a 64th of the rows left, because `short_first`
        # has to be asked again as tokens and pieces change.
        times = 1 + stock.again(held, tokens // capacity // 64)
        pieces -= times * sum(held.values())
        tokens -= times * sum(size * number for size, number in held.items())
        filled += times
        patterns.append((held, times))
    return patterns


def _fill_row(
    stock: _Stock, held: dict[int, int], slots: int, *, short_first: bool, chance: Iterator[int] | None = None
) -> None:
    """Fill a row that holds one piece. It takes the smallest sizes if they come first, then the largest ones, until a
    pair fills the rest.

    Args:
        held: the one size that the row holds → 1; what it takes is added.
        slots: pieces that it may still take.
        short_first: short pieces are to be used, so a pair comes before one size that fills the space.
        chance: numbers by which the row sometimes takes another size than the best; None: never.
    """
    space = stock.capacity - sum(held)  # `held` has one key: the size of the one piece
    has_limits_of_sizes = stock.max_of_size is not None
    hidden: list[int] = []
    """Sizes of which the row may take no more by `max_of_size`; the stock hides them until the row is filled."""

    def hide_if_at_limit(size: int) -> None:
        """Hide a size if some of it is left, but none that this row may take."""
        if stock.counts[size] and not stock.allows(size, held, 1):
            stock.flip(size)
            hidden.append(size)

    def add(size: int) -> None:
        """Move one piece of a size from the stock into the row."""
        nonlocal slots, space
        stock.take(size)
        held[size] = held.get(size, 0) + 1
        slots -= 1
        space -= size
        if has_limits_of_sizes:
            hide_if_at_limit(size)

    if has_limits_of_sizes:
        hide_if_at_limit(next(iter(held)))
    while short_first and slots > 2 and stock.present:
        smallest = (stock.present & -stock.present).bit_length() - 1  # the lowest bit
        if smallest > space:
            break
        add(smallest)
    while slots and space:
        fitting = stock.present & ((1 << (space + 1)) - 1)  # the bits of the sizes up to the space
        if not fitting:
            break
        largest = fitting.bit_length() - 1
        if chance is not None and next(chance) % _DRAWN_OF == 0:  # about once in `_DRAWN_OF` times
            # The largest size up to one that is drawn from 1 to the space; or the largest, if all are larger.
            smaller = fitting & ((1 << (2 + next(chance) % space)) - 1)
            add((smaller or fitting).bit_length() - 1)
            continue
        # A pair is of no use for the last slot, where the largest sizes do not fill the space, or where one does.
        needs_no_pair = slots == 1 or space >= slots * largest or (largest == space and not short_first)
        larger = 0 if needs_no_pair else stock.pair(space, held)
        if larger:
            add(larger)
            add(space)  # what is left of the space: its partner
            break
        add(largest)
    for size in hidden:
        stock.flip(size)
