"""The rows of one or several datasets, numbered consecutively."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.flops import ModelShape
from ..shards.arrow_shard import PackedRow, RowSpan
from ..shards.dataset_rows import PackedRows
from ..shards.shard_files import LocalShardFiles


class ConcatRows:
    """The concatenated rows of several datasets.

    Args:
        parts: at least one dataset; each has rows.
    """

    def __init__(self, parts: Sequence[PackedRows]) -> None:
        self.parts = list(parts)
        self._starts = [0, *accumulate(map(len, self.parts))]
        self._only = self.parts[0] if len(self.parts) == 1 else None

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def max_length(self) -> int:
        """The largest capacity of a row, in tokens."""
        return max(part.max_length for part in self.parts)

    def longest(self, beyond: int | None = None) -> int:
        """Return the tokens of the longest document (piece). Remote shards are not fetched; for them it is an upper
        bound.

        Args:
            beyond: if the bound is larger than this, the shards that may exceed it are fetched to make it exact.
        """
        return max(
            part.longest
            if isinstance(part.files, LocalShardFiles) or (beyond is not None and part.longest_at_most > beyond)
            else part.longest_at_most
            for part in self.parts
        )

    @property
    def max_docs(self) -> int:
        """Maximum number of documents in one row."""
        return max(part.max_docs for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all rows and their order."""
        if self._only is not None:
            return self._only.fingerprint
        return hashlib.blake2b("".join(part.fingerprint for part in self.parts).encode(), digest_size=16).hexdigest()

    def first_of(self, part: int) -> int:
        """Return the number of the first row of a dataset."""
        return self._starts[part]

    def locate(self, row: int) -> tuple[int, int]:
        """Return (number of the dataset, number of the row in it)."""
        part = bisect_right(self._starts, row) - 1
        return part, row - self._starts[part]

    def row(self, index: int) -> PackedRow:
        """Return row `index`. Raises IndexError beyond the last one."""
        if self._only is not None:
            return self._only.row(index)
        part, index = self.locate(index)
        return self.parts[part].row(index)

    def row_spans(self, rows: list[int]) -> list[RowSpan]:
        """Return the rows in their order, with adjacent rows joined to one span."""
        if self._only is not None:
            return list(self._only.row_spans(rows))
        row_spans: list[RowSpan] = []
        for part, group in groupby(map(self.locate, rows), key=lambda found: found[0]):
            row_spans += self.parts[part].row_spans([row for _, row in group])
        return row_spans

    def tokens_of(self, rows: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        """Return (N,) the tokens of each row. Opens no shard."""
        if self._only is not None:
            return self._only.sizes.tokens(rows)
        tokens = np.empty(len(rows), dtype=np.int32)
        for part, mine, own in self._by_part(rows):
            tokens[mine] = part.sizes.tokens(own)
        return tokens

    def url_of(self, index: int) -> str:
        """Return the full address of the shard that holds row `index`."""
        part, index = self.locate(index)
        return self.parts[part].url_of(index)

    def costs(self, rows: NDArray[np.int64], shape: ModelShape) -> NDArray[np.float64]:
        """Return (N,) costs of rows, in units of one token's matrix multiplications. Opens no shard."""
        if self._only is not None:
            return shape.weigh(*self._only.sizes.of(rows))
        costs = np.empty(len(rows), dtype=np.float64)
        for part, mine, own in self._by_part(rows):
            costs[mine] = shape.weigh(*part.sizes.of(own))
        return costs

    def _by_part(self, rows: NDArray[np.int64]) -> Iterator[tuple[PackedRows, NDArray[np.bool_], NDArray[np.int64]]]:
        """Yield each dataset that holds some of the rows, (N,) which those are, and their numbers in it."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for part in np.unique(owners).tolist():
            mine = owners == part
            yield self.parts[part], mine, rows[mine] - self._starts[part]
