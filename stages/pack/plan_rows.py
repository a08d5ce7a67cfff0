"""Turns lengths into a LayoutPlan, without looking at tokens.

Legend: `N` documents given, `D` pieces planned, `R` rows, `C` capacity of a row, `L` limit of a document, `T` tokens.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...schemas.errors import ConfigError, InputError
from ...schemas.layout import Certificate, LayoutPlan
from ...schemas.ragged import ranges
from .best_fit import Placement, best_fit_decreasing
from .bounds import bound_of_whole_pieces, size_counts
from .copies_apart import best_fit_apart, tight_apart
from .tight import tight_rows

Strategy: TypeAlias = Literal["bfd", "tight", "bfd_split", "wrapped", "none"]
"""How documents are put into rows.

`bfd`: best-fit-decreasing; a document longer than L is planned as its first L tokens.
`tight`: the same pieces, in fewer rows where filling one after another needs fewer.
`bfd_split`: best-fit-decreasing over the pieces [0:C), [C:2C), ... of every document; no token is left out.
`wrapped`: concatenate all documents and cut every C tokens.
`none`: each row holds the first L tokens of one document.
"""

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
    strategy: Strategy = "bfd",
    *,
    row_length: int | None = None,
    max_docs: int | None = None,
    align: int = 1,
    same: NDArray[np.int64] | None = None,
) -> LayoutPlan:
    """Decide which document piece goes into which row.

    Empty documents are skipped; `bfd`, `tight` and `none` plan the first `max_length` tokens of longer ones. For `bfd`
    and `bfd_split` the rows are those of the per-sequence best-fit-decreasing algorithm, in its order (see `best_fit`);
    for `tight` see there. The result depends on the arguments alone.
    Needs about 30 bytes per document besides `lengths`.

    Args:
        lengths: (N,) tokens of each document, integers of 0 or more.
        max_length: `L`, the most tokens of a document, 2 to 2**24. `bfd_split` and `wrapped`, which cut documents at
            `row_length`, ignore it.
        strategy: see `Strategy`.
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
    given = _as_lengths(lengths)
    if strategy == "wrapped":
        return _wrap(given, capacity)
    pieces = _split(given, capacity) if strategy == "bfd_split" else _truncate(given, max_length)
    # In units of `align`, so that aligned packing is ordinary packing of fewer, larger units.
    sizes = pieces.lengths if align == 1 else (pieces.lengths - 1) // align + 1
    units = capacity // align
    counts = size_counts(sizes, units)
    if strategy == "none":
        placement = Placement(np.arange(len(sizes), dtype=np.int64), np.arange(len(sizes) + 1, dtype=np.int64))
    else:
        placement = (tight_rows if strategy == "tight" else best_fit_decreasing)(sizes, counts, max_docs)
        if same is not None:
            of_pieces = same if pieces.order is None else same[pieces.order]
            keep_apart = tight_apart if strategy == "tight" else best_fit_apart
            placement = keep_apart(placement, sizes, counts, max_docs, of_pieces)
    index, row_offsets = placement.order, placement.row_offsets
    return LayoutPlan(
        order=index if pieces.order is None else pieces.order[index],
        starts=np.zeros(len(index), dtype=np.int64) if pieces.starts is None else pieces.starts[index],
        lengths=pieces.lengths[index],
        row_offsets=row_offsets,
        certificate=Certificate(
            rows=len(row_offsets) - 1,
            bound=bound_of_whole_pieces(counts, max_docs),
            tokens=int(pieces.lengths.sum(dtype=np.int64)),
            pieces=len(index),
        ),
    )


def _check_options(max_length: int, row_length: int, strategy: str, max_docs: int | None, align: int) -> None:
    if strategy not in get_args(Strategy):
        known = ", ".join(get_args(Strategy))
        raise ConfigError(f"strategy: {strategy!r} is not known. Use one of {known}.")
    pieces = 1 if max_docs is None else max_docs
    lengths = (("max_length", max_length, 2), ("row_length", row_length, 2))
    for name, value, least in (*lengths, ("max_docs", pieces, 1), ("align", align, 1)):
        if not isinstance(value, int | np.integer) or not least <= value <= _MOST:
            raise ConfigError(f"{name}: {value!r} is not an integer from {least} to {_MOST}.")
    if row_length < max_length:
        raise ConfigError(f"row_length: {row_length} is less than max_length {max_length}, the longest document.")
    if row_length % align:
        key = "max_length" if row_length == max_length else "row_length"
        raise ConfigError(f"align: {align} does not divide {key} {row_length}.")
    if strategy == "wrapped" and (max_docs is not None or align > 1):
        raise ConfigError("strategy wrapped lays documents end to end. Leave max_docs and align out, or use bfd_split.")


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
    kept = None if not len(lengths) or lengths.min() else np.flatnonzero(lengths)
    if kept is not None:
        lengths = lengths[kept]
    if len(lengths) and lengths.max() > limit:
        lengths = np.minimum(lengths, lengths.dtype.type(limit))
    return _PiecesToPlace(kept, None, lengths.astype(np.int32, copy=False))


def _split(lengths: NDArray[np.integer], capacity: int) -> _PiecesToPlace:
    """Pieces [0:C), [C:2C), ... of every document, ordered by document, then by token."""
    if not len(lengths) or lengths.max() <= capacity:
        return _truncate(lengths, capacity)
    tokens = lengths.astype(np.int64)
    number = -(-tokens // capacity)
    order = np.repeat(np.arange(len(tokens)), number)
    starts = ranges(0, number) * capacity
    return _PiecesToPlace(order, starts, np.minimum(tokens[order] - starts, capacity).astype(np.int32))


def _wrap(lengths: NDArray[np.integer], capacity: int) -> LayoutPlan:
    """Documents end to end, cut every `capacity` tokens: one piece for each row that a document touches."""
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
    return LayoutPlan(
        order=kept[document],
        starts=left - begins[document],
        lengths=(right - left).astype(np.int32),
        row_offsets=np.searchsorted(row, np.arange(rows + 1)).astype(np.int64),
        certificate=Certificate(rows, rows, total, len(document)),
    )
