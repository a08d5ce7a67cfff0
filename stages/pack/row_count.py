"""The rows that pieces need, and a lower bound for any plan, computed from a histogram of sizes."""

import numpy as np
from numpy.typing import NDArray

from .best_fit import rows_needed
from .bounds import least_rows, martello_toth
from .tight import tight_rows


def in_units(lengths: NDArray[np.integer], align: int) -> NDArray[np.integer]:
    """Lengths in units of `align`, rounded up, as the planner packs them."""
    return lengths if align == 1 else (lengths + align - 1) // align


def rows_and_bound(counts: NDArray[np.int64], max_docs: int | None) -> tuple[int, int]:
    """Rows of best-fit-decreasing, and the bound that `plan.plan_rows` certifies.

    Args:
        counts: (units + 1,) number of pieces of each size; 0 for size 0.
        max_docs: maximum number of pieces in a row.
    """
    units = len(counts) - 1
    number, tokens = int(counts.sum()), int((counts * np.arange(units + 1)).sum())
    bound = max(least_rows(tokens, units), martello_toth(counts, units))
    if max_docs is not None:
        bound = max(bound, least_rows(number, max_docs))
    return rows_needed(counts, max_docs), bound


def tight_rows_and_bound(
    sizes: NDArray[np.integer], counts: NDArray[np.int64], max_docs: int | None, work: int | None
) -> tuple[int, int]:
    """Rows of strategy `tight`, and the bound that `plan.plan_rows` certifies for it.

    Args:
        sizes: (N,) the pieces, none of size 0.
        counts: (units + 1,) how many of them have each size.
        work: see `tight.tight_rows`.
    """
    placement, bound = tight_rows(sizes, counts, max_docs, work)
    return len(placement.row_offsets) - 1, bound.rows
