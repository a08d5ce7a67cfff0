"""What other lengths and strategies would give, computed from lengths and trained spans without encoding or layout.

The number of rows depends only on how many pieces there are of each size. So one pass over the documents makes a
histogram of pieces, from which `best_fit` counts the rows of the real plan, all documents in one window, copies where
they fit. Documents that are cut into pieces count as cut every `max_length` tokens, although a run with
`overlong: split` cuts between lines, and `wrapped` where a row ends. Where documents share tokens (`pack.share: row`),
the pieces are units of documents, which the caller finds from token ids.

Of preference pairs, a piece is a pair: both of its sides, which stand in one row.

Legend: `N` documents or pairs.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.layout import fill_of
from ...schemas.report.length_choice import Point
from ...schemas.tables.strategies import STRATEGIES
from ..pack.bounds import bound_of_whole_pieces, size_counts
from ..pack.plan_rows import count_rows
from .length_stats import LengthStats
from .pair_stats import PairStats

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""Lengths to compare: 256 to 131,072."""
Stats: TypeAlias = LengthStats | PairStats


@dataclass(frozen=True, slots=True, eq=False)
class SharedUnits:
    """Units of the documents that share tokens at one length, in rows of one capacity: of all groups, or a sample."""

    members: NDArray[np.int64]
    """(M,) tokens that the length keeps of each document that shares, once for each copy."""
    units: NDArray[np.int64]
    """(U,) tokens that each unit of such documents takes in a row, with padding, once for each copy."""
    stored: int
    """Tokens of all these units, without padding."""
    scale: float
    """How many times more tokens all groups have than the groups that were compared; 1 if all were."""

    @property
    def saved(self) -> int:
        """Tokens of all groups that rows need not store."""
        return round((int(self.members.sum()) - self.stored) * self.scale)

    def in_place_of_members(self, counts: NDArray[np.int64], align: int) -> NDArray[np.int64]:
        """How many pieces there are of each size if these documents are packed as units, and all others alone.

        Args:
            counts: (C + 1,) how many there are of each size if every document is a piece by itself. Sizes are in
                multiples of `align`, up to the capacity of a row, C.
        """
        # Pieces of 3, 3, 4 and 5 have counts of 0 0 0 2 1 1. If those of 3 and 4 are a unit of 5, a piece of 3 and one
        # of 4 go, and one of 5 comes: 0 0 0 −1 −1 +1. What is left is 0 0 0 1 0 2: pieces of 3, 5 and 5.
        capacity = len(counts) - 1
        unit_counts = size_counts(self.units // align, capacity)
        member_counts = size_counts(-(-self.members // align), capacity)
        changes = unit_counts - member_counts
        if self.scale == 1:
            return counts + changes
        # A sample may have more documents of a size, times the scale, than there are: −3 pieces of size 7, say. There
        # are then 0, and the pieces of all sizes are made fewer, so that together they store as many tokens as before.
        sizes = np.arange(capacity + 1)
        expected = counts + changes * self.scale
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
    *,
    documents_of_piece: int = 1,
) -> tuple[int, int]:
    """The rows that a strategy needs, and a number of rows below which no plan of the same pieces can be.

    Three million lengths take 0.02 s by `bfd` and 0.2 to 0.7 s by `tight`, of one core's time.

    Args:
        kept: (N,) tokens that are packed of each document; 0 if it is left out.
        limit: the most tokens of a piece.
        row_length: capacity of the rows, at least `limit`.
        shared: the units of the documents, if they are packed as units; else None.
        documents_of_piece: how many documents `pack.max_docs` counts for each: two of a preference pair.
    """
    # It ignores alignment and `max_docs`, and fills every row but the last. Its rows hold `limit` tokens.
    if STRATEGIES[strategy].joins_documents:
        rows = -(-int(kept.sum(dtype=np.int64)) // limit)
        return rows, rows
    full_pieces = 0
    sizes = kept
    if STRATEGIES[strategy].cuts_documents or config.truncate.overlong == "split":
        # Of 70 tokens at a limit of 32, two full pieces and one of 6.
        full_pieces = int((kept // limit).sum())
        sizes = kept % limit
    # Sizes are counted in multiples of what pieces are padded to: 10 tokens with a multiple of 8 are 2.
    align = config.pack.alignment.document
    multiples = -(-sizes[sizes > 0] // align)
    counts = size_counts(multiples, row_length // align)
    counts[-(-limit // align)] += full_pieces  # each has `limit` tokens
    if shared is not None:
        counts = shared.in_place_of_members(counts, align)
    max_pieces = None  # no limit
    if config.pack.max_docs is not None:
        max_pieces = config.pack.max_docs // documents_of_piece
    return count_rows(counts, strategy, max_pieces), bound_of_whole_pieces(counts, max_pieces)


def estimate(
    stats: Stats,
    config: RunConfig,
    limit: int,
    strategy: str,
    row_length: int | None = None,
    shared: SharedUnits | None = None,
) -> Point:
    """What a strategy makes of the documents at one length. `bfd`, `none` and `tight` truncate, drop or split documents
    that are longer than `limit`, as configured; the others cut them where rows end.

    Args:
        limit: the length: the most tokens of a document.
        row_length: capacity of the rows, at least `limit`; exactly `limit` for a strategy that cuts. None: `limit`.
        shared: what the documents can share at this length; None if that is not known, or nothing can be shared. Only
            if `pack.share` is configured, they are packed so; else it only gives `Point.sharing_factor`.
    """
    row_length = row_length or limit
    kept = stats.kept_at(config, limit, row_length, strategy)
    is_packed = kept.tokens > 0
    documents = int(np.count_nonzero(is_packed))
    tokens = int(kept.tokens.sum())
    labels = int(kept.labels[is_packed].sum())
    # What sharing saves is known of documents by comparing their tokens, of pairs by the lengths of their prompts. It
    # is None if nothing can be shared.
    saved = shared.saved if shared is not None else kept.saved
    stored = tokens - (saved or 0)
    is_shared = saved is not None and config.pack.shares
    packed = tokens
    units = None
    if is_shared:
        packed = stored
        units = shared  # None of pairs, of which `in_row` counts a shared prompt once already
    # Preference pairs that are not packed are a row each.
    rows = documents
    bound = documents
    if stats.are_packed:
        rows, bound = rows_and_bound(
            kept.in_row,
            config,
            limit,
            strategy,
            row_length,
            units,
            documents_of_piece=stats.documents_of_piece,
        )
    return Point(
        strategy=strategy,
        max_length=limit,
        row_length=row_length,
        documents=documents,
        documents_cut=int(np.count_nonzero(kept.is_long & is_packed)),
        documents_lost=int(np.count_nonzero(stats.lengths)) - documents,  # an empty document is no loss
        rows=rows,
        bound=bound,
        tokens=packed,
        tokens_lost=stats.tokens - tokens,
        labels=labels,
        labels_lost=stats.labels - labels,
        fill=fill_of(packed, rows, row_length) if rows else 0.0,  # without rows, nothing is full
        sharing_factor=tokens / max(stored, 1) if saved is not None else None,
    )
