"""What loss weights are divided by, so that documents or conversations count the same whatever their length."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def divisors(
    units: NDArray[np.integer[Any]],
    labels: NDArray[np.integer[Any]],
    copies: NDArray[np.integer[Any]],
    lost: NDArray[np.integer[Any]],
) -> NDArray[np.float64]:
    """(K,) the trained labels of each document's unit, in one copy of it: a unit whose tokens all have weight 1 then
    weighs 1 in each copy. Copies of its documents may differ in number; then their mean counts. 1 for a unit without
    labels.

    Args:
        units: (K,) the unit of each document, from 0; a document alone, or several of one conversation.
        labels: (K,) trained labels of one copy of each document, before the packing strategy cuts it.
        copies: (K,) how often each document is packed, at least once.
        lost: (K,) labels that all copies together lose at the strategy's cuts.
    """
    total = np.bincount(units, weights=labels.astype(np.float64) * copies - lost)
    often = np.bincount(units, weights=copies) / np.maximum(np.bincount(units), 1)
    found = total / np.where(often > 0, often, 1)
    out: NDArray[np.float64] = np.where(found > 0, found, 1.0)[units]
    return out


def units_of(numbers: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """(K,) a number for each unit, from 0: neighbours of one part with the same number are one unit.

    Args:
        numbers: (K,) of each document within its part.
        bounds: (parts + 1,) first document of each part, then K.
    """
    first = np.ones(len(numbers), dtype=np.bool_)
    first[1:] = numbers[1:] != numbers[:-1]
    first[bounds[:-1][bounds[:-1] < len(numbers)]] = True
    out: NDArray[np.int64] = np.cumsum(first) - 1
    return out
