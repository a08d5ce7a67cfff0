"""Rows that are better than those of best-fit-decreasing where better ones are found, and never worse.

Best-fit-decreasing first; if a lower bound does not prove its rows, rows that some optimum has are taken, other ways to
fill rows are tried, then column generation for both rows and bound, and the least rows win. Where best-fit-decreasing
is far from the bound, column generation of rounded sizes comes before that. The search counts its work and stops at
once where the bound is reached, so its result depends on the sizes alone.

Legend: `N` pieces, `R` rows, `C` capacity.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, sums_of
from ...schemas.splitmix import GOLDEN, mix
from .best_fit import Placement, best_fit_decreasing, descending
from .bin_slack import Pattern, Work, fill_rows
from .column_generation import improved
from .dual_bounds import DualBound, dual_bound
from .limited import fill_limited, fill_pairs, limited_bound, spread, spread_and_pair
from .reduction import reduced
from .rows import Rows

TIGHT_VERSION = 5
"""Which search this is. Part of what a dataset is made from, so that no run is finished with rows of another search."""
WORK = 4_000_000
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
_MORE = (0, 3, 6, 12)
"""Rows beyond the bound among which pieces are spread, in thousandths."""
_CLOSER = (95, 90, 100, 85, 80, 98)
"""The same, for rows that are filled again."""
LIMITED_WORK = 11_000_000
"""Work of filling rows of at most `max_docs` again."""
_UNITS = 4096
"""Capacity, in rounded units, in which very many pieces are put into rows of at most `max_docs`."""
_FEW, _MANY = 12, 400
"""Rows to fill again in one step of the local search."""
REDUCED_WORK = 4_000_000
"""Work of finding rows that some optimum has."""
PRICES_WORK = 24_000_000
"""Work of column generation: about as long as that of the search."""
_MOST_SIZES = 4000
"""The most different sizes of all rows whose relaxation is solved at once."""
_FAR, _ALIKE, _ROWS_SHARE, _BOUND_SHARE = 0.02, 1024, 0.5, 0.9
"""Where best-fit-decreasing needs such a share more than the bound, the relaxation is first solved for sizes rounded to
so many units, with these shares of the work for the rows and for the bound.
"""
_PART, _PARTS, _PART_WORK, _PARTS_SHARE = 150, 40, 400_000, 0.5
"""Rows whose relaxation is solved at once else, how often others are chosen, the work of choosing them, and the share
of the work for all of this: it seldom saves a row.
"""


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
    first = Rows(sizes[placement.order].astype(np.int64), placement.row_offsets)
    bound = dual_bound(counts, len(first))
    if max_docs is not None and bound.rows < len(first):
        by_number = limited_bound(counts, max_docs)
        valued, bound = bound, bound if bound.rows >= by_number else replace(bound, rows=by_number, bound_by="max_docs")
    if bound.rows >= len(first):
        return placement, bound
    if max_docs is None:
        best, bound = _unlimited(first, bound, counts, work)
    else:
        best, bound = _limited(first, bound, counts, max_docs, valued, work)
    if len(best) == len(first):
        return placement, bound
    # The k-th largest place takes the k-th largest piece: pieces of one size in the order of their indices.
    order = np.empty(len(sizes), dtype=np.int64)
    order[descending(best.sizes, counts)] = descending(sizes, counts)
    return Placement(order, best.offsets, placement.moves), bound


def _unlimited(first: Rows, bound: DualBound, counts: NDArray[np.int64], work: int | None) -> tuple[Rows, DualBound]:
    """Return the fewest rows that are found, `first` among them, and the best bound.

    Args:
        bound: a bound for all pieces.
    """
    pieces, capacity = len(first.sizes), len(counts) - 1
    begin = 0
    if work is None:
        begin = _BEGIN_WORK * min(pieces, _BEGIN_PIECES) * min(len(counts) >> 12, _BEGIN_UNITS)
    limit = Work(WORK + _PIECE_WORK * pieces if work is None else work)
    fixed, left = reduced(counts, Work(REDUCED_WORK if work is None else work))
    if not left.any():
        return fixed, replace(bound, rows=len(fixed))
    flat = np.repeat(np.arange(len(left)), left)
    placement = best_fit_decreasing(flat, left)
    rest = Rows(flat[placement.order], placement.row_offsets)
    found = dual_bound(left, len(rest))
    if found.rows + len(fixed) < bound.rows:
        found = replace(bound, rows=bound.rows - len(fixed))
    prices = Work(PRICES_WORK if work is None else 2 * work)
    if capacity > _ALIKE and len(rest) - found.rows > _FAR * len(rest):
        rest, found = _rounded(rest, found, capacity, prices)
        begin = 0
    if found.rows < len(rest):
        rest, tried = _search(rest, found, capacity, limit, begin)
    if found.rows < len(rest):
        rest, found = _refined(rest, found, capacity, prices, tried)
    best = rest.with_more(fixed)
    return best if len(best) < len(first) else first, replace(found, rows=found.rows + len(fixed))


def _rounded(rows: Rows, bound: DualBound, capacity: int, work: Work) -> tuple[Rows, DualBound]:
    """Improve rows and bound by solving for sizes that are rounded to so few that their relaxation is solved quickly.

    Sizes rounded up give rows that hold the pieces. Sizes rounded down give a bound: what fits into a row still does.
    """
    unit = 1 + (capacity - 1) // _ALIKE
    units = capacity // unit
    sizes = np.sort(rows.sizes)[::-1]
    alike = np.bincount(_rounded_up(sizes, unit, units), minlength=units + 1)
    with work.share(_ROWS_SHARE):
        found, _ = _relaxed(alike, work)
    if len(found) < len(rows):
        rows = _exact(found, sizes, alike)
    down = np.bincount(sizes // unit, minlength=units + 1)
    down[0] = 0
    if down.any():
        with work.share(_BOUND_SHARE):
            _, least = _relaxed(down, work)
        if least.rows > bound.rows:
            bound = replace(least, values=least.values[np.arange(capacity + 1) // unit])
    return rows, bound


def _rounded_up(sizes: NDArray[np.int64], unit: int, units: int) -> NDArray[np.int64]:
    """Sizes in whole units. One that fills more than all whole units of a row is alone in it."""
    return np.minimum((sizes - 1) // unit + 1, units)


def _exact(rows: Rows, sizes: NDArray[np.int64], alike: NDArray[np.int64]) -> Rows:
    """Rows of rounded sizes with the sizes themselves, largest first, of which `alike` counts the rounded ones."""
    real = np.empty_like(sizes)
    real[descending(rows.sizes, alike)] = sizes
    return Rows(real, rows.offsets)


def _relaxed(counts: NDArray[np.int64], work: Work) -> tuple[Rows, DualBound]:
    """Rows and bound by column generation alone."""
    flat = np.repeat(np.arange(len(counts)), counts)
    placement = best_fit_decreasing(flat, counts)
    rows = Rows(flat[placement.order], placement.row_offsets)
    bound = dual_bound(counts, len(rows))
    return (rows, bound) if bound.rows >= len(rows) else improved(rows, bound, len(counts) - 1, work)


def _refined(rows: Rows, bound: DualBound, capacity: int, work: Work, tried: list[Pattern]) -> tuple[Rows, DualBound]:
    """Improve rows and bound by column generation: of all rows where their sizes are few enough, else of some.

    Args:
        tried: what other rows may hold, to begin with.
    """
    if np.count_nonzero(np.bincount(rows.sizes)) <= _MOST_SIZES:
        return improved(rows, bound, capacity, work, tried)
    work.left = int(_PARTS_SHARE * work.left)
    best, step = rows, 0
    while work.left > 0 and len(best) > bound.rows and step < _PARTS:
        work.left -= len(best.sizes) // 2 + 3 * len(best) + _PART_WORK
        worth = sums_of(bound.values[best.sizes], best.offsets)
        index = _chosen(bound.full - worth, 1 if not step else 0.5, step, _PART)
        least = -(-int(worth[index].sum()) // bound.full)
        if least < len(index):
            some = best.chosen(index)
            found, _ = improved(some, replace(bound, rows=least), capacity, work)
            if len(found) < len(some):
                best = best.without(index).with_more(found)
        step += 1
    return best, bound


def _search(rows: Rows, bound: DualBound, capacity: int, work: Work, begin: int = 0) -> tuple[Rows, list[Pattern]]:
    """Fill rows again, those that waste most first, while that needs no more rows.

    Args:
        begin: work that only the first step may do.

    Returns:
        The rows, and what was tried with each floor.
    """
    best = rows
    tried: list[Pattern] = []
    share, each = work.left // _SHARE, 30 + 16 * (1 + (capacity >> 12))
    rest = work.left
    work.left += begin
    for step, (floor, apart, chosen) in enumerate(_steps(work, capacity)):
        waste = bound.full - sums_of(bound.values[best.sizes], best.offsets)
        index = _chosen(waste, chosen, step, max(_FEW, (share if step else share + begin) // each))
        counts = np.bincount(best.taken(index), minlength=capacity + 1)
        work.left -= len(best.sizes) // 4 + len(best) // 4 + capacity // 100 + 1500
        patterns = fill_rows(counts, max(1, int(floor * capacity)), work, apart)
        number = sum(many for _, many in patterns)
        tried += patterns if chosen == 1 else []
        if number < len(index) or (chosen < 1 and number == len(index)):
            best = best.replaced(index, patterns)
        if len(best) <= bound.rows:
            break
        work.left = min(work.left, rest)
    return best, tried


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


def _limited(
    rows: Rows, bound: DualBound, counts: NDArray[np.int64], max_docs: int, valued: DualBound, work: int | None
) -> tuple[Rows, DualBound]:
    """Return the fewest rows of at most `max_docs` pieces that are found, `rows` among them, and the best bound.

    They are always at most those of the plain greedy.

    Args:
        valued: the bound from sizes alone.
    """
    sizes = np.sort(rows.sizes)[::-1]
    if max_docs == 2:
        paired = Rows(*fill_pairs(sizes, len(counts) - 1))
        return paired if len(paired) < len(rows) else rows, bound
    limit = Work(WORK + 4 * _PIECE_WORK * len(sizes) if work is None else work)
    best = rows
    # Where rows hold few pieces anyway, the limit may not matter.
    if max_docs > 1 and 10 * len(sizes) < 7 * max_docs * valued.rows:
        placement = best_fit_decreasing(sizes, counts)
        free = Rows(sizes[placement.order], placement.row_offsets)
        if valued.rows < len(free):
            free, found = _unlimited(free, valued, counts, work)
            bound = found if found.rows > bound.rows else bound
        for shortened in _shortened(free, max_docs, len(counts) - 1, valued, limit):
            best = shortened if len(shortened) < len(best) else best
            if len(best) <= bound.rows:
                return best, bound
    again = Work(LIMITED_WORK if work is None else work)
    for way in _limited_ways(sizes, counts, max_docs, bound.rows, valued, limit, again):
        best = way if len(way) <= len(best) else best
        if len(best) <= bound.rows:
            return best, bound
    return _search_limited(best, bound.rows, max_docs, len(counts) - 1, valued, again), bound


def _search_limited(rows: Rows, enough: int, max_docs: int, capacity: int, valued: DualBound, work: Work) -> Rows:
    """Fill some rows again, those that waste most and others, while that needs no more rows. Args as for `_limited`."""
    best, step = rows, 0
    while work.left > 0 and len(best) > enough:
        step += 1
        random = int(mix(np.array([step], dtype=np.uint64) * GOLDEN)[0])
        waste = valued.full - sums_of(valued.values[best.sizes], best.offsets)
        index = _chosen(waste, 1 / (2 << (random >> 40) % 4), step, _MANY)
        counts = np.bincount(best.taken(index), minlength=capacity + 1)
        work.left -= len(best.sizes) // 4 + len(best) // 4 + capacity // 100 + 1500
        percent, apart = _CLOSER[random % len(_CLOSER)], bool(random >> 20 & 1)
        patterns: list[Pattern] = []
        if random >> 21 & 1:
            sizes = np.repeat(np.arange(capacity + 1), counts)[::-1]
            patterns, counts = spread_and_pair(sizes, capacity, max_docs, len(index) - 1, work)
        patterns += fill_limited(counts, max_docs, (valued.values, valued.full), percent, work, apart=apart)
        if sum(many for _, many in patterns) <= len(index):
            best = best.replaced(index, patterns)
    return best


def _limited_ways(
    sizes: NDArray[np.int64],
    counts: NDArray[np.int64],
    max_docs: int,
    enough: int,
    valued: DualBound,
    work: Work,
    again: Work,
) -> Iterator[Rows]:
    """Yield plans until the work is done. Args as for `_limited`; sizes: (N,) largest first; enough: the bound."""
    capacity = len(counts) - 1
    yield _spread(sizes, capacity, max_docs, 0, work)
    if max_docs == 1:
        return
    # In rounded units where there are very many pieces: more are alike, and fewer sums have to be told apart.
    unit = 1 + (capacity - 1) // _UNITS if len(sizes) * (1 + (capacity >> 12)) > work.left // 100 else 1
    units = capacity // unit
    rounded = _rounded_up(sizes, unit, units)
    alike = np.bincount(rounded, minlength=units + 1)
    worth = np.zeros(len(alike), dtype=np.int64)
    np.maximum.at(worth, rounded, valued.values[sizes])

    for apart in (False, True):
        for percent in _PRESSURES:
            if work.left <= 0:
                return
            patterns = fill_limited(alike, max_docs, (worth, valued.full), percent, work, apart=apart)
            yield _exact(Rows.of(patterns), sizes, alike)
            more = 5 * _PRESSURES.index(percent)
            if not apart and work.left > 0:
                yield _spread(sizes, capacity, max_docs, enough + enough * more // 1000, work)
    for more in _MORE:
        if again.left <= 0:
            return
        patterns, left = spread_and_pair(rounded, units, max_docs, enough + enough * more // 1000, again)
        patterns += fill_limited(left, max_docs, (worth, valued.full), _PRESSURES[0], again)
        yield _exact(Rows.of(patterns), sizes, alike)


def _shortened(rows: Rows, max_docs: int, capacity: int, valued: DualBound, work: Work) -> Iterator[Rows]:
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


def _spread(sizes: NDArray[np.int64], capacity: int, max_docs: int, rows: int, work: Work) -> Rows:
    work.left -= 20 * len(sizes)
    places, number = spread(sizes, capacity, max_docs, rows)
    order = np.argsort(places, kind="stable")
    held = np.bincount(places, minlength=number)
    return Rows(sizes[order], offsets_of(held[held > 0]))
