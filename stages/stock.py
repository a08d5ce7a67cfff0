"""The stock: documents to be packed as far as lengths go, and what a limit makes of them.

Legend: `N` documents, `K` runs that the mask asks for, `P` parts, `S` pieces, `U` distinct numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .truncate import Keep

Compose: TypeAlias = Callable[[NDArray[np.int64]], Sequence[NDArray[np.int64]]]
"""Of the tokens of P parts, which parts are planned together; see `pipeline.windows.compose`."""
_DENSE = 1 << 22
"""Numbers up to here are counted one by one, larger ones by sorting."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """What documents are cut into that are longer than some length, of those pieces that stay."""

    owners: NDArray[np.int32]
    """(S,) the document of each; never falling."""
    lengths: NDArray[np.int32]
    """(S,) tokens."""
    labels: NDArray[np.int32]
    """(S,) how many of them count."""
    overlap: NDArray[np.int32] | None = None
    """(S,) tokens that the piece before has, too; None: nowhere any."""

    def take(self, index: NDArray[np.int64], owners: NDArray[np.int32]) -> "Pieces":
        """Some of them, in this order, as those of other documents."""
        overlap = None if self.overlap is None else self.overlap[index]
        return Pieces(owners, self.lengths[index], self.labels[index], overlap)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Where documents come from: P parts, each of one source."""

    starts: NDArray[np.int64]
    """(P + 1,) the first document of each."""
    sources: NDArray[np.int32]
    """(P,) the number of its source."""

    def sums(self, values: NDArray[np.integer | np.bool_]) -> NDArray[np.int64]:
        """(P,) the sum of (N,) values over each part."""
        running = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=running[1:])
        return np.diff(running[self.starts])

    def of_documents(self, values: NDArray[np.integer]) -> NDArray[np.int64]:
        """(N,) what (P,) values say of each document's part."""
        return np.repeat(values.astype(np.int64), np.diff(self.starts))

    def documents_of(self, parts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(N,) which documents are of these parts, (P,)."""
        return np.repeat(parts, np.diff(self.starts))


@dataclass(frozen=True, eq=False)
class Stock:
    """Documents to be packed, as far as lengths go: after filters and other limits, before `max_length`."""

    lengths: NDArray[np.int32]
    """(N,) tokens."""
    owners: NDArray[np.int32]
    """(K,) the document of each run that the mask asks for; rising."""
    begins: NDArray[np.int32]
    """(K,) its first token within the document."""
    ends: NDArray[np.int32]
    """(K,) one past its last."""
    parts: Parts | None = None
    """None where nobody asks which part or source a document is of."""
    pieces: Mapping[int, Pieces] = field(default_factory=dict)
    """By length, where documents are split before packing: of those that are longer."""
    held_out: int = 0
    """Documents that the configuration holds out; they are none of the N."""

    @cached_property
    def tokens(self) -> int:
        """In all."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def documents(self) -> int:
        """Those that have a token."""
        return int(np.count_nonzero(self.lengths))

    @cached_property
    def labels_each(self) -> NDArray[np.int64]:
        """(N,) tokens that would be trained if nothing were cut: all asked for, but for a document's first token."""
        return self._labels(self.owners, self.ends - self.begins, self.begins == 0)

    @cached_property
    def labels(self) -> int:
        """The same in all."""
        return int(self.labels_each.sum())

    def cut(self, limit: int, keep: Keep) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(N,) tokens that truncation leaves of each document, and (N,) how many of them are labels that count."""
        kept = np.minimum(self.lengths, np.int32(limit))
        long = self.lengths > limit
        if not long.any():
            return kept, self.labels_each
        mine = np.flatnonzero(long[self.owners])
        owners, begins, ends = self.owners[mine], self.begins[mine], self.ends[mine]
        if keep is Keep.END:
            low = self.lengths[owners] - np.int32(limit)
            begins = np.maximum(begins, low)
            asked, first = np.maximum(ends - begins, 0), begins == low
        else:
            asked, first = np.maximum(np.minimum(ends, np.int32(limit)) - begins, 0), begins == 0
        # The first token of what stays has no label.
        return kept, np.where(long, self._labels(owners, asked, first & (asked > 0)), self.labels_each)

    def _labels(
        self, owners: NDArray[np.int32], asked: NDArray[np.int32], first: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        return np.bincount(owners, weights=asked - first, minlength=len(self.lengths)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Whole numbers from 0 on, equal ones counted together."""

    values: NDArray[np.int64]
    """(U,) rising."""
    number: NDArray[np.int64]
    """(U,) how often each is there."""

    @classmethod
    def of(cls, values: NDArray[np.int32]) -> "Counted":
        """Those of an array."""
        if len(values) and int(values.max()) > _DENSE + 4 * len(values):  # one document of millions of tokens
            found, number = np.unique(values, return_counts=True)
            return cls(found.astype(np.int64), number.astype(np.int64))
        often = np.bincount(values).astype(np.int64)
        there = np.flatnonzero(often).astype(np.int64)
        return cls(there, often[there])

    def multiples(self, step: int) -> int:
        """Over all of them, the multiples of `step` below each, 0 among them."""
        return int((-(-self.values // step) * self.number).sum())
