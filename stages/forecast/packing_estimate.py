"""Counts that describe one strategy at one length."""

from dataclasses import dataclass

from ...schemas.layout import fill_of


@dataclass(frozen=True, slots=True)
class PackingEstimate:
    """Counts for one strategy at one length."""

    strategy: str
    max_length: int
    documents: int
    """Documents packed, whole or in part."""
    documents_cut: int
    """Packed documents that truncation shortens, or that are cut into pieces before packing or by the strategy."""
    documents_lost: int
    """Documents left out because nothing trained remains, or because they are too long and not cut."""
    pieces: int
    rows: int
    bound: int
    """Lower bound on the number of rows that any plan of the same pieces needs."""
    tokens: int
    """Packed tokens, without padding."""
    tokens_lost: int
    """Tokens truncated, or in documents and pieces that are left out."""
    labels: int
    """Trained labels."""
    labels_lost: int
    padding: int = 0
    """Padding inside the rows that aligns the pieces."""
    overlap: int = 0
    """Tokens repeated at the start of a piece. `tokens - overlap + tokens_lost` is the number of tokens before
    cutting."""

    @property
    def fill(self) -> float:
        """Share of the rows that holds tokens, 0 to 1; see `schemas.layout.fill_of`."""
        return fill_of(self.tokens, self.rows, self.max_length) if self.rows else 0.0
