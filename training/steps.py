"""Which rows a step holds and which rank gets which: a step is the same set of rows on any number of ranks."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from .cost import deal
from .stream import RowStream


class Tail(StrEnum):
    """What happens to the rows after the last full step. The number of steps is the same on every rank."""

    DROP = "drop"
    """They are left out."""
    PAD = "pad"
    """A last step is filled with rows in which nothing is trained."""
    REPEAT = "repeat"
    """A last step is filled with the first rows of the order."""


@dataclass(frozen=True, slots=True)
class Step:
    """Which rows a step holds, and who gets them."""

    rows: NDArray[np.int64]
    """(B,)"""
    real: int
    """How many of them count as handed out; the others fill up the last step."""
    tokens: int
    """Of the rows that count."""
    hands: list[list[int]]
    """For each rank, indices into `rows`."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Cuts the canonical order into steps and deals each among the ranks.

    Step s holds positions s·B .. s·B + B - 1, with B rows a step over all ranks.
    """

    stream: RowStream
    rows_per_step: int
    """A multiple of `world_size`."""
    world_size: int
    total: int
    """Positions in all."""
    tail: Tail
    dealt: bool = True
    """Whether a step's rows are dealt to the ranks by cost; else each rank takes consecutive ones."""

    def left(self, position: int) -> int:
        """Steps from a position on."""
        whole, rest = divmod(max(0, self.total - position), self.rows_per_step)
        return whole + (1 if rest and self.tail is not Tail.DROP else 0)

    def at(self, position: int) -> Step:
        """The step whose first row stands at a position of the order."""
        real = min(self.rows_per_step, self.total - position)
        rows = self.stream.at(position, position + real)
        tokens = self.stream.corpus.tokens(rows.tolist())
        missing = self.rows_per_step - real
        if missing:
            again = -(-missing // self.total)
            first_ones = [self.stream.at(0, min(missing, self.total))] * again
            rows = np.concatenate([rows, *first_ones])[: self.rows_per_step]
        share = self.rows_per_step // self.world_size
        if self.dealt and 1 < share < self.rows_per_step and not missing:
            hands = deal(self.stream.costs(rows), self.world_size)
        else:
            hands = [list(range(r * share, (r + 1) * share)) for r in range(self.world_size)]
        return Step(rows, real, tokens, hands)
