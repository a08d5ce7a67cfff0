"""Decides which rows a step has, and which rank gets each. A step has the same rows on any number of ranks."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from .cost import assign_to_ranks
from .global_order import GlobalOrder


class Tail(StrEnum):
    """What happens to the rows after the last full step. The number of steps is the same on every rank."""

    DROP = "drop"
    """Leave out the remaining rows."""
    PAD = "pad"
    """Fill the last step with untrained rows."""
    REPEAT = "repeat"
    """Fill the last step with the first rows of the order."""


@dataclass(slots=True)  # not frozen, as `RowSpan`: a step of one row takes little longer than that
class Step:
    """The rows of a step, and their ranks."""

    rows: NDArray[np.int64]
    """(B,) the rows."""
    real: int
    """Number of rows that count; the others fill up the last step."""
    tokens: int
    """Number of tokens in the rows that count."""
    rank_rows: list[list[int]]
    """For each rank, indices into `rows`."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Cuts the canonical order into steps, and divides each among the ranks.

    Step s holds positions s·B .. s·B + B - 1, with B rows per step over all ranks.
    """

    global_order: GlobalOrder
    rows_per_step: int
    """Rows per step over all ranks, a multiple of `world_size`."""
    world_size: int
    total: int
    """Number of positions."""
    tail: Tail
    dealt: bool = True
    """Whether a step's rows are assigned to the ranks by cost; else each rank takes consecutive rows."""

    def left(self, position: int) -> int:
        """Return the number of steps from a position on."""
        whole, rest = divmod(max(0, self.total - position), self.rows_per_step)
        return whole + (1 if rest and self.tail is not Tail.DROP else 0)

    def at(self, position: int) -> Step:
        """Return the step that begins at a position of the order."""
        return self.several(position, 1)[0]

    def several(self, position: int, count: int) -> list[Step]:
        """Return the next `count` steps from a position on; only the last may be incomplete. Faster than one by one."""
        width, order = self.rows_per_step, self.global_order
        end = position + count * width
        rows = order.at(position, min(end, self.total))
        begins = np.arange(0, len(rows), width)
        tokens = np.add.reduceat(order.corpus.tokens_of(rows), begins, dtype=np.int64).tolist()
        missing = end - position - len(rows)
        if missing:
            again = -(-missing // self.total)
            first_ones = [order.at(0, min(missing, self.total))] * again
            rows = np.concatenate([rows, *first_ones])[: count * width]
        share = width // self.world_size
        dealt = self.dealt and 1 < share < width
        in_turn = [list(range(r * share, (r + 1) * share)) for r in range(self.world_size)]
        found = []
        for number in range(count):
            of_step = rows[number * width : (number + 1) * width]
            real = width if number < count - 1 else width - missing
            rank_rows = assign_to_ranks(order.costs(of_step), self.world_size) if dealt and real == width else in_turn
            found.append(Step(of_step, real, tokens[number], rank_rows))
        return found
