"""Packed rows as views of a record batch: one row at a time, or all pieces of documents at once.

A record batch stores each column of its R rows end to end, with R + 1 offsets. Two rows, of documents A, B and C:

    column          values                    offsets
    input_ids       a0 a1 a2 b0 b1  c0 c1     0 5 7
    labels          -  a1 a2 -  b1  -  c1     0 5 7
    position_ids    0  1  2  0  1   0  1      0 5 7
    seq_lengths     3        2      2         0 2 3
    doc_ids         A        B      C         0 2 3

Columns with a value for each token have the same offsets, and so have columns with one for each piece:
`schemas.tables.columns` says which those are.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..arrays import view
from ..errors import IntegrityError
from ..ragged import offsets_of
from ..tables.columns import PARENTS, SIDES, UNPADDED, USUAL_COLUMNS, WEIGHTS, Per, with_usual_names


@dataclass(slots=True)  # not frozen: a frozen dataclass takes four times as long to make, and a step makes many
class Row:
    """One packed row, T tokens in D pieces, or neighbouring rows end to end; read-only views of a shard."""

    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    position_ids: NDArray[np.int32]
    """(T,)"""
    seq_lengths: NDArray[np.int32]
    """(D,) with padding"""
    doc_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), kw_only=True)
    """(D,) the document of each piece; empty if it is not known."""
    seq_lengths_unpadded: NDArray[np.int32] | None = field(default=None, kw_only=True)
    """(D,) without padding; None if the dataset does not say."""
    loss_weights: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """(T,) how much each label counts; None if all count 1."""
    parents: NDArray[np.int32] | None = field(default=None, kw_only=True)
    """(D,) how many pieces before it stands the piece whose path it continues; 0 if it continues none. None if the
    dataset's documents share no tokens."""
    sides: NDArray[np.int8] | None = field(default=None, kw_only=True)
    """(D,) of preference pairs: 0 for a chosen side, 1 for the rejected one after it; None for other documents."""

    @property
    def own_lengths(self) -> NDArray[np.int32]:
        """(D,) without padding, as far as the dataset says."""
        return self.seq_lengths if self.seq_lengths_unpadded is None else self.seq_lengths_unpadded


class BatchPieces(NamedTuple):
    """All pieces of a record batch: D pieces of R rows with T tokens."""

    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    begins: NDArray[np.int64]
    """(D,) where each piece begins in the two columns above."""
    lengths: NDArray[np.int64]
    """(D,) without padding, as far as the dataset says."""
    rows: NDArray[np.int64]
    """(D,) the row of each piece, from 0 for the first row of the batch."""
    row_ends: NDArray[np.int64]
    """(D,) where the row of each piece ends."""


