"""What a packed row costs to train on, in model FLOPs: its tokens for the matrices, its documents for attention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer, as far as its cost goes."""

    parameters: float = 6.7e9
    layers: int = 32
    hidden: int = 4096

    @property
    def attention_weight(self) -> float:
        """What one unit of a squared document length costs, in tokens' worth of matrix multiplication.

        A token costs 2·parameters forward; causal attention over ℓ tokens costs 2·ℓ²·hidden in each layer (half of
        the square, once for the scores and once for the values). The backward pass doubles both.
        """
        return self.hidden * self.layers / self.parameters


SEVEN_BILLION = ModelShape()
ONE_BILLION = ModelShape(parameters=1.24e9, layers=16, hidden=2048)


def row_cost(seq_lengths: NDArray[np.int32], shape: ModelShape = SEVEN_BILLION) -> float:
    """The cost of one packed row with (D,) pieces, in tokens' worth of matrix multiplication."""
    lengths = seq_lengths.astype(np.float64)
    return float(lengths.sum() + shape.attention_weight * np.dot(lengths, lengths))


def deal(costs: NDArray[np.float64], ranks: int) -> list[list[int]]:
    """Rows to ranks: as many each, sums as alike as one pass makes them.

    The dearest row goes first, always to the rank with the smallest sum that still has room (longest processing
    time first; Graham, 1969). Equal costs keep their order, so every rank computes the same deal.

    Args:
        costs: (B,), B a multiple of `ranks`.
    """
    share = len(costs) // ranks
    order = np.argsort(-costs, kind="stable")
    sums = np.zeros(ranks)
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for index in order.tolist():
        rank = int(np.argmin(sums))
        hands[rank].append(index)
        sums[rank] = np.inf if len(hands[rank]) == share else sums[rank] + costs[index]
    return hands
