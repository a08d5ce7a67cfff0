"""The documents for which lengths are compared: their lengths, their trained spans, and what a length keeps of them.

Legend: `N` documents, `K` spans that the mask trains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.tables.strategies import STRATEGIES


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What a length keeps of N documents or preference pairs."""

    tokens: NDArray[np.int64]
    """(N,) tokens packed of each if nothing is shared; 0 if it is left out."""
    in_row: NDArray[np.int64]
    """(N,) tokens that each takes in a row: of a document without padding, of a pair those of both sides with it."""
    labels: NDArray[np.int64]
    """(N,) trained labels of each, also of those left out."""
    is_long: NDArray[np.bool_]
    """(N,) whether each is longer than the limit."""
    saved: int | None = None
    """Of preference pairs: tokens of prompts that need not stand in a row twice (`pack.share: row`). None where pairs
    cannot share, and of documents, which are compared token by token."""


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
    """About how many documents there are; more than N if these are a sample."""
    are_packed: bool = True
    """Whether rows are planned for them; else each is a row, whatever its length."""
    documents_of_piece: int = 1
    """How many documents each counts for `pack.max_docs`."""
    packed: NDArray[np.int32] | None = None
    """(P,) tokens that the configured length keeps of every packed document, once for each copy, if the arrays above
    are of a sample; else None. The rows of strategies are compared by these: more documents fill rows better."""

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
        """(N,) trained labels left of each document after truncation to `limit` tokens.

        Args:
            keep_end: whether its last tokens are kept, not its first.
        """
        # Only spans of long documents are looked at: the others keep all their labels.
        long = self.lengths > limit
        spans = np.flatnonzero(long[self.owners])
        owners = self.owners[spans]
        # The first token kept: of 100 tokens at a limit of 30, token 0, or 70.
        low = np.zeros_like(owners)
        if keep_end:
            low = self.lengths[owners] - np.int32(limit)
        begins = np.maximum(self.begins[spans], low)
        ends = np.minimum(self.ends[spans], low + np.int32(limit))
        trained = np.maximum(ends - begins, 0)
        # The first remaining token has no label, because nothing before it predicts it.
        first_tokens = (begins == low) & (trained > 0)
        return np.where(long, self._summed(owners, trained - first_tokens), self.labels_each)

    def labels_in_pieces(self, limit: int) -> NDArray[np.int64]:
        """(N,) trained labels left of documents that are cut every `limit` tokens: a piece's first token has none."""
        # Cut every 10, the span of tokens 5 to 24 has two first tokens of pieces, 10 and 20: its end 25 and its begin 5
        # are rounded up to 3 and 1 pieces, and 3 − 1 = 2. A document's own first token is none of them here, because
        # `labels_each` has no label for it.
        pieces_to_end = -(-self.ends // limit)
        pieces_to_begin = -(-self.begins // limit)
        first_tokens = pieces_to_end - pieces_to_begin - (self.begins == 0)
        return self.labels_each - self._summed(self.owners, first_tokens)

    def _summed(self, owners: NDArray[np.int32], values: NDArray[np.integer]) -> NDArray[np.int64]:
        """(N,) the sum of values by the document that owns each. Sums below 2**53 are exact."""
        return np.bincount(owners, weights=values, minlength=len(self.lengths)).astype(np.int64)

    def kept_at(self, config: RunConfig, limit: int, row_length: int, strategy: str) -> Kept:
        """What a length keeps of each document.

        Args:
            limit: the most tokens of a document, or where documents are cut, of a piece.
            row_length: not used; preference pairs need it.
        """
        long = self.lengths > limit
        if STRATEGIES[strategy].cuts_documents or config.truncate.overlong == "split":
            tokens = self.lengths.astype(np.int64)
            labels = self.labels_in_pieces(limit)
            # A run decides whether to pack a document before it cuts it into pieces.
            trained = self.labels_each
        else:
            kept_of_long = 0 if config.truncate.overlong == "drop" else limit
            tokens = np.where(long, kept_of_long, self.lengths).astype(np.int64)
            labels = self.labels_within(limit, keep_end=config.truncate.keep == "end")
            trained = labels
        if not config.keep_untrained:
            tokens = np.where(trained > 0, tokens, 0)
        # Padding comes later, because it depends on the pieces that a document is cut into.
        return Kept(tokens=tokens, in_row=tokens, labels=labels, is_long=long)
