"""What other lengths and strategies would give, computed from lengths and runs without encoding or layout.

The number of rows depends only on how many pieces there are of each size. So each candidate makes a histogram in one
pass over the documents, and `best_fit` counts the rows of the real plan from it, all documents in one window, copies
wherever they fit. Documents that a run cuts into pieces, at row ends or between lines, are counted as if they were cut
every `max_length` tokens.

Legend as in `length_stats.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.layout import fill_of
from ...schemas.report import Point
from ..pack.best_fit import rows_needed
from ..pack.bounds import bound_of_whole_pieces, least_rows, size_counts
from ..pack.tight import tight_rows
from ..select.truncate import Keep
from .length_stats import LengthStats

CANDIDATES = tuple(1 << power for power in range(8, 18))
"""256 to 131,072."""
CUTTING = ("bfd_split", "wrapped")
"""Strategies that cut documents into pieces themselves."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options shared by all candidates."""

    keep: Keep = Keep.START
    drop: bool = False
    """Leave out documents that are too long instead of truncating them. Strategies that cut documents still cut them.
    """
    split: bool = False
    """Cut documents that are too long into pieces, whatever the strategy."""
    keep_untrained: bool = False
    max_docs: int | None = None
    align: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Left:
    """What a length leaves of each document, before rows cut anything."""

    kept: NDArray[np.int64]
    """(N,) tokens, each counted once; 0 for a document that is left out."""
    labels: NDArray[np.int64]
    """(N,) trained labels."""
    cut: NDArray[np.bool_]
    """(N,) whether it is shortened, or cut into pieces."""


def sweep(
    stats: LengthStats, candidates: Sequence[int], strategies: Sequence[str], options: SweepOptions
) -> list[Point]:
    """Estimate every strategy at every length, in the order of the lengths. `bfd`, `none` and `tight` truncate, drop or
    split documents that are too long, depending on the options.
    """
    return [_point(stats, limit, strategy, options) for limit in candidates for strategy in strategies]


def _left(stats: LengthStats, limit: int, whole: bool, options: SweepOptions) -> _Left:
    """What is left of each document.

    Args:
        whole: whether documents are cut every `limit` tokens, so that only untrained ones lose tokens.
    """
    long = stats.lengths > limit
    if whole:
        kept, labels = stats.lengths.astype(np.int64), stats.labels_each
    else:
        kept = np.where(long, 0 if options.drop else limit, stats.lengths).astype(np.int64)
        labels = stats.labels_within(limit, options.keep)
    if not options.keep_untrained:
        kept = np.where(labels > 0, kept, 0)
    if whole:
        # Labels lost at the first tokens of pieces. A document's own first token never has a label.
        heads = -(-stats.ends // limit) + (-stats.begins // limit) - (stats.begins == 0)
        labels = labels - stats.summed(stats.owners, heads)
    return _Left(kept, np.where(kept > 0, labels, 0), long & (kept > 0))


def _point(stats: LengthStats, limit: int, strategy: str, options: SweepOptions) -> Point:
    whole = options.split or strategy in CUTTING
    left = _left(stats, limit, whole, options)
    tokens, labels, cut = int(left.kept.sum()), int(left.labels.sum()), int(np.count_nonzero(left.cut))
    sizes, full, padding = left.kept, 0, 0
    if whole:
        full, sizes = int((sizes // limit).sum()), sizes % limit
    sizes = sizes[sizes > 0]
    pieces = len(sizes) + full
    if strategy == "wrapped":  # which ignores alignment and `max_docs`
        rows = bound = least_rows(tokens, limit)
    else:
        units = -(-sizes // options.align)
        padding = int(units.sum()) * options.align - int(sizes.sum())
        counts = size_counts(units, limit // options.align)
        counts[-1] += full
        rows, bound = rows_needed(counts, options.max_docs), bound_of_whole_pieces(counts, options.max_docs)
        if strategy == "tight" and rows > bound:
            rows = len(tight_rows(units, counts, options.max_docs).row_offsets) - 1
        elif strategy == "none":
            rows = pieces
    documents = int(np.count_nonzero(left.kept))
    return Point(
        strategy=strategy,
        max_length=limit,
        documents=documents,
        documents_cut=cut,
        documents_lost=stats.documents - documents,
        pieces=pieces,
        rows=rows,
        bound=bound,
        tokens=tokens,
        tokens_lost=stats.tokens - tokens,
        labels=labels,
        labels_lost=stats.labels - labels,
        fill=fill_of(tokens, rows, limit) if rows else 0.0,
        padding=padding,
    )
