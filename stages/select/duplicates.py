"""Finds documents equal to an earlier one, by their digests."""

import numpy as np
from numpy.typing import NDArray


def later_ones(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(K,) whether an earlier document has the same digest.

    Args:
        first, second: (K,) the two halves of each digest, in the order of the documents.
    """
    order = np.lexsort((second, first))  # stable: equal documents stay in order
    later = np.zeros(len(first), dtype=np.bool_)
    one, other = order[:-1], order[1:]
    later[other] = (first[one] == first[other]) & (second[one] == second[other])
    return later