class RowBatch:
    """One record batch of packed rows.

    Args:
        where: the batch's file, for messages.

    Raises:
        IntegrityError: columns of tokens or of pieces differ in length.
    """

    def __init__(self, batch: pa.RecordBatch, where: str) -> None:
        self._where = where
        self._values: dict[str, NDArray[Any]] = {}
        offsets: dict[Per, NDArray[np.int32]] = {}
        batch = with_usual_names(batch)  # batches of a stream have the names of shards; others have the usual ones
        for name, column in USUAL_COLUMNS.items():
            # In some datasets only. `parents` is one of them without a condition of its own: all columns of rows that
            # share tokens replace the usual ones. Any other column must be there: pyarrow raises KeyError for it.
            is_optional = column.condition is not None or name == PARENTS
            if is_optional and name not in batch.schema.names:
                continue
            lists = batch.column(name)
            self._values[name] = view(lists.values)
            list_offsets = view(lists.offsets)
            # The offsets of the first column with a value for each token are kept for all of these columns; likewise
            # for pieces.
            first_offsets = offsets.setdefault(column.per, list_offsets)
            if not np.array_equal(list_offsets, first_offsets):
                other = "input_ids" if column.per is Per.TOKEN else "seq_lengths"
                raise IntegrityError(
                    f"{where}: {name} and {other} have different lengths; run packtrain verify on its folder"
                )
        # Reading one item of a memoryview takes a third of the time that an array needs.
        self._token_offsets = offsets[Per.TOKEN].data
        self._piece_offsets = offsets[Per.PIECE].data

    def __len__(self) -> int:
        """R, the number of rows."""
        return len(self._token_offsets) - 1

    def row(self, index: int) -> Row:
        """A row of the batch, counted from 0."""
        return self.rows(index, index + 1)

    def rows(self, first: int, last: int) -> Row:
        """Rows first .. last - 1 of the batch as one, which copies nothing: each column has them end to end already.

        In the example of the module, rows 0 and 1 are 7 tokens in 3 pieces: `seq_lengths` is 3 2 2.
        """
        values = self._values
        tokens = slice(self._token_offsets[first], self._token_offsets[last])
        pieces = slice(self._piece_offsets[first], self._piece_offsets[last])
        return Row(
            input_ids=values["input_ids"][tokens],
            labels=values["labels"][tokens],
            position_ids=values["position_ids"][tokens],
            seq_lengths=values["seq_lengths"][pieces],
            doc_ids=values["doc_ids"][pieces],
            seq_lengths_unpadded=values[UNPADDED][pieces] if UNPADDED in values else None,
            loss_weights=values[WEIGHTS][tokens] if WEIGHTS in values else None,
            parents=values[PARENTS][pieces] if PARENTS in values else None,
            sides=values[SIDES][pieces] if SIDES in values else None,
        )

    def pieces(self) -> BatchPieces:
        """All pieces at once, for code that searches through them.

        Raises:
            IntegrityError: the pieces of a row do not add up to its tokens.
        """
        # The comments have the numbers of the module's example.
        token_offsets = np.asarray(self._token_offsets, np.int64)  # 0 5 7
        piece_offsets = np.asarray(self._piece_offsets, np.int64)  # 0 2 3
        damage = IntegrityError(
            f"{self._where}: the lengths of a row's documents do not add up to its tokens; run packtrain verify on its "
            "folder"
        )
        if not _lie_inside(token_offsets, len(self._values["input_ids"])):
            raise damage
        if not _lie_inside(piece_offsets, len(self._values["seq_lengths"])):
            raise damage
        # Only these pieces: a batch may be a slice of a longer one, and has all of its values.
        own_pieces = slice(int(piece_offsets[0]), int(piece_offsets[-1]))
        padded = self._values["seq_lengths"][own_pieces].astype(np.int64)  # 3 2 2
        # UNPADDED is the column of lengths without padding, which only some datasets have.
        lengths = self._values[UNPADDED][own_pieces].astype(np.int64) if UNPADDED in self._values else padded
        if (lengths < 0).any() or (lengths > padded).any():
            raise damage
        bounds = token_offsets[0] + offsets_of(padded)  # 0 3 5 7
        # Rows must begin where their first pieces do: pieces 0 and 2 at tokens 0 and 5, and the last one ends at 7.
        if not np.array_equal(bounds[piece_offsets - piece_offsets[0]], token_offsets):
            raise damage
        counts = np.diff(piece_offsets)  # 2 1
        return BatchPieces(
            input_ids=self._values["input_ids"],
            labels=self._values["labels"],
            begins=bounds[:-1],  # 0 3 5
            lengths=lengths,  # 3 2 2
            rows=np.repeat(np.arange(len(counts)), counts),  # 0 0 1
            row_ends=np.repeat(token_offsets[1:], counts),  # 5 5 7
        )


def _lie_inside(offsets: NDArray[np.int64], size: int) -> bool:
    """Whether offsets never decrease, from 0 to `size` at most."""
    return bool(offsets[0] >= 0 and (np.diff(offsets) >= 0).all() and offsets[-1] <= size)
