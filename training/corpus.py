"""The rows of one dataset or several, numbered through: what an order puts into order."""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from .cost import ModelShape
from .rows import PackedRows
from .shard import PackedRow, Strip
from .shelf import LocalShelf


class Corpus:
    """Rows of several datasets one after another.

    Args:
        parts: at least one; each with rows.
    """

    def __init__(self, parts: Sequence[PackedRows]) -> None:
        self.parts = list(parts)
        self._starts = [0, *accumulate(map(len, self.parts))]
        self._only = self.parts[0] if len(self.parts) == 1 else None

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """Capacity of the longest rows, in tokens."""
        return max(part.max_length for part in self.parts)

    def longest(self, beyond: int | None = None) -> int:
        """Tokens of the longest document (piece). Of remote shards, which are not fetched for it, a bound from above.

        Args:
            beyond: where that bound is larger than this, it is made exact, and the shards in question are fetched.
        """
        return max(
            part.longest
            if isinstance(part.shelf, LocalShelf) or (beyond is not None and part.longest_at_most > beyond)
            else part.longest_at_most
            for part in self.parts
        )

    @property
    def max_docs(self) -> int:
        """Most documents in one row."""
        return max(part.max_docs for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Of all rows and their order."""
        if self._only is not None:
            return self._only.fingerprint
        return hashlib.blake2b("".join(part.fingerprint for part in self.parts).encode(), digest_size=16).hexdigest()

    def first_of(self, part: int) -> int:
        """Number of the first row of a dataset."""
        return self._starts[part]

    def locate(self, row: int) -> tuple[int, int]:
        """(number of the dataset, number of the row in it)."""
        part = bisect_right(self._starts, row) - 1
        return part, row - self._starts[part]

    def row(self, index: int) -> PackedRow:
        """Row `index`. Raises IndexError beyond the last one."""
        if self._only is not None:
            return self._only.row(index)
        part, index = self.locate(index)
        return self.parts[part].row(index)

    def strips(self, rows: list[int]) -> list[Strip]:
        """The rows, in their order; those that lie one after another as one strip."""
        if self._only is not None:
            return list(self._only.strips(rows))
        strips: list[Strip] = []
        for part, group in groupby(map(self.locate, rows), key=lambda found: found[0]):
            strips += self.parts[part].strips([row for _, row in group])
        return strips

    def tokens(self, rows: list[int]) -> int:
        """Tokens of all these rows together. Opens no shard."""
        if self._only is not None:
            return self._only.sizes.tokens(rows)
        return sum(self.parts[part].sizes.tokens([row]) for part, row in map(self.locate, rows))

    def url_of(self, index: int) -> str:
        """Full address of the shard that holds row `index`."""
        part, index = self.locate(index)
        return self.parts[part].url_of(index)

    def costs(self, rows: NDArray[np.int64], shape: ModelShape) -> NDArray[np.float64]:
        """(N,) what rows cost, in tokens' worth of matrix multiplication. Opens no shard."""
        if self._only is not None:
            return self._only.sizes.costs(rows, shape)
        costs = np.empty(len(rows), dtype=np.float64)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for part in np.unique(owners).tolist():
            mine = owners == part
            costs[mine] = self.parts[part].sizes.costs(rows[mine] - self._starts[part], shape)
        return costs
