"""Best-fit-decreasing by classes: the rows of the per-sequence algorithm without a loop over sequences.

Sizes are integers up to the capacity `C`, so all sequences of one size are alike, and so are all open rows
with the same free space. The walk below moves whole groups of them.

Legend: `N` sequences, `R` rows, `V` group moves, `C` capacity.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of

_BLOCK = 1 << 18
"""Sequences placed at once: few enough that a block's arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The sequences of each row: row r holds `order[row_offsets[r]:row_offsets[r + 1]]`."""

    order: NDArray[np.int64]
    """(N,) indices of sequences, row by row: rows in the order they were opened, sequences in the order they were
    placed.
    """
    row_offsets: NDArray[np.int64]
    """(R + 1,) where each row begins in `order`."""


def best_fit_decreasing(
    sizes: NDArray[np.integer],
    counts: NDArray[np.int64],
    max_docs: int | None = None,
    max_of_size: NDArray[np.int64] | None = None,
) -> Placement:
    """Pack `sizes` into rows of capacity `C`, best fit, largest first.

    Ties are settled as in the per-sequence algorithm on a stable descending sort: among equal sequences the smaller
    index goes first, and among rows with equal space the one that has had that space longest.

    Args:
        sizes: (N,) integers in 1..C.
        counts: (C + 1,) `counts[s]` is the number of sequences of size s.
        max_docs: the most sequences in a row; None for no limit.
        max_of_size: (C + 1,) how many of each size a row may take; None for no limit.

    Best-fit-decreasing: D. S. Johnson, Near-optimal bin packing algorithms, 1973. For training sequences: H.
    Ding and others, Fewer Truncations Improve Language Modeling, 2024 (arXiv 2404.10830), whose walk over a
    segment tree costs O(N log C); here the walk costs O(V) and the rest is one radix sort.
    """
    by_size = descending(sizes, len(counts) - 1)
    moves, rows = _walk(counts, max_docs, max_of_size)
    row_offsets = _row_offsets(moves, rows)
    return Placement(_resolve(moves, row_offsets, by_size), row_offsets)


def rows_needed(
    counts: NDArray[np.int64], max_docs: int | None = None, max_of_size: NDArray[np.int64] | None = None
) -> int:
    """Count the rows that `best_fit_decreasing` opens, without placing sequences.

    Args:
        counts: (C + 1,) how many sequences have each size, none of them size 0.
        max_docs: the most sequences in a row; None for no limit.
        max_of_size: (C + 1,) how many of each size a row may take; None for no limit.
    """
    return _walk(counts, max_docs, max_of_size)[1]  # the number of rows, without the moves


def descending(sizes: NDArray[np.integer], capacity: int) -> NDArray[np.integer]:
    """(N,) indices of the sequences, largest first; equal ones in the order of their indices.

    Args:
        sizes: (N,) integers in 0..capacity.
    """
    # Sorted by the space that each leaves in a row: reversing an ascending order would reverse equal ones as well.
    kind = np.uint16 if capacity < 1 << 16 else np.int32  # of 16 bits, numpy's stable sort is a radix sort
    return np.argsort((capacity - sizes.astype(np.int32)).astype(kind), kind="stable")


