"""Histogram of piece sizes, and a lower bound on the rows of any plan.

Legend: `C` capacity, `K` threshold.
"""

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of

_BLOCK = 1 << 18
"""Pieces counted at once; numpy's bincount copies its argument with 8 bytes per value."""


def size_counts(sizes: NDArray[np.integer], capacity: int) -> NDArray[np.int64]:
    """Return (C + 1,) how many of `sizes` have each size. Sizes are in 0..capacity."""
    counts = np.zeros(capacity + 1, dtype=np.int64)
    for begin in range(0, len(sizes), _BLOCK):
        part = np.bincount(sizes[begin : begin + _BLOCK])
        counts[: len(part)] += part
    return counts


def bound_of_whole_pieces(counts: NDArray[np.int64], max_docs: int | None = None) -> int:
    """Rows that pieces of these sizes need at least if none may be cut, and at most `max_docs` of them share a row: the
    larger of Martello and Toth's L2 and ceil(pieces / max_docs).

    For a threshold K, ignore the pieces below K. A piece above C - K fits with no other. Each piece above C / 2 needs
    its own row, and pieces of K to C / 2 can only use the space left in these rows, or new rows. That gives a bound for
    each K; L2 is the largest of them over all K in 0..C/2. It is never below ceil(tokens / C), the bound for K = 0.

    In rows of 10, pieces of 7, 7, 7 and 4 tokens have 25 tokens, so K = 0 gives 3 rows. K = 4 gives 4 rows, because no
    piece of 7 leaves space for one of 4.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.

    Source: S. Martello and P. Toth, Knapsack Problems, Wiley 1990, section 8.3.2.
    """
    capacity = len(counts) - 1
    half = capacity // 2
    number = offsets_of(counts)  # number[s]: pieces smaller than s
    tokens = offsets_of(counts * np.arange(capacity + 1, dtype=np.int64))  # tokens[s]: theirs
    threshold = np.arange(half + 1)
    alone_from = capacity - threshold + 1  # from this size on, a piece leaves no space for one of K
    # Large pieces are those above C / 2. Large ones that leave space for a piece of the threshold are medium, too.
    # In rows of 10, with K = 4: large are 6 to 10, medium is 6, small are 4 and 5, and `alone_from` is 7.
    large = number[capacity + 1] - number[half + 1]
    medium = number[alone_from] - number[half + 1]
    medium_tokens = tokens[alone_from] - tokens[half + 1]
    small_tokens = tokens[half + 1] - tokens[threshold]
    # Tokens of pieces from K to C / 2 that find no space beside the medium ones, and so need rows of their own.
    spill = small_tokens - (medium * capacity - medium_tokens)
    bound = int((large + np.maximum(0, -(-spill // capacity))).max())
    if max_docs is None:
        return bound
    return max(bound, -(-int(counts.sum()) // max_docs))
