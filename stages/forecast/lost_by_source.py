"""What each source loses at one length. One source may lose everything while the total loss is small."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .length_stats import LengthStats
from .sweep import SweepOptions


@dataclass(frozen=True, slots=True)
class Loss:
    """Losses of one source at one length with one strategy; see `PackingEstimate` for the counts."""

    source: int
    documents: int
    """Documents of the source, including those left out."""
    documents_cut: int
    documents_lost: int
    longest: int
    """Tokens of the longest document."""
    tokens: int
    """Tokens of the source."""
    tokens_lost: int
    labels: int
    """Trained tokens of the source."""
    labels_lost: int


def lost_by_source(stats: LengthStats, limit: int, strategy: str, options: SweepOptions) -> list[Loss]:
    """Losses of each source that has a document, in the order of sources; empty if the stats have no sources.

    Args:
        strategy: `bfd` or `bfd_split`. What `wrapped` cuts depends on where rows end.
    """
    if stats.parts is None:
        return []
    kept, labels, cut = _whole(stats, limit, options) if strategy == "bfd_split" else _cut(stats, limit, options)
    columns: Sequence[NDArray[np.integer | np.bool_]] = (
        stats.lengths > 0,
        cut,
        (stats.lengths > 0) & (kept == 0),
        stats.lengths,
        stats.lengths - kept,
        stats.labels_each,
        stats.labels_each - labels,
    )
    sums = [stats.parts.sums(column) for column in columns]
    out = []
    for source in np.unique(stats.parts.sources).tolist():
        mine = stats.parts.sources == source
        documents, shorter, lost, tokens, tokens_lost, supervised, asked_lost = (int(one[mine].sum()) for one in sums)
        longest = int(stats.lengths[stats.parts.documents_of(mine)].max(initial=0))
        if documents:
            out.append(Loss(source, documents, shorter, lost, longest, tokens, tokens_lost, supervised, asked_lost))
    return out


def _cut(
    stats: LengthStats, limit: int, options: SweepOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """(N,) tokens and (N,) labels left of each document, and (N,) whether it is cut but not left out."""
    long = stats.lengths > limit
    if options.split:
        count, pieces = len(stats.lengths), stats.pieces.get(limit)
        kept, labels = np.where(long, 0, stats.lengths).astype(np.int64), np.where(long, 0, stats.labels_each)
        if pieces is not None:
            fresh = pieces.lengths if pieces.overlap is None else pieces.lengths - pieces.overlap
            kept += np.bincount(pieces.owners, weights=fresh, minlength=count).astype(np.int64)
            labels += np.bincount(pieces.owners, weights=pieces.labels, minlength=count).astype(np.int64)
    else:
        short, labels = stats.cut(limit, options.keep)
        kept = np.where(long & options.drop, 0, short).astype(np.int64)
    if not options.keep_untrained:
        kept = np.where(labels > 0, kept, 0)
    return kept, np.where(kept > 0, labels, 0), long & (kept > 0)


def _whole(
    stats: LengthStats, limit: int, options: SweepOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """As `_cut`, for a strategy that cuts every `limit` tokens: only untrained documents lose tokens."""
    kept = stats.lengths.astype(np.int64)
    if not options.keep_untrained:
        kept = np.where(stats.labels_each > 0, kept, 0)
    # Labels lost at the first tokens of pieces. A document's own first token never has a label.
    heads = -(-stats.ends // limit) + (-stats.begins // limit) - (stats.begins == 0)
    lost = np.bincount(stats.owners, weights=heads, minlength=len(kept)).astype(np.int64)
    return kept, np.where(kept > 0, stats.labels_each - lost, 0), (stats.lengths > limit) & (kept > 0)
