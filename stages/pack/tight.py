"""Rows that are better than those of best-fit-decreasing where better ones are found, and never worse.

Best-fit-decreasing first; if a lower bound does not prove its rows, other ways to fill rows are tried, and the least
rows win. The search counts its work and stops at once where the bound is reached, so its result depends on the sizes
alone.

Legend: `N` pieces, `R` rows, `C` capacity.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges, sums_of
from ...schemas.splitmix import GOLDEN, mix
from .best_fit import Placement, best_fit_decreasing, descending
from .bin_slack import Pattern, Work, fill_spaces, minimum_bin_slack
from .dual_bounds import DualBound, dual_bound
from .limited import fill_limited, fill_pairs, limited_bound, spread

WORK = 6_000_000
"""Work of the search, in the units of `Work`: half a second to a second."""
_PIECE_WORK = 16
"""Work that each piece adds, so that large plans are improved as well."""
_BEGIN_WORK, _BEGIN_PIECES, _BEGIN_UNITS = 6, 200_000, 32
"""Work that each of so many pieces adds for the first step, times the capacity over 4,096: it fills nearly all rows.
Above 131,072 tokens it is no more, because it would take minutes for rows of 2**24, where exact fits are rare.
"""
_SHARE = 6
"""A step fills again as many rows as this share of the work suffices for: 1 / 6."""
_FLOORS = (0.0, 1 / 3, 0.29, 0.25, 0.22, 0.2, 1 / 6, 1 / 7, 1 / 8, 0.1, 1 / 12, 1 / 16)
"""Sizes below this share of the capacity are left for the space that the others leave."""
_PRESSURES = (90, 80, 70, 100, 60)
"""See `limited.fill_limited`."""
_UNITS = 4096
"""Capacity, in rounded units, in which very many pieces are put into rows of at most `max_docs`."""
_FEW, _MANY = 12, 400
"""Rows to fill again in one step of the local search."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The sizes in each row: row r holds `sizes[offsets[r]:offsets[r + 1]]`."""

    sizes: NDArray[np.int64]
    """(N,)"""
    offsets: NDArray[np.int64]
    """(R + 1,)"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def taken(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sizes in some rows, row by row."""
        return self.sizes[ranges(self.offsets[rows], np.diff(self.offsets)[rows])]

    def replaced(self, rows: NDArray[np.int64], patterns: list[Pattern]) -> "_Rows":
        """All other rows, then those of the patterns."""
        keep = np.ones(len(self), dtype=np.bool_)
        keep[rows] = False
        others = np.flatnonzero(keep)
        flat = [size for held, number in patterns for size in _listed(held) * number]
        each = [sum(held.values()) for held, _ in patterns]
        numbers = np.repeat(each, [number for _, number in patterns])
        sizes = np.concatenate([self.taken(others), np.array(flat, dtype=np.int64)])
        return _Rows(sizes, offsets_of(np.concatenate([np.diff(self.offsets)[others], numbers])))


def _listed(held: dict[int, int]) -> list[int]:
    return [size for size in sorted(held, reverse=True) for _ in range(held[size])]


def tight_rows(
    sizes: NDArray[np.integer], counts: NDArray[np.int64], max_docs: int | None = None, work: int | None = None
) -> tuple[Placement, DualBound]:
    """Pack `sizes` into rows of capacity `C`.

    Args:
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) how many sequences have each size.
        max_docs: maximum number of pieces in a row.
        work: the most work of the search; None: `WORK`, and more for many pieces.
    """
    placement = best_fit_decreasing(sizes, counts, max_docs)
    first = _Rows(sizes[placement.order].astype(np.int64), placement.row_offsets)
    bound = dual_bound(counts, len(first))
    begin = 0
    if work is None:
        begin = _BEGIN_WORK * min(len(sizes), _BEGIN_PIECES) * min(len(counts) >> 12, _BEGIN_UNITS)
    limit = Work(WORK + _PIECE_WORK * len(sizes) if work is None else work)
    if max_docs is not None:
        by_number = limited_bound(counts, max_docs) if bound.rows < len(first) else 0
        valued, bound = bound, bound if bound.rows >= by_number else replace(bound, rows=by_number, bound_by="max_docs")
    if bound.rows >= len(first):
        return placement, bound
    if max_docs is None:
        best = _search(first, bound, len(counts) - 1, limit, begin)
    else:
        best = _limited(first, counts, max_docs, bound.rows, valued, limit)
    if len(best) == len(first):
        return placement, bound
    # The k-th largest place takes the k-th largest piece: pieces of one size in the order of their indices.
    order = np.empty(len(sizes), dtype=np.int64)
    order[descending(best.sizes, counts)] = descending(sizes, counts)
    return Placement(order, best.offsets, placement.moves), bound


