"""A plan of which document piece goes into which packed row. It contains no tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def fill_of(tokens: int, rows: int, capacity: int) -> float:
    """Fill: the share of the rows' capacity that holds tokens of documents, 0 to 1; without rows it is 1.

    Padding for `pack.align` and `pack.parallel` holds no tokens of documents, so it is not counted.

    Args:
        tokens: without padding.
    """
    return tokens / (rows * capacity) if rows else 1.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good a plan is, with a proof.

    `bound` is a lower bound on the rows of any plan of whole pieces: the larger of ceil(tokens / C) and
    Martello and Toth's L2 (Knapsack Problems, 1990, chapter 8). For a plan limited by `max_docs`, also
    ceil(pieces / max_docs).
    """

    rows: int
    bound: int
    tokens: int
    """Tokens of documents, without padding."""
    capacity: int
    pieces: int

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that no plan has fewer rows."""
        return self.rows == self.bound

    @property
    def fill(self) -> float:
        """See `fill_of`."""
        return fill_of(self.tokens, self.rows, self.capacity)

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of the bound. 0 proves that no plan is better."""
        return self.rows / self.bound - 1.0 if self.bound else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class LayoutPlan:
    """Four arrays: row r holds pieces `row_offsets[r]:row_offsets[r+1]`, in this order.

    Piece p is tokens `starts[p] : starts[p] + lengths[p]` of document `order[p]`.
    """

    order: NDArray[np.int64]
    """(D,) the document of each piece, an index into the given lengths."""
    starts: NDArray[np.int64]
    """(D,) first token of the piece within its document."""
    lengths: NDArray[np.int32]
    """(D,) tokens of the piece, without alignment padding."""
    row_offsets: NDArray[np.int64]
    """(R + 1,) where each row's pieces begin."""
    certificate: Certificate

    @property
    def rows(self) -> int:
        """Number of packed rows."""
        return len(self.row_offsets) - 1
