"""Lengths and trained runs of the documents to pack, and what a length limit leaves of them.

Legend: `N` documents, `K` runs that the mask trains, `P` parts, `S` pieces, `U` distinct numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import sums_of
from ..select.truncate import Keep

Compose: TypeAlias = Callable[[NDArray[np.int64]], Sequence[NDArray[np.int64]]]
"""Groups parts into planning windows, given the tokens of each of the P parts; see `pipeline.pack.windows.compose`."""
_DENSE = 1 << 22
"""Numbers up to this have their own counter; larger ones are counted by sorting."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitPieceLengths:
    """The packed pieces of documents that are longer than a length limit."""

    owners: NDArray[np.int32]
    """(S,) the document of each piece, ascending."""
    lengths: NDArray[np.int32]
    """(S,) tokens."""
    labels: NDArray[np.int32]
    """(S,) trained labels."""
    overlap: NDArray[np.int32] | None = None
    """(S,) tokens shared with the piece before; None if there is no overlap."""

    def take(self, index: NDArray[np.int64], owners: NDArray[np.int32]) -> "SplitPieceLengths":
        """The pieces at `index`, in that order, assigned to other documents."""
        overlap = None if self.overlap is None else self.overlap[index]
        return SplitPieceLengths(owners, self.lengths[index], self.labels[index], overlap)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The P parts that documents come from, each of one source."""

    starts: NDArray[np.int64]
    """(P + 1,) the first document of each part."""
    sources: NDArray[np.int32]
    """(P,) the number of each part's source."""

    def sums(self, values: NDArray[np.integer | np.bool_]) -> NDArray[np.int64]:
        """(P,) the sum of (N,) values over each part."""
        return sums_of(values, self.starts)

    def of_documents(self, values: NDArray[np.integer]) -> NDArray[np.int64]:
        """(N,) each document's value, taken from the (P,) values of the parts."""
        return np.repeat(values.astype(np.int64), np.diff(self.starts))

    def documents_of(self, parts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(N,) which documents belong to the parts selected by the (P,) flags."""
        return np.repeat(parts, np.diff(self.starts))


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
    parts: Parts | None = None
    """Parts of the documents; None if parts and sources are not needed."""
    pieces: Mapping[int, SplitPieceLengths] = field(default_factory=dict)
    """For each length limit, the pieces of the documents that are longer; empty unless documents are split before
    packing.
    """
    held_out: int = 0
    """Held-out documents; they are not among the N."""
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
        return self._labels(self.owners, self.ends - self.begins, self.begins == 0)

    @cached_property
    def labels(self) -> int:
        """Labels trained in all documents together, if nothing is cut."""
        return int(self.labels_each.sum())

    def cut(self, limit: int, keep: Keep) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) tokens left of each document after truncation, and (N,) how many of them have a trained label."""
        kept = np.minimum(self.lengths, np.int32(limit))
        long = self.lengths > limit
        if not long.any():
            return kept, self.labels_each
        mine = np.flatnonzero(long[self.owners])
        owners, begins, ends = self.owners[mine], self.begins[mine], self.ends[mine]
        if keep is Keep.END:
            low = self.lengths[owners] - np.int32(limit)
            begins = np.maximum(begins, low)
            supervised, first = np.maximum(ends - begins, 0), begins == low
        else:
            supervised, first = np.maximum(np.minimum(ends, np.int32(limit)) - begins, 0), begins == 0
        # The first remaining token has no label.
        return kept, np.where(long, self._labels(owners, supervised, first & (supervised > 0)), self.labels_each)

    def _labels(
        self, owners: NDArray[np.int32], supervised: NDArray[np.int32], first: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        return np.bincount(owners, weights=supervised - first, minlength=len(self.lengths)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A histogram of non-negative integers."""

    values: NDArray[np.int64]
    """(U,) distinct numbers, ascending."""
    number: NDArray[np.int64]
    """(U,) how often each occurs."""

    @classmethod
    def of(cls, values: NDArray[np.int32]) -> "Counted":
        """Count the values of an array."""
        if len(values) and int(values.max()) > _DENSE + 4 * len(values):  # one document of millions of tokens
            found, number = np.unique(values, return_counts=True)
            return cls(found.astype(np.int64), number.astype(np.int64))
        often = np.bincount(values).astype(np.int64)
        there = np.flatnonzero(often).astype(np.int64)
        return cls(there, often[there])

    def multiples(self, step: int) -> int:
        """For each number, count the multiples of `step` below it (0 included); return the sum of these counts."""
        return int((-(-self.values // step) * self.number).sum())
