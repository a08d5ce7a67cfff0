"""What other lengths and strategies would give, computed from lengths and trained spans without encoding or layout.

The number of rows depends only on how many pieces there are of each size. So one pass over the documents makes a
histogram of pieces, from which `best_fit` counts the rows of the real plan, all documents in one window, copies where
they fit. Documents that a run cuts into pieces between lines are counted as if they were cut every `max_length` tokens;
those that `wrapped` cuts, as if at each length of a row. Where documents share tokens (`pack.share: row`), the pieces
are units of documents, which are found from token ids by who calls this.

Legend: `N` documents, `K` spans that the mask trains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..schemas.config.config import RunConfig
from ..schemas.layout import fill_of
from ..schemas.report.length_choice import Point
from ..schemas.tables.strategies import STRATEGIES
from .pack.bounds import bound_of_whole_pieces, size_counts
from .pack.plan_rows import count_rows

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""Lengths to compare: 256 to 131,072."""


@dataclass(frozen=True, eq=False)
class LengthStats:
    """Lengths and trained spans of the documents that passed the filters, before `max_length` is applied."""

    lengths: NDArray[np.int32]
    """(N,) tokens."""
    owners: NDArray[np.int32]
    """(K,) the document of each trained span, ascending."""
    begins: NDArray[np.int32]
    """(K,) first token of each span within its document."""
    ends: NDArray[np.int32]
    """(K,) one past the last token of each span."""
    longest: Sequence[tuple[str, int]] = ()
    """(id, tokens) of the few longest documents, the longest first; empty if the ids are unknown."""
    texts: bool = False
    """Whether nearly all tokens are those of plain texts."""
    in_all: int = 0
    """About how many documents there are, if these are a sample of them."""
    packed: NDArray[np.int32] | None = None
    """(P,) tokens that the configured length keeps of every packed document and copy, if the others are a sample of
    them. The rows of strategies are compared by these."""

    @cached_property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def labels_each(self) -> NDArray[np.int64]:
        """(N,) labels trained if nothing is cut: every token that the mask trains, except a document's first."""
        return self._summed(self.owners, self.ends - self.begins - (self.begins == 0))

    @cached_property
    def labels(self) -> int:
        """Labels trained in all documents together, if nothing is cut."""
        return int(self.labels_each.sum())

    def labels_within(self, limit: int, *, keep_end: bool) -> NDArray[np.int64]:
        """(N,) trained labels left of each document after truncation."""
        long = self.lengths > limit
        spans = np.flatnonzero(long[self.owners])
        owners = self.owners[spans]
        # The first token kept: of 100 tokens at a limit of 30, token 0, or 70.
        low = self.lengths[owners] - np.int32(limit) if keep_end else np.zeros_like(owners)
        begins = np.maximum(self.begins[spans], low)
        ends = np.minimum(self.ends[spans], low + np.int32(limit))
        # The first remaining token has no label.
        trained = np.maximum(ends - begins, 0)
        return np.where(long, self._summed(owners, trained - ((begins == low) & (trained > 0))), self.labels_each)

    def labels_in_pieces(self, limit: int) -> NDArray[np.int64]:
        """(N,) trained labels left of documents that are cut every `limit` tokens: a piece's first token has none."""
        # The cuts inside of a span: of its tokens 5 to 24, cut every 10, the cuts at 10 and 20. A document's own first
        # token has no label in any case.
        first_tokens = -(-self.ends // limit) + (-self.begins // limit) - (self.begins == 0)
        return self.labels_each - self._summed(self.owners, first_tokens)

    def _summed(self, owners: NDArray[np.int32], values: NDArray[np.integer]) -> NDArray[np.int64]:
        """(N,) the sum of values by the document that owns each. Sums below 2**53 are exact."""
        return np.bincount(owners, weights=values, minlength=len(self.lengths)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class SharedUnits:
    """Units of the documents that share tokens at one length, in rows of one capacity: of all groups, or a sample."""

    members: NDArray[np.int64]
    """(M,) tokens that the length keeps of each document that shares, copies apart."""
    units: NDArray[np.int64]
    """(U,) tokens that each unit of such documents takes in a row, with padding, copies apart."""
    stored: int
    """Tokens of all these units, without padding."""
    scale: float
    """Tokens of all groups over those of the groups that these are from; 1 if they are from all."""

    @property
    def saved(self) -> int:
        """Tokens of all groups that rows need not store."""
        return round((int(self.members.sum()) - self.stored) * self.scale)

    def in_place_of_members(self, counts: NDArray[np.int64], align: int) -> NDArray[np.int64]:
        """Pieces of each size if these documents are packed as units.

        Args:
            counts: (C + 1,) the same if each document is a piece by itself; sizes are in multiples of `align`.
        """
        capacity = len(counts) - 1
        more = size_counts(self.units // align, capacity) - size_counts(-(-self.members // align), capacity)
        if self.scale == 1:
            return counts + more
        # Of a sample, more documents of a size may be left out than there are. The pieces of all sizes are then made
        # fewer, so that their tokens stay those that are stored.
        sizes = np.arange(capacity + 1)
        expected = counts + more * self.scale
        possible = np.maximum(expected, 0)
        share = float(expected @ sizes) / max(float(possible @ sizes), 1.0)
        return np.rint(possible * share).astype(np.int64)


def rows_and_bound(
    kept: NDArray[np.integer],
    config: RunConfig,
    limit: int,
    strategy: str,
    row_length: int,
    shared: SharedUnits | None = None,
) -> tuple[int, int]:
    """The rows that a strategy needs, and a number of rows below which no plan of the same pieces can be.

    Three million lengths take 0.02 s by `bfd` and 0.2 to 0.7 s by `tight`, of one core's time.

    Args:
        kept: (N,) tokens that are packed of each document; 0 if it is left out.
        limit, strategy, row_length: as for `estimate`.
        shared: the units of the documents, if they are packed as such.
    """
    if STRATEGIES[strategy].joins_documents:  # which ignores alignment and `max_docs`
        rows = -(-int(kept.sum(dtype=np.int64)) // limit)
        return rows, rows
    align = config.pack.alignment.document
    full_pieces = 0
    sizes = kept
    if STRATEGIES[strategy].cuts_documents or config.truncate.overlong == "split":
        full_pieces = int((kept // limit).sum())
        sizes = kept % limit
    units = -(-sizes[sizes > 0] // align)
    counts = size_counts(units, row_length // align)
    counts[-(-limit // align)] += full_pieces
    if shared is not None:
        counts = shared.in_place_of_members(counts, align)
    rows = count_rows(counts, strategy, config.pack.max_docs)
    return rows, bound_of_whole_pieces(counts, config.pack.max_docs)


def estimate(
    stats: LengthStats,
    config: RunConfig,
    limit: int,
    strategy: str,
    row_length: int | None = None,
    shared: SharedUnits | None = None,
) -> Point:
    """What a strategy makes of the documents at one length. `bfd`, `none` and `tight` truncate, drop or split documents
    that are longer than `limit`, as configured; the others cut them where rows end.

    Args:
        row_length: capacity of the rows, at least `limit`, and `limit` for a strategy that cuts; None: `limit`.
        shared: what the documents can share at these lengths; it is packed so only if `pack.share` says so.
    """
    row_length = row_length or limit
    long = stats.lengths > limit
    keeps_all = STRATEGIES[strategy].cuts_documents or config.truncate.overlong == "split"
    if keeps_all:
        kept = stats.lengths.astype(np.int64)
        labels = stats.labels_in_pieces(limit)
        trained = stats.labels_each
    else:
        kept = np.where(long, 0 if config.truncate.overlong == "drop" else limit, stats.lengths).astype(np.int64)
        labels = trained = stats.labels_within(limit, keep_end=config.truncate.keep == "end")
    if not config.keep_untrained:
        kept = np.where(trained > 0, kept, 0)
    documents = int(np.count_nonzero(kept))
    tokens = int(kept.sum())
    labelled = int(labels[kept > 0].sum())
    is_shared = shared is not None and config.pack.share == "row"
    rows, bound = rows_and_bound(kept, config, limit, strategy, row_length, shared if is_shared else None)
    stored = tokens - shared.saved if shared is not None else tokens
    packed = stored if is_shared else tokens
    return Point(
        strategy=strategy,
        max_length=limit,
        row_length=row_length,
        documents=documents,
        documents_cut=int(np.count_nonzero(long & (kept > 0))),
        documents_lost=int(np.count_nonzero(stats.lengths)) - documents,
        rows=rows,
        bound=bound,
        tokens=packed,
        tokens_lost=stats.tokens - tokens,
        labels=labelled,
        labels_lost=stats.labels - labelled,
        fill=fill_of(packed, rows, row_length) if rows else 0.0,
        sharing_factor=tokens / max(stored, 1) if shared is not None else None,
    )
