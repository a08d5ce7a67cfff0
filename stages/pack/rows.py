"""Rows as the sizes that they hold, while a plan is improved: pieces of one size are alike.

Legend: `N` pieces, `R` rows, `C` capacity.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges
from .bin_slack import Pattern


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The sizes in each row: row r holds `sizes[offsets[r]:offsets[r + 1]]`."""

    sizes: NDArray[np.int64]
    """(N,)"""
    offsets: NDArray[np.int64]
    """(R + 1,)"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, patterns: Iterable[Pattern]) -> "Rows":
        """The rows of the patterns."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)).replaced(np.arange(0), list(patterns))

    def taken(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sizes in some rows, row by row."""
        return self.sizes[ranges(self.offsets[rows], np.diff(self.offsets)[rows])]

    def chosen(self, rows: NDArray[np.int64]) -> "Rows":
        """Some rows alone."""
        return Rows(self.taken(rows), offsets_of(np.diff(self.offsets)[rows]))

    def with_more(self, other: "Rows") -> "Rows":
        """These rows, then the others."""
        offsets = np.concatenate([self.offsets, other.offsets[1:] + len(self.sizes)])
        return Rows(np.concatenate([self.sizes, other.sizes]), offsets)

    def without(self, rows: NDArray[np.int64]) -> "Rows":
        """All other rows."""
        keep = np.ones(len(self), dtype=np.bool_)
        keep[rows] = False
        return self.chosen(np.flatnonzero(keep))

    def replaced(self, rows: NDArray[np.int64], patterns: list[Pattern]) -> "Rows":
        """All other rows, then those of the patterns."""
        flat = [size for held, number in patterns for size in _listed(held) * number]
        each = [sum(held.values()) for held, _ in patterns]
        numbers = np.repeat(np.array(each, dtype=np.int64), [number for _, number in patterns])
        return self.without(rows).with_more(Rows(np.array(flat, dtype=np.int64), offsets_of(numbers)))


def _listed(held: dict[int, int]) -> list[int]:
    return [size for size in sorted(held, reverse=True) for _ in range(held[size])]
