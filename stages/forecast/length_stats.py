"""Lengths and trained runs of the documents to pack, and what a length limit leaves of them.

Legend: `N` documents, `K` runs that the mask trains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..select.truncate import Keep


@dataclass(frozen=True, eq=False)
class LengthStats:
    """Lengths and trained runs of the documents that passed the filters, before `max_length` is applied."""

    lengths: NDArray[np.int32]
    """(N,) tokens."""
    owners: NDArray[np.int32]
    """(K,) the document of each trained run, ascending."""
    begins: NDArray[np.int32]
    """(K,) first token of each run within its document."""
    ends: NDArray[np.int32]
    """(K,) one past the last token of each run."""
    longest: Sequence[tuple[str, int]] = ()
    """(id, tokens) of the few longest documents, the longest first; empty if the ids are unknown."""

    @cached_property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def documents(self) -> int:
        """Documents with at least one token."""
        return int(np.count_nonzero(self.lengths))

    @cached_property
    def labels_each(self) -> NDArray[np.int64]:
        """(N,) labels trained if nothing is cut: every token that the mask trains, except a document's first."""
        return self.summed(self.owners, self.ends - self.begins - (self.begins == 0))

    @cached_property
    def labels(self) -> int:
        """Labels trained in all documents together, if nothing is cut."""
        return int(self.labels_each.sum())

    def labels_within(self, limit: int, keep: Keep) -> NDArray[np.int64]:
        """(N,) trained labels left of each document after truncation."""
        long = self.lengths > limit
        mine = np.flatnonzero(long[self.owners])
        owners, begins, ends = self.owners[mine], self.begins[mine], self.ends[mine]
        low = self.lengths[owners] - np.int32(limit) if keep is Keep.END else np.zeros_like(begins)
        begins, ends = np.maximum(begins, low), np.minimum(ends, low + np.int32(limit))
        # The first remaining token has no label.
        supervised = np.maximum(ends - begins, 0)
        return np.where(long, self.summed(owners, supervised - ((begins == low) & (supervised > 0))), self.labels_each)

    def summed(self, owners: NDArray[np.int32], values: NDArray[np.integer]) -> NDArray[np.int64]:
        """(N,) the sum of values by the document that owns each. Sums below 2**53 are exact."""
        return np.bincount(owners, weights=values, minlength=len(self.lengths)).astype(np.int64)
