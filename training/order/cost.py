"""Assigns rows to ranks so that all ranks do similar amounts of work. Legend: `B` rows of a step, `W` ranks."""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 12
"""Number of passes of swaps. Twice as many would change the slowest rank by about one part in a thousand."""
_ALIKE = 1000
"""Swapping ends when the slowest rank is within 1/1000 of the mean."""
_SWAPS = 1 << 20
"""Maximum number of swaps to compare at once. Ranks with more rows have nearly equal sums without swaps."""


def whole_costs(costs: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (N,) costs as integers with a maximum of 2**40, so that their sums do not depend on the order of
    addition.
    """
    dearest = costs.max(initial=0)
    return np.rint(costs / dearest * 2.0**40).astype(np.int64) if dearest > 0 else np.zeros(len(costs), np.int64)


def assign_to_ranks(costs: NDArray[np.float64] | NDArray[np.int64], ranks: int) -> list[list[int]]:
    """Assign equally many rows to each rank, with sums of costs as equal as a few passes can make them.

    1. The rows, most expensive first, are cut into layers of one row per rank. In each layer, the rank with the
       smallest sum gets the most expensive row: longest processing time first (Graham, 1969), one layer at a time.
    2. The ranks are sorted by their sums, and the upper half is paired with the lower. Each pair makes the one swap
       that brings their sums closest. This is repeated with other pairs until the sums are nearly equal.

    Costs are integers, so every rank computes the same assignment. A rank's rows are sorted, and ranks are ordered by
    their first rows, so the most expensive row of a step is not always on rank 0.

    Args:
        costs: (B,) not negative; B is a multiple of `ranks`.

    Returns:
        For each rank, B / ranks indices into `costs`.

    Raises:
        ValueError: the rows cannot be divided among the ranks.
    """
    if ranks < 1 or len(costs) % ranks:
        raise ValueError(f"{len(costs)} rows cannot be divided equally among {ranks} ranks")
    share = len(costs) // ranks
    if share < 2 or ranks < 2:
        return np.arange(len(costs)).reshape(ranks, share).tolist()
    hands = _swapped(*_layered(whole_costs(costs), ranks))
    hands.sort(axis=1)
    dealt: list[list[int]] = hands[np.argsort(hands[:, 0])].tolist()
    return dealt


def _layered(costs: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (W, B / W) rows of each rank, and (W, B / W) their costs."""
    layers = np.argsort(-costs, kind="stable").reshape(-1, ranks)
    hands = np.empty((ranks, len(layers)), dtype=np.int64)
    sums = np.zeros(ranks, dtype=np.int64)
    for number, layer in enumerate(layers):
        taking = np.argsort(sums, kind="stable")
        hands[taking, number] = layer
        sums[taking] += costs[layer]
    return hands, costs[hands]


def _swapped(hands: NDArray[np.int64], costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Swap rows between ranks. Both arguments are (W, S) and changed in place; returns the rows."""
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
