"""Counts that describe one batching strategy at one length."""

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
    """Number of rows, or of batches for `padded` and `padding_free`."""
    bound: int
    """Lower bound on the number of rows that any plan of the same pieces needs; for batches, their number."""
    tokens: int
    """Packed tokens, without padding."""
    tokens_lost: int
    """Tokens truncated, or in documents and pieces that are left out."""
    slots: int
    """Positions that the batches compute: tokens and padding. For packed strategies these are whole rows, because
    batches of a fixed shape compute every position.
    """
    labels: int
    """Trained labels."""
    labels_lost: int
    squares: int
    """Sum of squared lengths, the cost of attention: of aligned pieces, or of padded documents for `padded`."""
    padding: int = 0
    """Padding inside the rows that aligns the pieces."""
    overlap: int = 0
    """Tokens repeated at the start of a piece. `tokens - overlap + tokens_lost` is the number of tokens before
    cutting."""

    @property
    def fill(self) -> float:
        """Share of the slots that hold tokens, 0 to 1; of packed rows, see `schemas.layout.fill_of`."""
        return fill_of(self.tokens, 1, self.slots) if self.slots else 0.0

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of the bound."""
        return self.rows / self.bound - 1 if self.bound else 0.0

    @property
    def computed(self) -> int:
        """Positions that a device computes if packed rows are laid end to end, with no padding except alignment."""
        return self.slots if self.strategy == "padded" else self.tokens + self.padding
