"""Reads the size of every row from a file beside the shards, so that ordering, balancing and counting open no shard."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.rows import ROW_SIZES
from .arrow_shard import mapped, view
from .shard_files import CachedFile


class RowSizes:
    """`ROW_SIZES` of one split, mapped into memory.

    Args:
        rows: the expected number of rows.

    Raises:
        IntegrityError: the file cannot be read, or has a different number of rows.
    """

    def __init__(self, held: CachedFile, rows: int, url: str) -> None:
        self._held = held  # keeps the file from being evicted from the cache
        try:
            batch = pa.ipc.open_file(mapped(held.path)).get_batch(0)
            if batch.schema != ROW_SIZES:
                raise ValueError(f"its columns are {batch.schema.names}")
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise IntegrityError(f"{url} cannot be read: {error}; run packtrain verify on its folder") from error
        if batch.num_rows != rows:
            raise IntegrityError(
                f"{url} has {batch.num_rows:,} rows, but the manifest says {rows:,}; packtrain repair rebuilds it"
            )
        self._tokens: NDArray[np.int32] = view(batch.column("tokens"), pa.int32())
        self._squares: NDArray[np.int64] = view(batch.column("squares"), pa.int64())

    def tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return (N,) tokens of each row."""
        return self._tokens[rows]

    def longest(self, begin: int, end: int) -> int:
        """Return an upper bound on the tokens of a document in rows `begin` to `end` (exclusive), from the sum of
        squares.
        """
        bounds = np.minimum(self._tokens[begin:end], np.floor(np.sqrt(self._squares[begin:end])))
        return int(bounds.max(initial=0))

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return (N,) tokens of each row, and (N,) the sum of its documents' squared lengths."""
        return self._tokens[rows], self._squares[rows]
