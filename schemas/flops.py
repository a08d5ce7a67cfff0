"""Floating-point operations of training a decoder-only transformer, forward and backward.

1. **Matrices.** A token costs two operations for each weight that it is multiplied with, and the backward pass twice
   that. For a frozen matrix, the backward pass costs only the half that goes on to the layers before.
2. **Attention.** A document of ℓ tokens has ℓ²/2 pairs of a token and one that it sees. Each pair costs two operations
   per dimension of a head for its score, and two for its value. The backward pass costs twice that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def matrix_flops(weights: float, tokens: float, *, trained: bool = True) -> float:
    """FLOPs of matrices with this many weights, for this many tokens."""
    return (6.0 if trained else 4.0) * weights * tokens


def attention_flops(pairs: float, dims: int, layers: int) -> float:
    """FLOPs of attention for this many pairs of a token and one that it sees.

    Args:
        dims: dimensions of scores and of values together, over all query heads.
    """
    return 6.0 * pairs * dims * layers


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

    def attention(self, squares: float) -> float:
        """FLOPs of attention in documents with this sum of squared lengths."""
        return attention_flops(squares / 2, 2 * self.hidden, self.layers)

    def flops(self, tokens: float, squares: float) -> float:
        """FLOPs of documents with this many tokens and this sum of squared lengths."""
        return matrix_flops(self.parameters, tokens) + self.attention(squares)

    def weigh(self, tokens: NDArray[np.integer], squares: NDArray[np.integer]) -> NDArray[np.float64]:
        """(R,) the cost of each row, in units of one token's matrix multiplications."""
        return tokens.astype(np.float64) + self.attention_weight * squares.astype(np.float64)


SEVEN_BILLION = ModelShape()
