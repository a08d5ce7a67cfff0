"""What each source loses at one length: it may be all of it, where all sources together hardly lose anything."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .stock import Stock
from .sweep import SweepOptions


@dataclass(frozen=True, slots=True)
class Loss:
    """Of one source, at one length, with one strategy. `Outcome` says what the counts are."""

    source: int
    documents: int
    """Of the stock, those that are left out among them."""
    documents_cut: int
    documents_lost: int
    longest: int
    """Tokens of its longest document."""
    tokens: int
    """Of the stock."""
    tokens_lost: int
    labels: int
    """Of the stock."""
    labels_lost: int


def losses(stock: Stock, limit: int, strategy: str, options: SweepOptions) -> list[Loss]:
    """Of each source that has a document, in their order; nothing where the stock does not know its sources.

    Args:
        strategy: `bfd` or `bfd_split`. What `wrapped` cuts depends on where rows end.
    """
    if stock.parts is None:
        return []
    kept, labels, cut = _whole(stock, limit, options) if strategy == "bfd_split" else _cut(stock, limit, options)
    columns: Sequence[NDArray[np.integer | np.bool_]] = (
        stock.lengths > 0,
        cut,
        (stock.lengths > 0) & (kept == 0),
        stock.lengths,
        stock.lengths - kept,
        stock.labels_each,
        stock.labels_each - labels,
    )
    sums = [stock.parts.sums(column) for column in columns]
    out = []
    for source in np.unique(stock.parts.sources).tolist():
        mine = stock.parts.sources == source
        documents, shorter, lost, tokens, tokens_lost, asked, asked_lost = (int(one[mine].sum()) for one in sums)
        longest = int(stock.lengths[stock.parts.documents_of(mine)].max(initial=0))
        if documents:
            out.append(Loss(source, documents, shorter, lost, longest, tokens, tokens_lost, asked, asked_lost))
    return out


def _cut(
    stock: Stock, limit: int, options: SweepOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """(N,) tokens and labels that stay of each document, and (N,) whether it is cut and not left out."""
    long = stock.lengths > limit
    if options.split:
        count, pieces = len(stock.lengths), stock.pieces.get(limit)
        kept, labels = np.where(long, 0, stock.lengths).astype(np.int64), np.where(long, 0, stock.labels_each)
        if pieces is not None:
            fresh = pieces.lengths if pieces.overlap is None else pieces.lengths - pieces.overlap
            kept += np.bincount(pieces.owners, weights=fresh, minlength=count).astype(np.int64)
            labels += np.bincount(pieces.owners, weights=pieces.labels, minlength=count).astype(np.int64)
    else:
        short, labels = stock.cut(limit, options.keep)
        kept = np.where(long & options.drop, 0, short).astype(np.int64)
    if not options.keep_untrained:
        kept = np.where(labels > 0, kept, 0)
    return kept, np.where(kept > 0, labels, 0), long & (kept > 0)


def _whole(
    stock: Stock, limit: int, options: SweepOptions
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The same where the strategy cuts at each `limit` tokens: no token is lost but those of untrained documents."""
    kept = stock.lengths.astype(np.int64)
    if not options.keep_untrained:
        kept = np.where(stock.labels_each > 0, kept, 0)
    # Beginnings of pieces that the mask asks for; that of the document has no label in any case.
    heads = -(-stock.ends // limit) + (-stock.begins // limit) - (stock.begins == 0)
    lost = np.bincount(stock.owners, weights=heads, minlength=len(kept)).astype(np.int64)
    return kept, np.where(kept > 0, stock.labels_each - lost, 0), (stock.lengths > limit) & (kept > 0)
