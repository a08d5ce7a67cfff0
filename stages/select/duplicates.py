"""Finds documents equal to an earlier one, by their digests and in bounded memory.

1. Compare the first 8 of each digest's 16 bytes, one part of the range at a time, to find suspects.
2. Compare the whole digests of the suspects. Of equal documents, the first is kept.

Legend: N documents, K suspects.
"""

import numpy as np
from numpy.typing import NDArray

PARTITION = 1 << 22
"""Approximate number of documents compared at once; sorting them needs less than 100 MB."""


def suspects(prefixes: NDArray[np.uint64], eligible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(K,) the eligible documents that share their prefix with another eligible one, ascending.

    Args:
        prefixes: (N,) the first 8 bytes of each digest.
    """
    bits = max(0, (len(prefixes) // PARTITION).bit_length())
    found: list[NDArray[np.int64]] = []
    for partition in range(1 << bits):
        here = eligible if not bits else eligible & (prefixes >> np.uint64(64 - bits) == np.uint64(partition))
        documents = np.flatnonzero(here)
        documents = documents[np.argsort(prefixes[documents], kind="stable")]
        ordered = prefixes[documents]
        same = ordered[1:] == ordered[:-1]
        shared = np.zeros(len(documents), dtype=np.bool_)
        shared[1:] = same
        shared[:-1] |= same
        found.append(documents[shared])
    out: NDArray[np.int64] = np.sort(np.concatenate(found))
    return out


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
