"""Estimates for the strategies that cut documents themselves: `bfd_split` and `wrapped`.

Legend as in `length_stats.py`; `M` documents with trained tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import starts_of
from ..pack.bounds import least_rows
from ..pack.row_count import in_units, rows_and_bound
from .length_stats import Compose, Counted, LengthStats
from .packing_estimate import PackingEstimate


class _Counts(NamedTuple):
    """Counts for one strategy in one window."""

    cut: int
    """Documents that are cut."""
    pieces: int
    rows: int
    bound: int
    heads: int
    """Labels lost because they are a piece's first token."""
    padding: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class UncutDocuments:
    """Documents with trained tokens, grouped by window and not truncated."""

    stats: LengthStats
    windows: Sequence["_Window"]

    @classmethod
    def of(cls, stats: LengthStats, keep_untrained: bool, compose: Compose | None) -> "UncutDocuments":
        """Args:
        compose: groups parts into planning windows; None plans all parts together.
        """
        there = stats.lengths > 0
        if not keep_untrained:
            there &= stats.labels_each > 0
        found: Sequence[NDArray[np.int64]] = ()
        if compose is not None and stats.parts is not None:
            found = compose(stats.parts.sums(np.where(there, stats.lengths, 0)))
        if len(found) < 2 or stats.parts is None:
            return cls(stats, [_Window.of(stats, there)])
        windows = []
        for parts in found:
            mine = np.zeros(len(stats.parts.sources), dtype=np.bool_)
            mine[parts] = True
            windows.append(_Window.of(stats, there & stats.parts.documents_of(mine)))
        return cls(stats, windows)

    def split(self, limit: int, align: int, max_docs: int | None) -> PackingEstimate:
        """Cut every `limit` tokens and pack by best-fit-decreasing."""
        return self._outcome("bfd_split", limit, [window.split(limit, align, max_docs) for window in self.windows])

    def wrapped(self, limit: int) -> PackingEstimate:
        """Lay documents end to end and cut where rows end."""
        return self._outcome("wrapped", limit, [window.wrapped(limit) for window in self.windows])

    def _outcome(self, strategy: str, limit: int, counts: Sequence[_Counts]) -> PackingEstimate:
        total = _Counts(*map(sum, zip(*counts, strict=True)))
        documents = sum(len(window.begins) for window in self.windows)
        tokens = sum(window.tokens for window in self.windows)
        labels = sum(window.supervised for window in self.windows) - total.heads
        return PackingEstimate(
            strategy=strategy,
            max_length=limit,
            documents=documents,
            documents_cut=total.cut,
            documents_lost=self.stats.documents - documents,
            pieces=total.pieces,
            rows=total.rows,
            bound=total.bound,
            tokens=tokens,
            tokens_lost=self.stats.tokens - tokens,
            labels=labels,
            labels_lost=self.stats.labels - labels,
            padding=total.padding,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Documents planned together. Positions count tokens of all of them laid end to end."""

    begins: NDArray[np.int64]
    """(M,) first token of each document."""
    ends: NDArray[np.int64]
    """(M,) end of each document: one past its last token."""
    run_begins: NDArray[np.int64]
    """(K,) first token of each run."""
    run_ends: NDArray[np.int64]
    """(K,) end of each run: one past its last token."""
    supervised: int
    """Tokens of the trained runs."""
    first: NDArray[np.int64]
    """Beginnings of the documents whose first token the mask trains."""
    sizes: Counted
    """Histogram of document lengths."""
    marks: tuple[Counted, Counted]
    """Histograms of where runs begin and end within their documents."""

    @property
    def tokens(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @classmethod
    def of(cls, stats: LengthStats, there: NDArray[np.bool_]) -> "_Window":
        """Args:
        there: (N,) which documents belong to the window.
        """
        every = there.all()
        mine = there[stats.owners]
        lengths = np.where(there, stats.lengths, 0).astype(np.int64)
        base = starts_of(lengths)
        owners, begins, ends = (
            (column if every else column[mine]) for column in (stats.owners, stats.begins, stats.ends)
        )
        bases = base[owners]
        base, lengths = base[there], lengths[there]
        return cls(
            base,
            base + lengths,
            bases + begins,
            bases + ends,
            int((ends - begins).sum(dtype=np.int64)),
            bases[begins == 0],
            Counted.of(stats.lengths[there]),
            (Counted.of(begins), Counted.of(ends)),
        )

    def split(self, limit: int, align: int, max_docs: int | None) -> _Counts:
        # Loop over lengths, of which there are fewer than documents.
        lengths, number = self.sizes.values, self.sizes.number
        full, rest = np.divmod(lengths, limit)
        left = np.bincount(rest, weights=number, minlength=limit).astype(np.int64)
        left[0] = 0
        units = in_units(np.arange(limit), align)
        counts = np.bincount(units, weights=left, minlength=limit // align + 1).astype(np.int64)
        padding = int((left * (units * align - np.arange(limit))).sum()) if align > 1 else 0
        whole_pieces = int((full * number).sum())
        counts[-1] += whole_pieces
        rows, bound = rows_and_bound(counts, max_docs)
        begins, ends = self.marks
        heads = ends.multiples(limit) - begins.multiples(limit)
        cut = int(number[lengths > limit].sum())
        return _Counts(cut, whole_pieces + int(left.sum()), rows, bound, heads, padding)

    def wrapped(self, limit: int) -> _Counts:
        begins, ends = self.begins, self.ends
        rows = least_rows(self.tokens, limit)
        # A document is a first piece up to the end of its row, full rows, and a last piece.
        first = np.minimum(_upwards(begins, limit) * limit, ends) - begins
        last = np.maximum(ends - np.maximum(_downwards(ends, limit) * limit, begins + first), 0)
        full = (int((ends - begins - first - last).sum())) // limit
        pieces = int(np.count_nonzero(first)) + full + int(np.count_nonzero(last))
        # Beginnings of rows, and of documents that begin inside a row.
        at_rows = int(_upwards(self.run_ends, limit).sum()) - int(_upwards(self.run_begins, limit).sum())
        heads = at_rows + int(np.count_nonzero(self.first % limit))
        cut = int(np.count_nonzero(_downwards(begins, limit) != _downwards(ends - 1, limit)))
        return _Counts(cut, pieces, rows, rows, heads)


def _downwards(values: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """`values // step`; shifts for powers of two, which is several times as fast."""
    return values >> (step.bit_length() - 1) if step & (step - 1) == 0 else values // step


def _upwards(values: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """`values / step`, rounded up."""
    return _downwards(values + (step - 1), step)
