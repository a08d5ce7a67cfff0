"""Packed rows as plain arrays, which every format of another trainer is made from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX
from ..arrays import view


class MisfitError(ValueError):
    """A row does not fit into the format.

    Attributes:
        row: the row, counted from the first of the given rows.
    """

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


@dataclass(frozen=True, slots=True)
class ExchangeRows:
    """R packed rows of D pieces and T tokens; see `schemas.rows.PACKED`."""

    ids: NDArray[np.int32]
    """(T,) token ids."""
    labels: NDArray[np.int32]
    """(T,) unshifted labels."""
    lengths: NDArray[np.int32]
    """(D,) tokens of each piece."""
    row_pieces: NDArray[np.int64]
    """(R + 1,) where each row's pieces begin."""
    row_tokens: NDArray[np.int64]
    """(R + 1,) where each row's tokens begin."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "ExchangeRows":
        """The rows of a batch of PACKED whose columns fit together."""
        return cls(
            ids=view(batch.column("input_ids").flatten()),
            labels=view(batch.column("labels").flatten()),
            lengths=view(batch.column("seq_lengths").flatten()),
            row_pieces=_offsets(batch.column("seq_lengths")),
            row_tokens=_offsets(batch.column("input_ids")),
        )

    def __len__(self) -> int:
        return len(self.row_tokens) - 1

    @property
    def trained(self) -> NDArray[np.bool_]:
        """(T,) which tokens are trained, that is, predicted from the tokens before them."""
        return np.not_equal(self.labels, IGNORE_INDEX)

    @property
    def ends(self) -> NDArray[np.int64]:
        """(D,) where each piece ends."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def row_of_token(self, token: int) -> int:
        """The row of a token."""
        return int(np.searchsorted(self.row_tokens, token, side="right")) - 1

    def row_of_piece(self, piece: int) -> int:
        """The row of a piece."""
        return int(np.searchsorted(self.row_pieces, piece, side="right")) - 1


def fitted(rows: ExchangeRows, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """(T,) the ids in another type.

    Raises:
        MisfitError: an id does not fit into it.
    """
    if rows.ids.dtype == dtype:
        return rows.ids
    limits = np.iinfo(dtype)
    bad = (rows.ids < limits.min) | (rows.ids > limits.max)
    if bad.any():
        token = int(np.argmax(bad))
        what = f"token id {int(rows.ids[token]):,} does not fit into {dtype}, which holds at most {limits.max:,}"
        raise MisfitError(rows.row_of_token(token), what)
    return rows.ids.astype(dtype)


def _offsets(column: pa.ListArray) -> NDArray[np.int64]:
    offsets = view(column.offsets).astype(np.int64)
    return offsets - offsets[0] if len(offsets) else np.zeros(1, np.int64)
