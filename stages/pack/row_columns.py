"""Turns planned pieces into the columns of packed rows, vectorised over one chunk of rows at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import lists
from ...schemas.layout import Alignment
from ...schemas.ragged import begins_of, offsets_of
from ...schemas.rows import IGNORE_INDEX
from ...schemas.tables.columns import PARENTS, SIDES, UNPADDED, WEIGHTS, Per, RowColumn, schema_of_columns

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RunWeights:
    """How much the tokens of D pieces count in the loss."""

    spans: NDArray[np.float32]
    """(spans,) the loss weight of each span's tokens."""
    scales: NDArray[np.float64]
    """(D,) what the weights of each piece's spans are multiplied by: the weight of its source."""
    by_document: bool
    """Whether the weights of a piece are divided by its number of trained labels, so that each piece weighs the same
    whatever its length."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Which of D pieces continue others."""

    parents: NDArray[np.int32]
    """(D,) how many pieces before it in its row stands the piece whose path it continues, or 0."""
    prefixes: NDArray[np.int32]
    """(D,) tokens of that path before the piece's first one, which is its position; 0 without a parent."""


@dataclass(frozen=True, slots=True)
class PlannedPieces:
    """D pieces in R rows, with their tokens and spans."""

    tokens: Sequence[NDArray[np.int32]]
    """D views of the pieces' tokens, each `lengths[p]` long."""
    starts: NDArray[np.int32]
    """(D,) position of the piece's first token within its document."""
    lengths: NDArray[np.int32]
    """(D,) tokens of the piece."""
    repeated: NDArray[np.int32]
    """(D,) how many of the piece's first tokens also belong to another piece; they get no label here."""
    doc_ids: NDArray[np.int64]
    """(D,) id of the piece's document."""
    row_offsets: NDArray[np.int64]
    """(R + 1,) row r holds pieces `row_offsets[r]` to `row_offsets[r + 1] - 1`."""
    span_ends: NDArray[np.int32]
    """(spans,) where each span of the whole documents ends, in tokens of its document."""
    span_supervised: NDArray[np.bool_]
    """(spans,) whether the mask trains the span."""
    span_offsets: NDArray[np.int64]
    """(D + 1,) where the spans of each piece's document begin. A document with two pieces is listed twice."""
    weights: RunWeights | None = None
    """None for rows without `loss_weights`."""
    branches: Branches | None = None
    """None for rows whose documents share nothing."""
    sides: NDArray[np.int8] | None = None
    """(D,) which side of its preference pair each piece is; None for other documents."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The rows, and the ledger's counts for each piece."""

    batch: pa.RecordBatch
    trained: NDArray[np.int32]
    """(D,) trained labels."""
    heads: NDArray[np.bool_]
    """(D,) whether the mask trains the piece's first token, which cannot have a label."""
    weights: NDArray[np.float64] | None
    """(D,) the sum of the weights of the piece's labels; None for rows without weights."""


@dataclass(frozen=True, slots=True)
class RowTokens:
    """D pieces in their rows, T tokens with padding: what the values of columns are made of."""

    pieces: PlannedPieces
    lengths: NDArray[np.int32]
    """(D,) tokens of each piece with its padding."""
    input_ids: NDArray[np.int32]
    """(T,)"""
    labels: NDArray[np.int32]
    """(T,)"""
    position_ids: NDArray[np.int32]
    """(T,)"""
    loss_weights: NDArray[np.float32] | None
    """(T,) None for rows without weights."""


def _loss_weights(tokens: RowTokens) -> NDArray[np.float32]:
    assert tokens.loss_weights is not None, "rows with this column have weights"
    return tokens.loss_weights


def _parents(tokens: RowTokens) -> NDArray[np.int32]:
    assert tokens.pieces.branches is not None, "rows with this column have branches"
    return tokens.pieces.branches.parents


def _sides(tokens: RowTokens) -> NDArray[np.int8]:
    assert tokens.pieces.sides is not None, "rows with this column are preference pairs"
    return tokens.pieces.sides


VALUES: dict[str, Callable[[RowTokens], NDArray[Any]]] = {
    "input_ids": lambda tokens: tokens.input_ids,
    "labels": lambda tokens: tokens.labels,
    "position_ids": lambda tokens: tokens.position_ids,
    "seq_lengths": lambda tokens: tokens.lengths,
    "doc_starts": lambda tokens: tokens.pieces.starts,
    "doc_ids": lambda tokens: tokens.pieces.doc_ids,
    UNPADDED: lambda tokens: tokens.pieces.lengths,
    WEIGHTS: _loss_weights,
    PARENTS: _parents,
    SIDES: _sides,
}
"""Column of a packed row → its values: (T,), (D,) or (R,), for one value a token, a piece or a row. By the names that
readers use (`RowColumn.usual`), which are `labels` for `pair_labels`, too."""


