"""Cuts rows of known sizes into blocks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Neighbouring rows of a file."""

    first: int
    last: int
    """One past the last row."""
    bytes: int
    too_long: bool
    """Whether it is one row that is longer than rows may be."""


def cut_sizes(sizes: Iterable[NDArray[np.integer[Any]]], size: int, longest: int) -> Iterator[RowSpan]:
    """Cut rows into spans of at most `size` bytes; only a single row may be larger.

    Where a span begins depends only on the rows before it: appending rows changes only the last one.

    Args:
        sizes: bytes of each row, in arrays that follow one another.
        longest: a row with more bytes is a span of its own.
    """
    first, held, before = 0, 0, 0
    for some in sizes:
        ends = np.cumsum(some, dtype=np.int64)
        long = np.flatnonzero(some > longest)
        at = 0
        while at < len(some):
            read = int(ends[at - 1]) if at else 0
            next_long = int(long[np.searchsorted(long, at)]) if len(long) and long[-1] >= at else len(some)
            stop = min(int(np.searchsorted(ends, read + size - held, side="right")), next_long)
            if stop == at and before + at == first and at < next_long:
                stop = at + 1  # one row that is larger than a span
            if stop > at:
                held += int(ends[stop - 1]) - read
                at = stop
            if at == len(some):
                break
            if before + at > first:
                yield RowSpan(first, before + at, held, False)
                first, held = before + at, 0
            if at == next_long:
                yield RowSpan(first, first + 1, int(some[at]), True)
                first, at = first + 1, at + 1
        before += len(some)
    if before > first:
        yield RowSpan(first, before, held, False)
