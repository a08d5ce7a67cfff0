"""What one way to batch makes of documents at one length, in counts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one strategy makes of the stock at one length."""

    strategy: str
    max_length: int
    documents: int
    """That are packed, whole or in part."""
    documents_cut: int
    """Of them, those that lose tokens (by truncation) or are cut into several pieces (before packing, or by the
    strategy)."""
    documents_lost: int
    """Left out, because nothing that is trained is left of them, or because they are too long and are not cut."""
    pieces: int
    rows: int
    """Of `padded` and `padding_free`: batches."""
    bound: int
    """Fewest rows that any plan of the same pieces could have; of batches, their number."""
    tokens: int
    """Packed, padding not counted."""
    tokens_lost: int
    """Truncated, or of documents and pieces that are left out."""
    slots: int
    """Room that they take: tokens and padding, and of a packed strategy whole rows. Batches of a fixed shape compute
    all of it."""
    labels: int
    """Trained."""
    labels_lost: int
    squares: int
    """Σℓ² over what attends to each other: pieces with their alignment; in `padded`, documents with their padding."""
    padding: int = 0
    """Tokens that alignment puts behind pieces, within the rows."""
    overlap: int = 0
    """Tokens that stand at the head of a piece again. `tokens - overlap + tokens_lost` is the stock."""

    @property
    def fill(self) -> float:
        """Tokens in the room they take, 0 to 1."""
        return self.tokens / self.slots if self.slots else 0.0

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of it."""
        return self.rows / self.bound - 1 if self.bound else 0.0

    @property
    def computed(self) -> int:
        """Tokens that a device computes: packed rows are laid end to end, and nothing but alignment fills them up."""
        return self.slots if self.strategy == "padded" else self.tokens + self.padding

    def flops(self, parameters: float, layers: int, hidden: int) -> tuple[float, float]:
        """(attention, all) floating-point operations of one epoch, forward and backward.

        A token costs 6·parameters; causal attention over ℓ tokens costs 6·ℓ²·hidden in each layer (half of the square,
        for scores and for values, once forward and twice backward).
        """
        attention = 6.0 * self.squares * hidden * layers
        return attention, attention + 6.0 * parameters * self.computed