def lay_out(pieces: PlannedPieces, alignment: Alignment, pad_id: int, columns: Sequence[RowColumn]) -> LaidOut:
    """Make rows, at least one, of some packed columns.

    Padding has the input id `pad_id`, no label, and positions that continue the piece's. The weight of a token without
    a label is 0.

    Args:
        alignment: the multiples to which pieces and rows are padded.
        columns: those for which the pieces have values: weights, branches and sides may be None.
    """
    padded_lengths = alignment.padded(pieces.lengths, pieces.row_offsets)
    offsets = offsets_of(padded_lengths)  # where each piece begins among the T tokens of all rows, then T
    begins = offsets[:-1]
    # Pieces of 2 and 3 tokens: 0 1 0 1 2. Counted in 32 bits, because the subtraction is the slowest step.
    positions = np.arange(int(offsets[-1]), dtype=np.int32)
    positions -= np.repeat(begins.astype(np.int32), padded_lengths)
    is_document = positions < np.repeat(pieces.lengths, padded_lengths) if alignment.pads else None

    ids = _with_padding(np.concatenate(pieces.tokens), is_document, pad_id)
    span_sizes = _clipped_spans(pieces)
    supervised = _with_padding(np.repeat(pieces.span_supervised, span_sizes), is_document)
    if pieces.repeated.any():  # most rows repeat nothing, and are spared a pass over all tokens
        supervised &= positions >= np.repeat(pieces.repeated, padded_lengths)
    labels = np.where(supervised, ids, np.int32(IGNORE_INDEX))
    # Only now, because until here `positions` count from each piece's own first token.
    if pieces.branches is not None:
        positions += np.repeat(pieces.branches.prefixes, padded_lengths)
    # A piece's first token follows the end of another document, so nothing may be trained to predict it. Of pieces of
    # 2 and 3 tokens that are all supervised, the labels at 0 and 2 go, and the pieces have 1 and 2.
    first_supervised = supervised[begins]
    labels[begins] = IGNORE_INDEX
    # The supervised tokens of each piece, from where it begins up to where the next one does, but for its first token.
    trained = np.add.reduceat(supervised, begins, dtype=np.int32) - first_supervised.astype(np.int32)

    weights = None
    weight_sums = None
    if pieces.weights is not None:
        scales = pieces.weights.scales
        if pieces.weights.by_document:
            scales = scales / np.maximum(trained, 1)  # a piece without labels has no weights anyway
        span_weights = (pieces.weights.spans * np.repeat(scales, np.diff(pieces.span_offsets))).astype(np.float32)
        token_weights = _with_padding(np.repeat(span_weights, span_sizes), is_document)
        weights = np.where(labels != IGNORE_INDEX, token_weights, np.float32(0))
        weight_sums = np.add.reduceat(weights, begins, dtype=np.float64)

    # Where the list of each row begins in the values of a column.
    list_offsets = {
        Per.TOKEN: offsets[pieces.row_offsets],
        Per.PIECE: pieces.row_offsets,
        Per.ROW: np.arange(len(pieces.row_offsets)),
    }
    tokens = RowTokens(
        pieces, lengths=padded_lengths, input_ids=ids, labels=labels, position_ids=positions, loss_weights=weights
    )
    arrays = [lists(list_offsets[column.per], VALUES[column.usual](tokens), column.field.type) for column in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema_of_columns(columns))
    return LaidOut(batch, trained=trained, heads=first_supervised, weights=weight_sums)


def _with_padding(values: NDArray[_T], is_document: NDArray[np.bool_] | None, filler: int = 0) -> NDArray[_T]:
    """(T,) the values of documents' tokens, with a filler where there is padding.

    Args:
        is_document: (T,) whether a token belongs to a document; None if nothing is padded.
    """
    if is_document is None:
        return values
    padded = np.full(len(is_document), filler, dtype=values.dtype)
    padded[is_document] = values
    return padded


def _clipped_spans(pieces: PlannedPieces) -> NDArray[np.int32]:
    """(spans,) how many tokens of its piece each span covers (0 outside the piece)."""
    # A document whose spans end at 4, 9 and 12, and a piece of its tokens 3 to 9: 1 5 1.
    spans_of_pieces = np.diff(pieces.span_offsets)
    span_begins = begins_of(pieces.span_ends, pieces.span_offsets)
    piece_begins = np.repeat(pieces.starts, spans_of_pieces)
    piece_ends = piece_begins + np.repeat(pieces.lengths, spans_of_pieces)
    sizes = np.minimum(pieces.span_ends, piece_ends) - np.maximum(span_begins, piece_begins)
    covered: NDArray[np.int32] = np.maximum(sizes, 0)
    return covered
