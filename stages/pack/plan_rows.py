"""Turns lengths into a LayoutPlan, without looking at tokens.

Legend: `N` documents given, `D` pieces planned, `R` rows, `C` capacity of a row, `L` limit of a document, `T` tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...schemas.errors import ConfigError, InputError
from ...schemas.layout import Certificate, LayoutPlan
from ...schemas.ragged import ranges
from ...schemas.tables.strategies import STRATEGIES, StrategyName
from .best_fit import Placement, best_fit_decreasing, rows_needed
from .bounds import bound_of_whole_pieces, size_counts
from .copies_apart import best_fit_apart, tight_apart
from .tight import tight_rows

Sizes: TypeAlias = NDArray[np.integer[Any]]
Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placing:
    """How a strategy that does not join documents places its pieces."""

    place: Callable[[Sizes, Counts, int | None], Placement]
    """(N,) sizes in 1..C; (C + 1,) how many there are of each; the most pieces in a row, or None → the rows."""
    keep_apart: Callable[[Placement, Sizes, Counts, int | None, NDArray[np.int64]], Placement] | None = None
    """What `place` gave, its three arguments, and (N,) a number that copies share → rows with copies kept apart. None:
    they stay where they are."""
    count_rows: Callable[[Counts, int | None], int] | None = None
    """(C + 1,) how many pieces there are of each size, and the most pieces in a row → the number of rows, where that is
    quicker than placing the pieces. None: they are placed."""


def one_in_a_row(sizes: Sizes, counts: Counts, max_docs: int | None) -> Placement:
    """Each piece in a row of its own, in the given order. `counts` and `max_docs` are not used: they are there because
    every `Placing.place` is called with them.
    """
    return Placement(np.arange(len(sizes), dtype=np.int64), np.arange(len(sizes) + 1, dtype=np.int64))


PLACING = {
    "bfd": Placing(best_fit_decreasing, keep_apart=best_fit_apart, count_rows=rows_needed),
    "tight": Placing(tight_rows, keep_apart=tight_apart),
    "bfd_split": Placing(best_fit_decreasing, keep_apart=best_fit_apart, count_rows=rows_needed),
    "none": Placing(one_in_a_row, count_rows=lambda counts, _: int(counts.sum())),
}
"""How each strategy of `schemas.tables.strategies` places pieces, but those that join documents."""

_MOST = 1 << 24
"""The largest capacity; the planner keeps a few arrays with one entry per possible size."""


@dataclass(frozen=True, slots=True, eq=False)
class _PiecesToPlace:
    """The pieces to place, in the order of the documents."""

    order: NDArray[np.int64] | None
    """(D,) the document of each piece; None if piece p is document p."""
    starts: NDArray[np.int64] | None
    """(D,) first token within the document; None if all are 0."""
    lengths: NDArray[np.int32]
    """(D,) tokens."""


def plan_rows(
    lengths: ArrayLike,
    max_length: int,
    strategy: StrategyName = "bfd",
    *,
    row_length: int | None = None,
    max_docs: int | None = None,
    align: int = 1,
    same: NDArray[np.int64] | None = None,
) -> LayoutPlan:
    """Decide which document piece goes into which row.

    Empty documents are skipped; `bfd`, `tight` and `none` plan the first `max_length` tokens of longer ones. For `bfd`
    and `bfd_split` the rows are those of the per-sequence best-fit-decreasing algorithm, in its order; `tight` never
    has more rows than `bfd`. The result depends on the arguments alone.
    Needs about 30 bytes per document besides `lengths`.

    Args:
        lengths: (N,) tokens of each document, integers of 0 or more.
        max_length: `L`, the most tokens of a document, 2 to 2**24. `bfd_split` and `wrapped`, which cut documents at
            `row_length`, ignore it.
        strategy: see `schemas.tables.strategies`.
        row_length: `C`, the most tokens a row may hold, `max_length` to 2**24. None: `max_length`.
        max_docs: maximum number of pieces in a row. Not for `wrapped`.
        align: every piece takes a multiple of this in its row; the padding is not part of the plan's `lengths`. Divides
            `row_length`. Not for `wrapped`.
        same: (N,) a number that copies of a document share. A row of `bfd`, `tight` and `bfd_split` gets no two of
            them, unless that needs more than 1 % (and more than one) further rows; then as few as these rows allow, as
            far as `copies_apart` finds them.

    Raises:
        ConfigError: an option is out of range, or two of them exclude each other.
        InputError: `lengths` is not one-dimensional, not of integers, or has a negative value.
    """
    capacity = max_length if row_length is None else row_length
    _check_options(max_length, capacity, strategy, max_docs, align)
    document_lengths = _as_lengths(lengths)
    does = STRATEGIES[strategy]
    if does.joins_documents:
        return _joined(document_lengths, capacity)
    pieces = _split(document_lengths, capacity) if does.cuts_documents else _truncate(document_lengths, max_length)
    # In units of `align`, so that aligned packing is ordinary packing of fewer, larger units.
    sizes = pieces.lengths if align == 1 else (pieces.lengths - 1) // align + 1
    counts = size_counts(sizes, capacity // align)
    placing = PLACING[strategy]
    placement = placing.place(sizes, counts, max_docs)
    if same is not None and placing.keep_apart is not None:
        same_pieces = same if pieces.order is None else same[pieces.order]
        placement = placing.keep_apart(placement, sizes, counts, max_docs, same_pieces)
    index = placement.order
    return LayoutPlan(
        order=index if pieces.order is None else pieces.order[index],
        starts=np.zeros(len(index), dtype=np.int64) if pieces.starts is None else pieces.starts[index],
        lengths=pieces.lengths[index],
        row_offsets=placement.row_offsets,
        certificate=Certificate(
            rows=len(placement.row_offsets) - 1,
            bound=bound_of_whole_pieces(counts, max_docs),
            tokens=int(pieces.lengths.sum(dtype=np.int64)),
            pieces=len(index),
        ),
    )


def count_rows(counts: Counts, strategy: StrategyName, max_docs: int | None = None) -> int:
    """How many rows a strategy that does not join documents needs for pieces of these sizes. Copies are not kept apart.

    Args:
        counts: (C + 1,) how many pieces have each size, none of them size 0.
        max_docs: the most pieces in a row; None for no limit.
    """
    placing = PLACING[strategy]
    if placing.count_rows is not None:
        return placing.count_rows(counts, max_docs)
    # A piece of size C is alone in its row. A text that is cut has very many of them: they need no place in memory.
    alone = int(counts[-1])
    smaller = counts.copy()
    smaller[-1] = 0
    if not smaller.any():
        return alone
    sizes = np.repeat(np.arange(len(smaller), dtype=np.int32), smaller)
    return alone + len(placing.place(sizes, smaller, max_docs).row_offsets) - 1


def _check_options(max_length: int, row_length: int, strategy: str, max_docs: int | None, align: int) -> None:
    """Raise ConfigError for the first option that is unknown or out of range, or does not go with the others."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy: {strategy!r} is not known. Use one of {', '.join(STRATEGIES)}.")
    numbers = [("max_length", max_length, 2), ("row_length", row_length, 2), ("align", align, 1)]
    if max_docs is not None:
        numbers.append(("max_docs", max_docs, 1))
    for name, value, least in numbers:
        if not isinstance(value, int | np.integer) or not least <= value <= _MOST:
            raise ConfigError(f"{name}: {value!r} is not an integer from {least} to {_MOST}.")
    if row_length < max_length:
        raise ConfigError(f"row_length: {row_length} is less than max_length {max_length}, the longest document.")
    if row_length % align:
        key = "max_length" if row_length == max_length else "row_length"
        raise ConfigError(f"align: {align} does not divide {key} {row_length}.")
    if STRATEGIES[strategy].joins_documents and (max_docs is not None or align > 1):
        raise ConfigError(
            f"strategy {strategy} lays documents end to end. Leave max_docs and align out, or use bfd_split."
        )