def _search(rows: _Rows, bound: DualBound, capacity: int, work: Work, begin: int = 0) -> _Rows:
    """Fill rows again, those that waste most first, while that needs no more rows.

    Args:
        begin: work that only the first step may do.
    """
    best = rows
    share, each = work.left // _SHARE, 30 + 16 * (1 + (capacity >> 12))
    rest = work.left
    work.left += begin
    for step, (floor, apart, chosen) in enumerate(_steps(work, capacity)):
        waste = bound.full - sums_of(bound.values[best.sizes], best.offsets)
        index = _chosen(waste, chosen, step, max(_FEW, (share if step else share + begin) // each))
        counts = np.bincount(best.taken(index), minlength=capacity + 1)
        work.left -= len(best.sizes) // 4 + len(best) // 4 + capacity // 100 + 1500
        patterns = _filled(counts, max(1, int(floor * capacity)), work, apart)
        number = sum(many for _, many in patterns)
        if number < len(index) or (chosen < 1 and number == len(index)):
            best = best.replaced(index, patterns)
        if len(best) <= bound.rows:
            break
        work.left = min(work.left, rest)
    return best


def _steps(work: Work, capacity: int) -> Iterator[tuple[float, bool, float]]:
    """Yield (floor, apart, share of the rows to fill again) until the work is done."""
    for floor in _FLOORS:
        if work.left <= 0:
            return
        yield floor, False, 1.0
    step = 0
    while work.left > 0:
        random = int(mix(np.array([step + 1], dtype=np.uint64) * GOLDEN)[0])
        yield _FLOORS[random % len(_FLOORS)], bool(random >> 20 & 1), 1 / (2 << (random >> 40) % 4)
        step += 1


def _chosen(waste: NDArray[np.int64], share: float, step: int, most: int) -> NDArray[np.int64]:
    """Rows to fill again: those of the greatest waste; in the local search as many others, chosen by a hash."""
    order = np.lexsort((-np.arange(len(waste)), -waste))
    if share == 1:
        return order[:most]
    number = min(most, _MANY, max(_FEW, int(share * len(waste))), len(waste))
    others = order[number // 2 :]
    keys = mix((others.astype(np.uint64) << np.uint64(32)) + np.uint64(step + 1))
    return np.concatenate([order[: number // 2], others[np.argsort(keys, kind="stable")[: number - number // 2]]])


def _filled(counts: NDArray[np.int64], floor: int, work: Work, apart: bool) -> list[Pattern]:
    """Fill rows with sizes of at least `floor`, then the space left with the others."""
    low = counts.copy()
    low[floor:] = 0
    rows = minimum_bin_slack(counts - low, work, apart=apart)
    if not low.any():
        return rows
    rows, left = fill_spaces(rows, low)
    return rows + minimum_bin_slack(left, work, apart=apart) if left.any() else rows


def _limited(
    rows: _Rows, counts: NDArray[np.int64], max_docs: int, enough: int, valued: DualBound, work: Work
) -> _Rows:
    """The fewest rows of at most `max_docs` pieces that are found, `rows` among them; always those of the plain greedy.

    Args:
        enough: the search ends with so few rows.
        valued: the bound from sizes alone.
    """
    sizes = np.sort(rows.sizes)[::-1]
    best = rows
    for found in _limited_ways(sizes, counts, max_docs, enough, valued, work):
        if len(found) < len(best):
            best = found
        if len(best) <= enough:
            break
    return best


def _limited_ways(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], max_docs: int, enough: int, valued: DualBound, work: Work
) -> Iterator[_Rows]:
    """Yield plans until the work is done. Args as for `_limited`; sizes: (N,) largest first."""
    capacity = len(counts) - 1
    if max_docs == 2:
        yield _Rows(*fill_pairs(sizes, capacity))
        return
    yield _spread(sizes, capacity, max_docs, 0, work)
    if max_docs == 1:
        return
    # Where rows hold few pieces anyway, the limit may not matter.
    if 10 * len(sizes) < 7 * max_docs * valued.rows:
        placement = best_fit_decreasing(sizes, counts)
        free = _Rows(sizes[placement.order], placement.row_offsets)
        share = Work(work.left // 3)
        free = _search(free, valued, capacity, share)
        work.left -= work.left // 3 - max(0, share.left)
        yield from _shortened(free, max_docs, capacity, valued, work)
    # In rounded units where there are very many pieces: more are alike, and fewer sums have to be told apart.
    unit = 1 + (capacity - 1) // _UNITS if len(sizes) * (1 + (capacity >> 12)) > work.left // 100 else 1
    units = capacity // unit
    rounded = np.minimum((sizes - 1) // unit + 1, units)  # one that fills more than all whole units is alone in its row
    alike = np.bincount(rounded, minlength=units + 1)
    worth = np.zeros(len(alike), dtype=np.int64)
    np.maximum.at(worth, rounded, valued.values[sizes])
    for apart in (False, True):
        for percent in _PRESSURES:
            if work.left <= 0:
                return
            patterns = fill_limited(alike, max_docs, (worth, valued.full), percent, work, apart=apart)
            found = _Rows(sizes[:0], np.zeros(1, dtype=np.int64)).replaced(np.arange(0), patterns)
            exact = np.empty_like(sizes)
            exact[descending(found.sizes, alike)] = sizes
            yield _Rows(exact, found.offsets)
            more = 5 * _PRESSURES.index(percent)
            if not apart and work.left > 0:
                yield _spread(sizes, capacity, max_docs, enough + enough * more // 1000, work)


def _shortened(rows: _Rows, max_docs: int, capacity: int, valued: DualBound, work: Work) -> Iterator[_Rows]:
    """Yield the rows, if none has too many pieces; else fill those that have again, with others that waste much."""
    pieces = np.diff(rows.offsets)
    over = int(np.count_nonzero(pieces > max_docs))
    if not over:
        yield rows
        return
    waste = valued.full - sums_of(valued.values[rows.sizes], rows.offsets)
    order = np.lexsort((-waste, pieces <= max_docs))
    for share in (2, 4, 8):
        index = order[: share * over]
        counts = np.bincount(rows.taken(index), minlength=capacity + 1)
        for percent in _PRESSURES:
            patterns = fill_limited(counts, max_docs, (valued.values, valued.full), percent, work)
            yield rows.replaced(index, patterns)
            if work.left <= 0:
                return


def _spread(sizes: NDArray[np.int64], capacity: int, max_docs: int, rows: int, work: Work) -> _Rows:
    work.left -= 20 * len(sizes)
    places, number = spread(sizes, capacity, max_docs, rows)
    order = np.argsort(places, kind="stable")
    held = np.bincount(places, minlength=number)
    return _Rows(sizes[order], offsets_of(held[held > 0]))
