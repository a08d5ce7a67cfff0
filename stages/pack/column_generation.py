"""Fewer rows and a better bound from the linear relaxation of cutting stock, by diving.

The patterns that the relaxation uses whole are fixed, and the rest is solved again, until a plain heuristic fills what
is left.

Legend: `C` capacity.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from .bin_slack import Pattern, Work, fill_rows
from .dual_bounds import DualBound
from .relaxation import Relaxation
from .rows import Rows

_SEEDS = 4_000
"""The most rows to take patterns from."""
_ALL_SHARE = 0.7
"""Share of the work for the relaxation of all pieces."""
_ROUNDS, _LATER_ROUNDS = 200, 4
"""Rounds of column generation: for all pieces, and for those left in a dive."""
_DIVES = (0.1, 0.02, 0.3)
"""The share of the patterns used in part that a step of a dive fixes."""
_WHOLE = 0.01
"""A pattern that is used less than this below a whole number counts as that number."""
_FLOORS = (0.0, 1 / 3, 0.25, 0.2, 1 / 6)
"""See `tight`."""
_FILL = 200_000
"""The most work of filling what a dive leaves, each way."""


def improved(
    rows: Rows, bound: DualBound, capacity: int, work: Work, tried: Sequence[Pattern] = ()
) -> tuple[Rows, DualBound]:
    """Look for fewer rows and a better bound.

    Args:
        bound: a bound for the pieces of these rows.
        tried: what other rows may hold, to begin with.
    """
    counts = np.bincount(rows.sizes, minlength=capacity + 1)
    step = 1 + len(rows) // _SEEDS
    ends = zip(rows.offsets[:-1:step], rows.offsets[1::step], strict=True)
    seeds = [rows.sizes[a:b].tolist() for a, b in ends]
    seeds += [list(Counter(held).elements()) for held, _ in tried[: max(0, _SEEDS - len(seeds))]]
    relaxed = Relaxation(counts, seeds, bound)
    with work.share(_ALL_SHARE):
        relaxed.solve(_ROUNDS, len(rows), work)
    best, bound = rows, relaxed.bound
    for share in _DIVES:
        if len(best) <= bound.rows or work.left <= 0:
            break
        best = _dive(relaxed, best, bound, share, work)
    if len(best) > bound.rows and len(best) <= ceil(relaxed.rows):
        relaxed.solve(_ROUNDS, len(best), work)
    return best, relaxed.bound


def _dive(relaxed: Relaxation, best: Rows, bound: DualBound, share: float, work: Work) -> Rows:
    """Fix rows step by step. Returns `best`, or fewer rows.

    Args:
        bound: the search ends with so few rows.
    """
    fixed = Rows.of([])
    while work.left > 0 and len(fixed) + relaxed.rows < len(best) - 0.99:
        taken, left = _placed(_fixed(relaxed, share), relaxed.counts)
        fixed = fixed.with_more(taken)
        found = fixed
        if left.any():
            found = fixed.with_more(_completed(left, work))
        if len(found) < len(best):
            best = found
        if len(best) <= bound.rows or not left.any():
            break
        start = DualBound(0, "", bound.values, bound.full)
        relaxed = Relaxation(left, relaxed.patterns(), start)
        relaxed.solve(_LATER_ROUNDS, len(best), work)
    return best


def _fixed(relaxed: Relaxation, share: float) -> Rows:
    """Rows of the patterns that are used whole, and of a share of the others: those used most. At least one."""
    whole = [(int(often + _WHOLE), often, held) for often, held in relaxed.used()]
    rest = sorted((number - often, held) for number, often, held in whole if often - number > _WHOLE)
    often = Counter({held: number for number, _, held in whole if number})
    often.update(held for _, held in rest[: max(int(not often), int(share * len(rest)))])
    return Rows.of((Counter(relaxed.sizes_of(held)), number) for held, number in often.items())


def _placed(places: Rows, counts: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
    """Put pieces into the places of rows: the largest place takes the largest piece left that fits.

    Returns:
        Rows of pieces, and (C + 1,) the pieces left.
    """
    order = np.argsort(-places.sizes, kind="stable")
    pieces = np.repeat(np.arange(len(counts)), counts)[::-1]
    # The j-th place takes piece max(first that fits, the one after the last taken).
    step = np.arange(len(order))
    first = np.searchsorted(-pieces, -places.sizes[order])
    index = np.maximum.accumulate(first - step) + step
    order, index = order[index < len(pieces)], index[index < len(pieces)]
    held = np.zeros(len(places.sizes), dtype=np.int64)
    held[order] = pieces[index]
    row = np.repeat(np.arange(len(places)), np.diff(places.offsets))
    number = np.bincount(row[held > 0], minlength=len(places))
    taken = held[held > 0]
    return Rows(taken, offsets_of(number[number > 0])), counts - np.bincount(taken, minlength=len(counts))


def _completed(counts: NDArray[np.int64], work: Work) -> Rows:
    """The fewest rows that filling finds."""
    capacity = len(counts) - 1
    found = []
    for floor in _FLOORS:
        share = Work(min(_FILL, work.left))
        begin = share.left
        found.append(Rows.of(fill_rows(counts, max(1, int(floor * capacity)), share, False)))
        work.left -= begin - share.left + 20 * int(counts.sum()) + capacity // 100
    return min(found, key=len)