def _walk(
    counts: NDArray[np.int64], max_docs: int | None, max_of_size: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], int]:
    """Place every size, largest first, in group moves. Return the moves in order, and the number of rows.

    A move is (row, rows, slot, per_row): it puts `per_row` sequences into each of `rows` neighbouring rows from number
    `row` on, which already hold `slot` sequences each. Moves take the sequences in sorted order, without gaps.

    A row may take all it can hold of a size before another row is considered. Its space r was the smallest that fits,
    so no open row has a space in [size, r). After one placement its space is either below the size, or the only one in
    that range and so again the smallest that fits. When done, the row joins the queue of its new space, in the order in
    which the group's rows were processed. A row that may take no more of a size waits for the next one.

    Rows of 10, and the sizes 6 6 6 4 4 3 3 3 3 1 1:

        size    move (row, rows, slot, per_row)    spaces afterwards
        6       (0, 3, 0, 1)                       4 4 4
        4       (0, 2, 1, 1)                       0 0 4
        3       (2, 1, 1, 1) (3, 1, 0, 3)          0 0 1 1
        1       (2, 1, 2, 1) (3, 1, 3, 1)          0 0 0 0
    """
    capacity = len(counts) - 1
    if max_of_size is None:
        max_of_size = counts
    most_in_row = max_docs
    if most_in_row is None:
        most_in_row = int(counts.sum()) + 1  # more than there are
    spaces = 0  # as bits: the free spaces of all open rows that may take more
    queues: dict[int, deque[tuple[int, int, int]]] = {}  # space -> groups (first row, rows, sequences in each)
    waiting: list[tuple[int, int, int, int]] = []  # (first row, rows, sequences in each, space)
    moves: list[tuple[int, int, int, int]] = []
    opened = 0

    def move(row: int, rows: int, slot: int, per_row: int, left: int) -> None:
        """Put `per_row` sequences of the loop's `size` into each row of a group, which then has `left` free."""
        moves.append((row, rows, slot, per_row))
        held = slot + per_row
        if not left or held >= most_in_row:
            return  # full: never open again
        if left >= size:  # may take no more of this size, or none is left: it waits for the next size
            waiting.append((row, rows, held, left))
        else:
            release(row, rows, held, left)

    def release(row: int, rows: int, held: int, left: int) -> None:
        """Put a group of rows into the queue of their space `left`, from which they may take more."""
        nonlocal spaces
        queue = queues.get(left)
        if queue is None:
            queue = queues[left] = deque()
        if queue:
            last_row, last_rows, last_held = queue[-1]
            if last_row + last_rows == row and last_held == held:  # merge equal neighbours into one group
                queue.pop()
                row = last_row
                rows += last_rows
        queue.append((row, rows, held))
        spaces |= 1 << left

    present = np.flatnonzero(counts)[::-1]
    numbers = counts[present].tolist()
    limits_of_sizes = max_of_size[present].tolist()
    for size, left_to_place, at_most in zip(present.tolist(), numbers, limits_of_sizes, strict=True):
        while left_to_place:
            fitting = spaces >> size  # bit i: some row has the space size + i
            if not fitting:
                # The rest opens new rows: of 7 sequences, 3 to a row, two rows take 3 and one takes the last.
                per_row = min(capacity // size, most_in_row, at_most)
                full, remainder = divmod(left_to_place, per_row)
                if full:
                    move(opened, rows=full, slot=0, per_row=per_row, left=capacity - per_row * size)
                if remainder:
                    left = capacity - remainder * size
                    move(opened + full, rows=1, slot=0, per_row=remainder, left=left)
                opened += full + (remainder > 0)
                break
            space = size + (fitting & -fitting).bit_length() - 1  # the lowest bit: the smallest space that fits
            queue = queues[space]
            fits = min(space // size, at_most)
            while queue and left_to_place:
                row, rows, slot = queue.popleft()
                per_row = min(fits, most_in_row - slot)
                full = min(left_to_place // per_row, rows)  # rows of the group that get all they may take
                if full:
                    move(row, full, slot, per_row, space - per_row * size)
                    left_to_place -= full * per_row
                if full == rows:
                    continue
                if left_to_place:  # fewer than `per_row`: the last of this size
                    left = space - left_to_place * size
                    move(row + full, rows=1, slot=slot, per_row=left_to_place, left=left)
                    full += 1
                    left_to_place = 0
                if full < rows:  # the size is used up: these rows keep their space, and their place in the queue
                    queue.appendleft((row + full, rows - full, slot))
            if not queue:
                spaces ^= 1 << space  # no open row has this space now
        for group in waiting:
            release(*group)
        waiting.clear()

    return np.array(moves, dtype=np.int64).reshape(len(moves), 4), opened


def _row_offsets(moves: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """(R + 1,) where each row begins in `Placement.order`, from the number of sequences that moves put into it."""
    first_row, number, _, per_row = moves.T
    # A move changes a range of rows, so only both ends are noted: 2 more in rows 3 to 5 are + 2 at row 3 and - 2 at row
    # 6. The running sum is the number of sequences in each row; the last entry only takes the ends behind row R - 1.
    change = np.zeros(rows + 1, dtype=np.int64)
    np.add.at(change, first_row, per_row)
    np.subtract.at(change, first_row + number, per_row)
    return offsets_of(np.cumsum(change[:-1]))


def _resolve(
    moves: NDArray[np.int64], row_offsets: NDArray[np.int64], by_size: NDArray[np.integer]
) -> NDArray[np.int64]:
    """(N,) the sequences in the order of rows. Sequence i of a move goes to row i // per_row of its rows, to the place
    i % per_row behind those that the row has already.

    A move that puts 2 sequences into each of the rows 7 and 8, which hold one already, gives its 4 sequences the rows
    7 7 8 8 and the places 1 2 1 2.

    Placed in blocks, whose arrays stay in the processor's cache, and in place, without further arrays.

    Args:
        moves: (V, 4) from `_walk`.
        row_offsets: (R + 1,) where each row begins.
        by_size: (N,) indices of the sequences, largest first, which is the order in which moves take them.
    """
    order = np.empty(len(by_size), dtype=np.int64)
    first_rows, row_counts, slots, per_row_of_moves = np.ascontiguousarray(moves.T)
    # Which sequences, in the order of `by_size`, each move takes: from `begins` up to `ends`.
    ends = np.cumsum(row_counts * per_row_of_moves)
    begins = ends - row_counts * per_row_of_moves
    block_bounds = [*range(0, len(by_size), _BLOCK), len(by_size)]
    for begin, end in pairwise(block_bounds):
        # The moves of the block: from the first that ends in it or behind it, to the last that begins before its end.
        first_move = int(np.searchsorted(ends, begin, side="right"))
        last_move = int(np.searchsorted(begins, end, side="left"))
        block = slice(first_move, last_move)
        # A move may begin in an earlier block, and end in a later one.
        in_block = np.minimum(ends[block], end) - np.maximum(begins[block], begin)
        # First the number i of each sequence in its move; then its place in its row; at last its place in `order`.
        place = np.arange(begin, end) - np.repeat(begins[block], in_block)
        per_row = np.repeat(per_row_of_moves[block], in_block)
        row = place // per_row
        place -= row * per_row
        place += np.repeat(slots[block], in_block)
        row += np.repeat(first_rows[block], in_block)
        place += row_offsets[row]
        order[place] = by_size[begin:end]
    return order
