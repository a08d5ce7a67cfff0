"""Rows of at most `max_docs` pieces, which best-fit-decreasing does badly.

Tokens and pieces have to be balanced: if the first rows take few short pieces, the last ones hold `max_docs` of them
and are nearly empty. So rows are filled one after another, with short pieces first where many pieces are left for each
row.
"""

import numpy as np
from numpy.typing import NDArray

from .dense import NEAR, Pattern, Stock, Work

_SHORT = 4
"""A pair may leave less than this of a row empty."""
_PERCENT = 90
"""Rows take short pieces first where the pieces left are more than this share of `max_docs` for each row that their
tokens would fill."""


def filled(counts: NDArray[np.int64], max_docs: int, work: Work) -> list[Pattern] | None:
    """Fill one row after another: the largest size left, short ones if many are left, and a pair that fills the rest.

    Args:
        counts: (C + 1,) how many pieces have each size; none of size 0.
        max_docs: the most pieces of a row, at least 3.

    Returns:
        The rows; None if the work is done before.
    """
    stock = Stock(counts)
    capacity = stock.capacity
    pieces, tokens = int(counts.sum()), int((counts * np.arange(capacity + 1)).sum())
    rows: list[Pattern] = []
    while stock.present:
        if work.left <= 0:
            return None
        largest = stock.present.bit_length() - 1
        stock.take(largest)
        held = {largest: 1}
        _fill_row(stock, held, max_docs - 1, many=pieces * capacity * 100 > _PERCENT * max_docs * tokens)
        number, size = sum(held.values()), sum(one * times for one, times in held.items())
        times = 1 + stock.again(held, tokens // capacity // 64)  # not all alike at once, as tokens and pieces change
        pieces -= times * number
        tokens -= times * size
        work.left -= 30 + (1 + (capacity >> 12)) * (10 + 4 * number)
        rows.append((held, times))
    return rows


def _fill_row(stock: Stock, held: dict[int, int], slots: int, *, many: bool) -> None:
    """Add the smallest sizes if there are many; then the largest while there is much space, then a pair for the rest.

    Args:
        held: the one size that the row holds.
        slots: pieces that it may still take.
        many: short pieces are to be used, so a pair comes before one size that fills the space.
    """
    space = stock.capacity - sum(held)

    def add(size: int) -> None:
        nonlocal slots, space
        stock.take(size)
        held[size] = held.get(size, 0) + 1
        slots, space = slots - 1, space - size

    while many and slots > 2 and (left := stock.present) and (smallest := (left & -left).bit_length() - 1) <= space:
        add(smallest)
    while slots and space and (fits := stock.present & ((1 << (space + 1)) - 1)):
        largest = fits.bit_length() - 1
        alone = slots == 1 or space >= slots * largest or (largest == space and not many)
        if not alone and (slots <= 3 or space <= NEAR * largest):
            for target in range(space, max(1, space - _SHORT), -1):
                if larger := stock.pair(target):
                    add(larger)
                    add(target - larger)
                    return
        add(largest)