def _as_lengths(lengths: ArrayLike) -> NDArray[np.integer]:
    """Return (N,) the lengths as integers, without a copy if they already are an array of integers."""
    array = np.asarray(lengths)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or int(array.min()) < 0:
        raise InputError(
            f"lengths: {array.dtype} of shape {array.shape}. Give the tokens of each document, integers of 0 or more."
        )
    return array


def _truncate(lengths: NDArray[np.integer], limit: int) -> _PiecesToPlace:
    """One piece for each non-empty document: its first `limit` tokens."""
    order = None
    # Without empty or overlong documents, as usual, the lengths are planned without a copy. `initial` counts as one
    # more length, because there may be no document.
    if lengths.min(initial=1) == 0:
        order = np.flatnonzero(lengths)
        lengths = lengths[order]
    if lengths.max(initial=0) > limit:
        # In the type of the lengths, which can hold the limit because some length is above it; no wider one is needed.
        lengths = np.minimum(lengths, lengths.dtype.type(limit))
    return _PiecesToPlace(order=order, starts=None, lengths=lengths.astype(np.int32, copy=False))


def _split(lengths: NDArray[np.integer], capacity: int) -> _PiecesToPlace:
    """Pieces [0:C), [C:2C), ... of every document, ordered by document, then by token."""
    if lengths.max(initial=0) <= capacity:
        return _truncate(lengths, capacity)
    # Documents of 5 and 12 tokens in rows of 5 have 1 and 3 pieces: order 0 1 1 1, starts 0 0 5 10, lengths 5 5 5 2.
    tokens = lengths.astype(np.int64)
    number = -(-tokens // capacity)
    order = np.repeat(np.arange(len(tokens)), number)
    starts = ranges(0, number) * capacity
    piece_lengths = np.minimum(tokens[order] - starts, capacity).astype(np.int32)
    return _PiecesToPlace(order=order, starts=starts, lengths=piece_lengths)


def _joined(lengths: NDArray[np.integer], capacity: int) -> LayoutPlan:
    """Documents end to end, cut every `capacity` tokens: one piece for each row that a document touches."""
    # Documents of 5 and 8 tokens in rows of 6: they begin at 0 and 5 and end at 5 and 13, so that the first touches
    # row 0, and the second rows 0, 1 and 2. Pieces, as document [start:end): 0 [0:5), 1 [0:1), 1 [1:7), 1 [7:8).
    kept = np.flatnonzero(lengths)
    tokens = lengths[kept].astype(np.int64)
    ends = np.cumsum(tokens)
    begins = ends - tokens
    first_row = begins // capacity
    number = (ends - 1) // capacity - first_row + 1
    document = np.repeat(np.arange(len(kept)), number)
    row = ranges(first_row, number)
    left = np.maximum(begins[document], row * capacity)
    right = np.minimum(ends[document], (row + 1) * capacity)
    total = int(tokens.sum())
    rows = -(-total // capacity)
    # These pieces are in the rows 0 0 1 2, which begin at the pieces 0, 2 and 3, and end at 4.
    row_offsets = np.searchsorted(row, np.arange(rows + 1)).astype(np.int64)
    return LayoutPlan(
        order=kept[document],
        starts=left - begins[document],
        lengths=(right - left).astype(np.int32),
        row_offsets=row_offsets,
        # All rows but the last are full, so no plan has fewer.
        certificate=Certificate(rows=rows, bound=rows, tokens=total, pieces=len(document)),
    )
