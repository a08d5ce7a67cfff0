"""What the rows of a run look like: their columns, padding and weights."""

from dataclasses import dataclass

import pyarrow as pa

from ...schemas.layout import Alignment
from ...schemas.rows import PREFERENCE, packed_schema
from ...stages.select.truncate import Limits

TOKEN_BYTES, WEIGHT_BYTES, PAIR_TOKEN_BYTES = 12, 4, 4
"""Bytes per token of a row: input_ids, labels and position_ids; loss_weights beside them; the ids of a pair."""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """What the loss weights of runs are multiplied by."""

    sources: tuple[float, ...]
    """The weight of each source."""
    by_document: bool
    """Whether the weights of a piece are divided by its number of trained labels."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """What the rows of a run look like."""

    alignment: Alignment
    pad_id: int
    """The token id for alignment padding."""
    weights: LossWeights | None = None
    """None for rows without `loss_weights`."""
    pairs: Limits | None = None
    """The limits of preference pairs; None for packed rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""
        if self.pairs is not None:
            return PREFERENCE
        return packed_schema(unpadded=self.alignment.unpadded, weights=self.weights is not None)

    @property
    def token_bytes(self) -> int:
        """Bytes per token of a row."""
        if self.pairs is not None:
            return PAIR_TOKEN_BYTES
        return TOKEN_BYTES + WEIGHT_BYTES * (self.weights is not None)
