"""The canonical order of rows over all epochs: which row stands at a position, whatever ranks and workers read it."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cost import SEVEN_BILLION, ModelShape, row_cost
from .order import Permutation, Shuffle, epoch_key
from .rows import PackedRows

SHUFFLE_BLOCK = 4096
"""Neighbouring rows of `Shuffle.BLOCKS`."""
ORDER_BLOCK = 4096
"""Positions whose rows are worked out together where nothing is grouped: one at a time would cost far more."""
_KEPT_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Balance:
    """Grouping of rows of like cost, so that ranks that wait for each other do alike work.

    Blocks of `block` consecutive positions are sorted by cost and cut into groups of `group`; the groups are then
    permuted, so that steps do not grow dearer from the beginning of a block to its end.
    """

    block: int = 512
    group: int = 64

    def __post_init__(self) -> None:
        if self.block < 1 or self.group < 1 or self.block % self.group:
            raise ValueError(f"balance: block ({self.block}) must be a multiple of group ({self.group})")


class RowStream:
    """Position → row, in O(1) for any position of any epoch.

    Args:
        rows: the dataset; at least one row.
        first_sequential: epoch 0 in the order of the shards, which packing has shuffled.
        balance: None for no grouping.
    """

    def __init__(
        self,
        rows: PackedRows,
        seed: int,
        shuffle: Shuffle,
        first_sequential: bool,
        balance: Balance | None,
        shape: ModelShape = SEVEN_BILLION,
    ) -> None:
        self.rows = rows
        self.size = len(rows)
        self.seed = seed
        self.shuffle = shuffle
        self.first_sequential = first_sequential
        self.balance = balance
        self.shape = shape
        self._size = balance.block if balance is not None else ORDER_BLOCK
        self._blocks: OrderedDict[tuple[int, int], NDArray[np.int64]] = OrderedDict()

    def at(self, first: int, last: int) -> NDArray[np.int64]:
        """(last - first,) the rows at positions first .. last - 1; positions run on over epochs."""
        out = np.empty(last - first, dtype=np.int64)
        position = first
        while position < last:
            epoch, begin = divmod(position, self.size)
            end = min(self.size, begin + last - position)
            out[position - first : position - first + end - begin] = self._epoch(epoch, begin, end)
            position += end - begin
        return out

    def costs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) what rows cost, in tokens' worth of matrix multiplication."""
        return np.array([row_cost(self.rows.seq_lengths(row), self.shape) for row in rows.tolist()])

    def _epoch(self, epoch: int, begin: int, end: int) -> NDArray[np.int64]:
        size = self._size
        pieces = []
        for block in range(begin // size, (end - 1) // size + 1):
            rows = self._block(epoch, block)
            pieces.append(rows[max(begin - block * size, 0) : end - block * size])
        return np.concatenate(pieces)

    def _block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """The rows of one block of positions, grouped where that is asked for. The last ones are kept."""
        found = self._blocks.get((epoch, block))
        if found is not None:
            self._blocks.move_to_end((epoch, block))
            return found
        begin = block * self._size
        rows = self._shuffled(epoch, np.arange(begin, min(begin + self._size, self.size), dtype=np.int64))
        if self.balance is not None:
            rows = self._grouped(rows, self.balance.group, epoch_key(self.seed, epoch * 2**32 + block, "groups"))
        self._blocks[epoch, block] = rows
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return rows

    def _grouped(self, rows: NDArray[np.int64], group: int, key: int) -> NDArray[np.int64]:
        """Sorted by cost, cut into groups, the groups permuted."""
        rows = rows[np.argsort(self.costs(rows), kind="stable")]
        whole = len(rows) // group
        if whole < 2:
            return rows
        # What does not fill a group stays at the end, where the next block goes on.
        groups = rows[: whole * group].reshape(whole, -1)
        order = Permutation(whole, key)(np.arange(whole))
        return np.concatenate([groups[order].ravel(), rows[whole * group :]])

    def _shuffled(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.shuffle is Shuffle.SEQUENTIAL or (epoch == 0 and self.first_sequential):
            return positions
        if self.shuffle is Shuffle.FULL:
            return Permutation(self.size, epoch_key(self.seed, epoch, "rows"))(positions)
        return self._in_blocks(epoch, positions)

    def _in_blocks(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole blocks permuted, rows permuted within each; the incomplete last block keeps its place."""
        whole = self.size // SHUFFLE_BLOCK
        out = np.empty_like(positions)
        blocks = positions // SHUFFLE_BLOCK
        order = Permutation(max(whole, 1), epoch_key(self.seed, epoch, "blocks"))
        for block in np.unique(blocks).tolist():
            here = blocks == block
            target = int(order(np.array([block]))[0]) if block < whole else block
            size = SHUFFLE_BLOCK if block < whole else self.size - whole * SHUFFLE_BLOCK
            inner = Permutation(size, epoch_key(self.seed, epoch * 2**32 + target, "within"))
            out[here] = target * SHUFFLE_BLOCK + inner(positions[here] - block * SHUFFLE_BLOCK)
        return out
