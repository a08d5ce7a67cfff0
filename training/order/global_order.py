"""The canonical order of rows over all epochs: the row at each position, independent of ranks and workers."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.flops import SEVEN_BILLION, ModelShape
from .balance import Balance, grouped
from .concat import ConcatRows
from .mixture import Mixture
from .permutation import EpochOrder, epoch_key

ORDER_BLOCK = 1024
"""Number of positions computed together if rows are not grouped; one at a time would take far longer."""
_KEPT_BLOCKS = 8


class GlobalOrder:
    """Maps a position to a row in O(1), for any position of any epoch. Thread-safe.

    Args:
        corpus: the rows.
        orders: the order of each dataset of the corpus.
        mixture: which dataset a position belongs to; None if there is only one.
        balance: None for no grouping.
    """

    def __init__(
        self,
        corpus: ConcatRows,
        orders: Sequence[EpochOrder],
        mixture: Mixture | None,
        seed: int,
        balance: Balance | None,
        shape: ModelShape = SEVEN_BILLION,
    ) -> None:
        self.corpus = corpus
        self.orders = orders
        self.mixture = mixture
        self.seed = seed
        self.balance = balance
        self.shape = shape
        # Like steps, blocks begin at multiples of their size, counted over all epochs. But they end with an epoch, so
        # that each epoch has the same rows. A mixture counts as one epoch, because its datasets end their epochs at
        # different places.
        self._period = len(corpus) if mixture is None else mixture.total
        self._size = balance.block if balance is not None else ORDER_BLOCK
        self._blocks: OrderedDict[tuple[int, int], NDArray[np.int64]] = OrderedDict()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_blocks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock(), _blocks=OrderedDict())

    def at(self, first: int, last: int) -> NDArray[np.int64]:
        """Return (last - first,) the rows at positions first .. last - 1; positions continue over epochs."""
        pieces = []
        position = first
        while position < last:
            epoch, block = position // self._period, position // self._size
            begin = max(block * self._size, epoch * self._period)
            piece = self._block(epoch, block)[position - begin : last - begin]
            pieces.append(piece)
            position += len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.int64), *pieces])

    def near(self, first: int, last: int) -> NDArray[np.int64]:
        """Return (last - first,) the rows around positions first .. last - 1, before grouping by cost.

        Grouping moves rows only within blocks, so these are the rows needed soon, except for one block at each edge.
        """
        pieces = []
        while first < last:
            epoch, place = divmod(first, self._period)
            end = min(self._period, place + last - first)
            pieces.append(self._ordered(epoch, place, end))
            first += end - place
        return np.concatenate([np.zeros(0, np.int64), *pieces])

    def costs(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (N,) costs of rows, in units of one token's matrix multiplications."""
        return self.corpus.costs(rows, self.shape)

    def _block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """Return the rows of one block of positions within an epoch, grouped if there is a balance.

        The latest blocks are cached.
        """
        with self._lock:
            found = self._blocks.get((epoch, block))
        if found is not None:
            return found
        start = epoch * self._period
        begin = max(block * self._size, start)
        end = min((block + 1) * self._size, start + self._period)
        rows = self._ordered(epoch, begin - start, end - start)
        if self.balance is not None:
            key = epoch_key(self.seed, epoch * 2**32 + block - start // self._size, "groups")
            rows = grouped(rows, self.costs(rows), self.balance, key, begin)
        with self._lock:
            self._blocks[epoch, block] = rows
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return rows

    def _ordered(self, epoch: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return the rows at places begin .. end - 1 of an epoch, before grouping."""
        if self.mixture is None:
            first = epoch * self._period
            return self.orders[0](first + begin, first + end)
        owners = self.mixture.owners(begin, end)
        befores = self.mixture.counts(begin)
        out = np.empty(end - begin, dtype=np.int64)
        for number, (order, before) in enumerate(zip(self.orders, befores, strict=True)):
            mine = np.flatnonzero(owners == number)
            out[mine] = order(before, before + len(mine)) + self.corpus.first_of(number)
        return out
