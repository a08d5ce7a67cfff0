"""What every row weighs, from the file beside the shards: no shard is opened to order, balance or count rows."""

import mmap

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.errors import IntegrityError
from ..schemas.rows import ROW_SIZES
from .cost import ModelShape, weigh
from .shard import view
from .shelf import Held


class RowSizes:
    """`ROW_SIZES` of one split, mapped into memory.

    Args:
        rows: that it must have.

    Raises:
        IntegrityError: the file cannot be read, or has another number of rows.
    """

    def __init__(self, held: Held, rows: int, url: str) -> None:
        self._held = held  # as long as this lives, the file is not evicted from the cache
        try:
            with held.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            batch = pa.ipc.open_file(pa.py_buffer(mapped)).get_batch(0)
            if batch.schema != ROW_SIZES:
                raise ValueError(f"its columns are {batch.schema.names}")
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise IntegrityError(f"{url} cannot be read: {error}; run packtrain verify on its folder") from error
        if batch.num_rows != rows:
            raise IntegrityError(
                f"{url} has {batch.num_rows:,} rows, but the manifest says {rows:,}; packtrain repair makes it again"
            )
        tokens: NDArray[np.int32] = view(batch.column("tokens"), pa.int32())
        self._squares: NDArray[np.int64] = view(batch.column("squares"), pa.int64())
        self._tokens = tokens
        # One number of it costs a third of one of the array.
        self._numbers = tokens.data

    def tokens(self, rows: list[int]) -> int:
        """Tokens of all these rows together."""
        numbers = self._numbers
        return sum([numbers[row] for row in rows])

    def longest(self, begin: int, end: int) -> int:
        """Tokens that no document of rows `begin` to `end` (exclusive) has more of; from the sum of squares."""
        bounds = np.minimum(self._tokens[begin:end], np.floor(np.sqrt(self._squares[begin:end])))
        return int(bounds.max(initial=0))

    def costs(self, rows: NDArray[np.int64], shape: ModelShape) -> NDArray[np.float64]:
        """(N,) what rows cost, in tokens' worth of matrix multiplication."""
        return weigh(self._tokens[rows], self._squares[rows], shape)
