"""What documents cost in training a decoder-only transformer, relative to each other.

1. **Matrices.** A token costs two operations for each weight that it is multiplied with, and the backward pass twice
   that: 6 for each parameter.
2. **Attention.** A document of ℓ tokens has ℓ²/2 pairs of a token and one that it sees. Each pair costs two operations
   for each dimension of its score, and two for each of its value. The backward pass costs twice that: 6 · ℓ² · hidden
   for each layer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The size of a decoder-only transformer, for its cost."""

    parameters: float = 6.7e9
    layers: int = 32
    hidden: int = 4096

    @property
    def attention_weight(self) -> float:
        """Cost of one unit of squared document length, in units of one token's matrix multiplications."""
        return self.hidden * self.layers / self.parameters

    def weigh(self, tokens: NDArray[np.integer], squares: NDArray[np.integer]) -> NDArray[np.float64]:
        """(R,) the cost of each row, in units of one token's matrix multiplications.

        Args:
            tokens: (R,) tokens of each row.
            squares: (R,) sum of the squared lengths of each row's documents.
        """
        return tokens.astype(np.float64) + self.attention_weight * squares.astype(np.float64)


SEVEN_BILLION = ModelShape()
