"""Keeps copies of a document in different rows, as far as that costs few rows.

Copies have the same size, so a row holds two of them only if it holds several pieces of one size. Pieces of one size
are placed in the order of their indices, and copies are far apart in it. If the nearest copies of a size are 3 apart,
and a row takes at most 3 neighbouring pieces of it, no row holds two copies.

Legend: `N` pieces, `R` rows, `C` capacity.
"""

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .best_fit import Placement, best_fit_decreasing, descending, rows_needed
from .tight import tight_rows

_FURTHER_ROWS = 0.01
"""The share of further rows that keeping copies apart may cost; one row in any case."""
_LAST_ROWS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Shares of the rows, the last ones, that may hold copies together. Of 200 documents, each ten times, keeping all apart
needs 188 rows in place of 184; with the last 0.5 % free, 185 suffice, and 102 further copies stand beside another in
place of 1,434."""


def best_fit_apart(
    plain: Placement,
    sizes: NDArray[np.integer],
    counts: NDArray[np.int64],
    max_docs: int | None,
    same: NDArray[np.int64],
) -> Placement:
    """Place the pieces again by best-fit-decreasing, with copies in different rows. Where that costs too many rows,
    rows may take twice as many pieces of a size, then four times as many, and so on.

    Args:
        plain: best-fit-decreasing without regard to copies.
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) how many pieces have each size.
        max_docs: the most pieces in a row; None for no limit.
        same: (N,) a number that the copies of a piece share.
    """
    max_of_size = max_of_sizes(sizes, counts, same)
    rows = len(plain.row_offsets) - 1
    while (max_of_size < counts).any():  # else no size is limited any more, which is `plain`
        if rows_needed(counts, max_docs, max_of_size) <= _allowed(rows):
            return best_fit_decreasing(sizes, counts, max_docs, max_of_size)
        max_of_size *= 2
    return plain


def tight_apart(
    plain: Placement,
    sizes: NDArray[np.integer],
    counts: NDArray[np.int64],
    max_docs: int | None,
    same: NDArray[np.int64],
) -> Placement:
    """Place the pieces again by `tight`, with copies in different rows. Where that costs too many rows, the last rows
    are filled without a limit, and pieces of equal size change places.

    Args:
        plain: the rows of `tight` without regard to copies.
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) how many pieces have each size.
        max_docs: the most pieces in a row; None for no limit.
        same: (N,) a number that the copies of a piece share.
    """
    max_of_size = max_of_sizes(sizes, counts, same)
    rows = len(plain.row_offsets) - 1
    if (max_of_size >= counts).all():
        return plain
    for share in _LAST_ROWS:
        rows_apart = None  # all
        if share:
            rows_apart = rows - int(rows * share)
        placement = tight_rows(sizes, counts, max_docs, max_of_size, rows_apart)
        if len(placement.row_offsets) - 1 <= _allowed(rows):
            break
    else:  # with every share, it costs too many rows
        placement = plain
    return _exchanged(placement, sizes, same)


def max_of_sizes(sizes: NDArray[np.integer], counts: NDArray[np.int64], same: NDArray[np.int64]) -> NDArray[np.int64]:
    """(C + 1,) how many pieces of each size a row may take at once, without taking two copies of one document.

    A row takes neighbours of the order in which pieces are placed, larger ones first. Where pieces of one size stand in
    the order `a b a b`, by their documents, copies are 2 apart, so that a row may take 2 of them at once.

    Args:
        sizes: (N,) of the pieces, from 1 to C.
        counts: (C + 1,) how many pieces have each size.
        same: (N,) a number that the copies of a document share.
    """
    # The place of each piece in the order of placing.
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[descending(sizes, len(counts) - 1)] = np.arange(len(sizes))
    # Copies stand together in this order, each behind the one that is placed before it.
    order = np.lexsort((rank, same))
    piece = order[1:]
    piece_before = order[:-1]
    # Sizes are compared too, because pieces that a strategy cuts from one document share its number.
    are_copies = (same[piece_before] == same[piece]) & (sizes[piece_before] == sizes[piece])
    distances = rank[piece] - rank[piece_before]
    max_of_size = counts.copy()
    np.minimum.at(max_of_size, sizes[piece_before[are_copies]], distances[are_copies])
    return max_of_size


def _allowed(rows: int) -> int:
    """The most rows that may be used where `rows` suffice without regard to copies."""
    return rows + max(1, int(rows * _FURTHER_ROWS))


def _exchanged(placement: Placement, sizes: NDArray[np.integer], same: NDArray[np.int64]) -> Placement:
    """The same rows of sizes, in which pieces of equal size have changed places so that the fewest copies stand
    together. Sizes without copies in one row are left as they are.
    """
    order = placement.order
    # Rows of the documents a b a and b c: place 2 stands together with place 0, since both are a in row 0.
    row = np.repeat(np.arange(len(placement.row_offsets) - 1), np.diff(placement.row_offsets))
    by_copy = np.lexsort((same[order], row))
    place = by_copy[1:]
    place_before = by_copy[:-1]
    stands_together = (row[place_before] == row[place]) & (same[order[place_before]] == same[order[place]])
    if not stands_together.any():
        return placement
    sizes_together = np.unique(sizes[order[place[stands_together]]])
    places = np.flatnonzero(np.isin(sizes[order], sizes_together))
    # Places of one size stand together here, and are cut where the next size begins: sizes 5 5 3 3 3 at 2.
    places = places[np.argsort(sizes[order[places]], kind="stable")]
    exchanged = order.copy()
    for places_of_size in np.split(places, np.flatnonzero(np.diff(sizes[order[places]])) + 1):
        exchanged[places_of_size] = _dealt(np.sort(order[places_of_size]), row[places_of_size], same)
    return Placement(exchanged, placement.row_offsets)


def _dealt(pieces: NDArray[np.int64], rows: NDArray[np.int64], same: NDArray[np.int64]) -> NDArray[np.int64]:
    """Deal pieces of one size to their places with the fewest copies in one row: documents with the most copies first,
    each to the rows with the most places left (Gale 1957, Ryser 1957).

    Args:
        pieces: (K,) indices of pieces, ascending.
        rows: (K,) the row of each place.
        same: (N,) of all pieces, a number that the copies of a piece share.

    Returns:
        (K,) the piece at each place.
    """
    documents = defaultdict[int, list[int]](list)
    for piece, document in zip(pieces.tolist(), same[pieces].tolist(), strict=True):
        documents[document].append(piece)
    places = defaultdict[int, list[int]](list)
    for place, row in enumerate(rows.tolist()):
        places[row].append(place)
    # Python's heap gives the smallest first, so the number of places left is negative.
    free_rows = [(-len(places_of_row), row) for row, places_of_row in places.items()]
    heapify(free_rows)
    dealt = np.empty_like(pieces)
    for copies in sorted(documents.values(), key=len, reverse=True):
        # A row that got a copy is set aside until all copies of the document are dealt, so that no row gets two of them
        # while there is another.
        rows_with_copy = list[tuple[int, int]]()
        for piece in copies:
            if not free_rows:  # there are fewer rows than copies: a second round over those that were set aside
                free_rows = rows_with_copy
                rows_with_copy = []
                heapify(free_rows)
            minus_places, row = heappop(free_rows)
            dealt[places[row].pop()] = piece
            if minus_places < -1:  # the row has places left
                rows_with_copy.append((minus_places + 1, row))
        for row_left in rows_with_copy:
            heappush(free_rows, row_left)
    return dealt
