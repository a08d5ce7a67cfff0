"""Turns planned pieces into the columns of packed rows, vectorised over one chunk of rows at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import lists
from ...schemas.layout import Alignment
from ...schemas.ragged import begins_of, offsets_of
from ...schemas.rows import IGNORE_INDEX, packed_schema

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RunWeights:
    """How much the tokens of D pieces count in the loss."""

    spans: NDArray[np.float32]
    """(spans,) the loss weight of each span's tokens."""
    scales: NDArray[np.float64]
    """(D,) what the weights of each piece are multiplied by."""
    by_document: bool
    """Whether the weights of a piece are divided by its number of trained labels, so that each piece weighs the same
    whatever its length."""


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


def lay_out(pieces: PlannedPieces, alignment: Alignment, pad_id: int) -> LaidOut:
    """Make the rows of `schemas.rows.packed_schema`; at least one.

    Padding has the input id `pad_id`, no label, and positions that continue the piece's. Rows have `loss_weights` if
    the pieces have weights: 0 where there is no label.
    """
    padded = alignment.padded(pieces.lengths, pieces.row_offsets)
    offsets = offsets_of(padded)
    begins, total = offsets[:-1], int(offsets[-1])
    positions = np.arange(total, dtype=np.int32)
    positions -= np.repeat(begins.astype(np.int32), padded)
    real = positions < np.repeat(pieces.lengths, padded) if alignment.pads else None

    ids = _spread(np.concatenate(pieces.tokens), real, pad_id)
    sizes = _clipped_spans(pieces)
    supervised = _spread(np.repeat(pieces.span_supervised, sizes), real)
    if pieces.repeated.any():
        supervised &= positions >= np.repeat(pieces.repeated, padded)
    labels = np.where(supervised, ids, np.int32(IGNORE_INDEX))
    heads = supervised[begins]
    labels[begins] = IGNORE_INDEX
    trained = np.add.reduceat(supervised, begins, dtype=np.int32) - heads.astype(np.int32)

    token_offsets = offsets[pieces.row_offsets]
    columns: list[tuple[NDArray[np.int64], NDArray[Any]]] = [
        (token_offsets, ids),
        (token_offsets, labels),
        (token_offsets, positions),
        (pieces.row_offsets, padded),
        (pieces.row_offsets, pieces.starts),
        (pieces.row_offsets, pieces.doc_ids),
    ]
    if alignment.unpadded:
        columns.append((pieces.row_offsets, pieces.lengths))
    sums = None
    if pieces.weights is not None:
        scales = pieces.weights.scales / (np.maximum(trained, 1) if pieces.weights.by_document else 1)
        spans = (pieces.weights.spans * np.repeat(scales, np.diff(pieces.span_offsets))).astype(np.float32)
        weights = np.where(labels != IGNORE_INDEX, _spread(np.repeat(spans, sizes), real), np.float32(0))
        sums = np.add.reduceat(weights, begins, dtype=np.float64)
        columns.append((token_offsets, weights))
    schema = packed_schema(unpadded=alignment.unpadded, weights=pieces.weights is not None)
    arrays = [lists(offsets, values, field.type) for (offsets, values), field in zip(columns, schema, strict=True)]
    return LaidOut(pa.RecordBatch.from_arrays(arrays, schema=schema), trained, heads, sums)


def _spread(values: NDArray[_T], real: NDArray[np.bool_] | None, filler: int = 0) -> NDArray[_T]:
    """Return the values of real tokens, with a filler where there is padding."""
    if real is None:
        return values
    out = np.full(len(real), filler, dtype=values.dtype)
    out[real] = values
    return out


def _clipped_spans(pieces: PlannedPieces) -> NDArray[np.int32]:
    """Return (spans,) how many tokens of its piece each span covers (0 outside the piece)."""
    spans = np.diff(pieces.span_offsets)
    begins = begins_of(pieces.span_ends, pieces.span_offsets)
    low = np.repeat(pieces.starts, spans)
    high = low + np.repeat(pieces.lengths, spans)
    sizes = np.minimum(pieces.span_ends, high) - np.maximum(begins, low)
    out: NDArray[np.int32] = np.maximum(sizes, 0)
    return out
