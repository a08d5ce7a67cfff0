"""How documents share rows: the padding by which kernels and ranks can divide lengths, and plans. A plan has lengths
and places, but no tokens.

Legend: `D` pieces, `R` rows.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .ragged import sums_of

ParallelLayout: TypeAlias = Literal["thd", "ring", "ulysses"]
"""How the ranks of a context-parallel group divide a row.

`thd`: each document into 2·CP equal chunks, of which rank r takes chunks r and 2·CP - 1 - r (TransformerEngine,
Megatron). `ring`: the row into CP equal, contiguous parts. `ulysses`: the row as `ring`, and heads during attention.
"""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Multiples to which pieces and rows are padded."""

    document: int = 1
    """Every piece takes a multiple of this."""
    row: int = 1
    """Every row has a multiple of this; its last piece takes the padding. A multiple of `document`."""
    unpadded: bool = False
    """Whether rows also store the lengths without padding, as `seq_lengths_unpadded`."""

    @property
    def pads(self) -> bool:
        """Whether there can be padding. `row` is a multiple of `document`, so it is 1 only if both are."""
        return self.row > 1

    def longest(self, tokens: int, row_length: int) -> int:
        """Most tokens that a piece of up to `tokens` has with its padding, as the last one of its row.

        Args:
            row_length: capacity of the row, a multiple of `row`.
        """
        # With multiples of 4 and 16, a piece of 10 tokens has 12. Its row, a multiple of 4, may lack up to 12 to one of
        # 16, which the last piece takes: 24.
        return min(row_length, -(-tokens // self.document) * self.document + self.row - self.document)

    def padded(self, lengths: NDArray[np.int32], row_offsets: NDArray[np.int64]) -> NDArray[np.int32]:
        """(D,) tokens of each piece with its padding; no piece and no row is empty.

        Args:
            lengths: (D,) tokens of each piece.
            row_offsets: (R + 1,) row r holds pieces `row_offsets[r]` to `row_offsets[r + 1] - 1`.
        """
        if not self.pads:
            return lengths
        out = -(-lengths // self.document) * self.document
        if self.row > self.document:
            # With multiples of 4 and 16, pieces of 5 and 2 have 8 and 4. Their row lacks 4 tokens to 16: 8 and 8.
            out[row_offsets[1:] - 1] += (-sums_of(out, row_offsets) % self.row).astype(out.dtype)
        return out


def fill_of(tokens: int, rows: int, capacity: int) -> float:
    """Fill: the share of the rows' capacity that holds tokens of documents, 0 to 1; 1 without rows: nothing is wasted.

    Padding for `pack.align` and `pack.parallel` holds no tokens of documents, so it is not counted.

    Args:
        tokens: without padding.
    """
    return tokens / (rows * capacity) if rows else 1.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good a plan is, with a proof: if its rows equal the bound, no plan has fewer.

    `bound` is a lower bound on the rows of any plan of whole pieces: the larger of ceil(tokens / C) and
    Martello and Toth's L2 (Knapsack Problems, 1990, chapter 8). For a plan limited by `max_docs`, also
    ceil(pieces / max_docs).
    """

    rows: int
    bound: int
    tokens: int
    """Tokens of documents, without padding."""
    pieces: int


@dataclass(frozen=True, slots=True, eq=False)
class LayoutPlan:
    """Four arrays: row r holds pieces `row_offsets[r]:row_offsets[r+1]`, in this order.

    Piece p is tokens `starts[p] : starts[p] + lengths[p]` of document `order[p]`.
    """

    order: NDArray[np.int64]
    """(D,) the document of each piece, an index into the lengths that were planned."""
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
