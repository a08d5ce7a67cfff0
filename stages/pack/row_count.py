"""The rows that pieces need, and a lower bound for any plan, computed from a histogram of sizes."""

import numpy as np
from numpy.typing import NDArray

from .best_fit import rows_needed
from .bounds import bound_of_whole_pieces
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
    return rows_needed(counts, max_docs), bound_of_whole_pieces(counts, max_docs)


def tight_row_count(sizes: NDArray[np.integer], counts: NDArray[np.int64], max_docs: int | None, work: int) -> int:
    """Rows of strategy `tight`. For the arguments see `tight.tight_rows`."""
    return len(tight_rows(sizes, counts, max_docs, work).row_offsets) - 1
