"""What a packed row costs to train on, in model FLOPs: its tokens for the matrices, its documents for attention.

Legend: `R` rows, `D` pieces of all of them, `B` rows of a step, `W` ranks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 12
"""Passes of swaps. Twice as many would move the dearest rank by about a part in a thousand."""
_ALIKE = 1000
"""Swapping ends when the dearest rank is within one part in so many of the mean."""
_SWAPS = 1 << 20
"""Swaps weighed at once, at most. Beyond it a rank has so many rows that they even out without."""


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


def row_costs(
    lengths: NDArray[np.integer], offsets: NDArray[np.integer], shape: ModelShape = SEVEN_BILLION
) -> NDArray[np.float64]:
    """(R,) the cost of each packed row, in tokens' worth of matrix multiplication. An empty row costs nothing.

    Sums are made in whole numbers, so that two machines agree to the last bit, whatever their processors do.

    Args:
        lengths: (D,) of the pieces, row after row.
        offsets: (R + 1,) where each row's pieces begin in `lengths`; row r has `offsets[r] : offsets[r + 1]`.
    """
    wide = lengths.astype(np.int64)
    tokens = _row_sums(wide, offsets)
    squares = _row_sums(wide * wide, offsets)
    return weigh(tokens, squares, shape)


def weigh(
    tokens: NDArray[np.integer], squares: NDArray[np.integer], shape: ModelShape = SEVEN_BILLION
) -> NDArray[np.float64]:
    """(R,) the cost of rows with so many tokens, and such sums of the squares of their pieces' lengths."""
    return tokens.astype(np.float64) + shape.attention_weight * squares.astype(np.float64)


def _row_sums(values: NDArray[np.int64], offsets: NDArray[np.integer]) -> NDArray[np.int64]:
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    rows: NDArray[np.int64] = sums[offsets[1:]] - sums[offsets[:-1]]
    return rows


def whole_costs(costs: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) costs as whole numbers, the dearest 2**40, so that their sums do not depend on the order of adding."""
    dearest = costs.max(initial=0)
    return np.rint(costs / dearest * 2.0**40).astype(np.int64) if dearest > 0 else np.zeros(len(costs), np.int64)


def deal(costs: NDArray[np.float64] | NDArray[np.int64], ranks: int) -> list[list[int]]:
    """Rows to ranks: as many each, sums as alike as a few passes make them.

    1. The rows, dearest first, are cut into layers of one row a rank. Each layer is dealt so that the rank with the
       smallest sum gets its dearest row: longest processing time first (Graham, 1969), a layer at a time.
    2. The ranks are sorted by their sums and those of the upper half paired with those of the lower. Each pair makes
       the one swap that brings it closest together. Again with other pairs, until the sums are alike.

    Costs are counted in whole numbers, so every rank computes the same deal. A hand is sorted, and hands stand in
    the order of their first rows: the dearest row of a step goes to any rank, not to rank 0 always.

    Args:
        costs: (B,), B a multiple of `ranks`; none below 0.

    Returns:
        For each rank, B / ranks indices into `costs`.

    Raises:
        ValueError: the rows cannot be divided among the ranks.
    """
    if ranks < 1 or len(costs) % ranks:
        raise ValueError(f"{len(costs)} rows cannot be dealt to {ranks} ranks, as many to each")
    share = len(costs) // ranks
    if share < 2 or ranks < 2:
        return np.arange(len(costs)).reshape(ranks, share).tolist()
    hands = _swapped(*_layered(whole_costs(costs), ranks))
    hands.sort(axis=1)
    dealt: list[list[int]] = hands[np.argsort(hands[:, 0])].tolist()
    return dealt


def _layered(costs: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(W, B / W) hands, and the same of costs."""
    layers = np.argsort(-costs, kind="stable").reshape(-1, ranks)
    hands = np.empty((ranks, len(layers)), dtype=np.int64)
    sums = np.zeros(ranks, dtype=np.int64)
    for number, layer in enumerate(layers):
        taking = np.argsort(sums, kind="stable")
        hands[taking, number] = layer
        sums[taking] += costs[layer]
    return hands, costs[hands]


def _swapped(hands: NDArray[np.int64], costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both (W, S) and changed in place; the hands are returned."""
    ranks, share = hands.shape
    half = ranks // 2
    rounds = _ROUNDS if half * share * share <= _SWAPS else 0
    for turn in range(rounds):
        sums = costs.sum(axis=1)
        if int(sums.max()) * ranks * _ALIKE <= int(sums.sum()) * (_ALIKE + 1):
            break
        order = np.argsort(-sums, kind="stable")
        upper, lower = order[:half], np.roll(order[::-1][:half], turn)
        gaps = sums[upper] - sums[lower]
        # Swapping a row of the upper rank for a row of the lower one narrows the gap by twice their difference.
        differences = costs[upper][:, :, None] - costs[lower][:, None, :]
        left = np.abs(gaps[:, None] - 2 * differences.reshape(half, -1))
        best = left.argmin(axis=1)
        better = left[np.arange(half), best] < gaps
        ours, theirs = np.divmod(best[better], share)
        one, other = (upper[better], ours), (lower[better], theirs)
        for table in (hands, costs):
            table[one], table[other] = table[other], table[one]
    return hands
