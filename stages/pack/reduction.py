"""Rows that some optimum has: they are fixed, and fewer pieces are left to place.

For a piece above half of a row, let k be the largest piece that fits beside it. What an optimum has beside it can be
exchanged for k if it is one piece, which is at most k, or if it is several whose sum is at most k. So if no sum of
several pieces that fits beside it is above k, some optimum has these two in a row.

Source: S. Martello and P. Toth, Lower bounds and reduction procedures for the bin packing problem, 1990. They compare
sets of up to three pieces; here the sums of all sets are bits of an integer.

Legend: `C` capacity.
"""

import numpy as np
from numpy.typing import NDArray

from .bin_slack import Pattern, Work
from .rows import Rows

_CHECKED = 16
"""Sizes to add before looking whether all sums are there."""


def reduced(counts: NDArray[np.int64], work: Work) -> tuple[Rows, NDArray[np.int64]]:
    """Fix rows until no more are found or the work is done.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.

    Returns:
        The rows, and (C + 1,) the pieces left.
    """
    rows, left = full_pairs(counts)
    while work.left > 0:
        found = _dominating(left, work)
        if not found:
            break
        rows = rows.with_more(Rows.of(found))
    return rows, left


def full_pairs(counts: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
    """Take all pairs of sizes that fill a row.

    Returns:
        The rows, and (C + 1,) the pieces left.
    """
    capacity = len(counts) - 1
    half = (capacity + 1) // 2
    small = np.arange(1, half)
    numbers = np.minimum(counts[small], counts[capacity - small])
    small, numbers = small[numbers > 0], numbers[numbers > 0]
    if capacity % 2 == 0:
        small, numbers = np.append(small, half), np.append(numbers, counts[half] // 2)
    each = np.repeat(small, numbers)
    left = counts.copy()
    left[small] -= numbers
    left[capacity - small] -= numbers
    sizes = np.stack([capacity - each, each], axis=1).ravel()
    return Rows(sizes, np.arange(len(each) + 1, dtype=np.int64) * 2), left


def _dominating(left: NDArray[np.int64], work: Work) -> list[Pattern]:
    """Rows of a piece above half of a row and the largest one that fits, taken from `left`."""
    capacity = len(left) - 1
    sums = _sums_of_several(left, capacity // 2, work)
    spaces = np.arange(capacity // 2 + 1)
    there = left[: len(spaces)] > 0
    single = np.maximum.accumulate(np.where(there, spaces, 0))
    several = np.maximum.accumulate(np.where(sums, spaces, 0))
    large = np.flatnonzero(left)
    large = large[2 * large > capacity][::-1]
    space = capacity - large
    rows: list[Pattern] = []
    for size in large[several[space] <= single[space]].tolist():
        while left[size]:
            fitting = np.flatnonzero(left[1 : capacity - size + 1])
            beside = int(fitting[-1]) + 1 if len(fitting) else 0
            if several[capacity - size] > beside:
                break
            number = int(min(left[size], left[beside])) if beside else int(left[size])
            left[size] -= number
            if beside:
                left[beside] -= number
            rows.append(({size: 1, beside: 1} if beside else {size: 1}, number))
            work.left -= 60 + capacity // 100
    work.left -= 500 + capacity // 5
    return rows


def _sums_of_several(left: NDArray[np.int64], most: int, work: Work) -> NDArray[np.bool_]:
    """(most + 1,) whether some two or more pieces have this sum; all, if the work does not suffice."""
    mask = (1 << (most + 1)) - 1
    unit = 1 + (most >> 12)
    one = several = 0
    sizes = np.flatnonzero(left[: most + 1])
    for step, (size, number) in enumerate(zip(sizes.tolist(), left[sizes].tolist(), strict=True)):
        for _ in range(min(number, most // size)):
            several |= ((one | several) << size) & mask
            one |= 1 << size
            work.left -= 4 * unit
        if work.left <= 0:
            return np.ones(most + 1, dtype=np.bool_)
        if step % _CHECKED == 0 and several and several | ((several & -several) - 1) == mask:
            break  # no sum is missing from the smallest on
    packed = np.frombuffer(several.to_bytes((most + 8) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=most + 1, bitorder="little").astype(np.bool_)
