"""Rows of strategy `tight`: those of best-fit-decreasing, or fewer where a bounded search finds them.

Legend: `N` pieces, `R` rows, `C` capacity.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from .best_fit import Placement, best_fit_decreasing, descending
from .bounds import bound_of_whole_pieces
from .dense import Pattern, Work, fillings
from .limited import filled

WORK = 6_000_000
"""Work of the search: about a second."""
_UNITS, _FEW = 4096, 5000
"""With `max_docs` and so many pieces, sizes are rounded up to so many units: more of them are alike."""


def tight_rows(
    sizes: NDArray[np.integer], counts: NDArray[np.int64], max_docs: int | None = None, work: int = WORK
) -> Placement:
    """Pack `sizes` into rows of capacity `C`: never more rows than `best_fit_decreasing`.

    The search counts its work and stops at once where a lower bound is reached, so its result depends on the arguments
    alone.

    Args:
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) how many pieces have each size.
        max_docs: the most pieces in a row.
        work: the most work of the search.
    """
    placement = best_fit_decreasing(sizes, counts, max_docs)
    least, enough = len(placement.row_offsets) - 1, bound_of_whole_pieces(counts, max_docs)
    if least <= enough or (max_docs is not None and max_docs < 3):  # rows of up to two are already the fewest
        return placement
    best = None
    for patterns in _ways(sizes, counts, max_docs, Work(work)):
        rows = sum(times for _, times in patterns)
        if rows < least:
            best, least = patterns, rows
        if least <= enough:
            break
    if best is None:
        return placement
    flat, row_offsets = _listed(best)
    # The k-th largest place takes the k-th largest piece: pieces of one size in the order of their indices.
    order = np.empty(len(sizes), dtype=np.int64)
    order[np.argsort(-flat, kind="stable")] = descending(sizes, len(counts) - 1)
    return Placement(order, row_offsets)


def _ways(
    sizes: NDArray[np.integer], counts: NDArray[np.int64], max_docs: int | None, work: Work
) -> Iterator[list[Pattern]]:
    """Yield ways to fill rows. Their sizes may be rounded up."""
    for patterns in fillings(counts, work if max_docs is None else Work(work.left // 8)):
        if max_docs is None or max(sum(held.values()) for held, _ in patterns) <= max_docs:
            yield patterns
    if max_docs is None:
        return
    capacity = len(counts) - 1
    unit = 1 + (capacity - 1) // _UNITS if len(sizes) > _FEW else 1
    units = capacity // unit
    rounded = np.minimum((sizes - 1) // unit + 1, units)  # one that fills more than all whole units is alone in its row
    found = filled(np.bincount(rounded, minlength=units + 1), max_docs, work)
    if found is not None:
        yield found


def _listed(patterns: list[Pattern]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    flat: list[int] = []
    numbers: list[int] = []
    for held, times in patterns:
        row = [size for size in sorted(held, reverse=True) for _ in range(held[size])]
        flat += row * times
        numbers += [len(row)] * times
    return np.array(flat, dtype=np.int64), offsets_of(np.array(numbers, dtype=np.int64))
