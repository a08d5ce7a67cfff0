"""The parts of a stream: its windows of packed rows, its position, and figures on how tightly the windows are
packed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.layout import Certificate, fill_of
from ...schemas.ledger import Ledger
from ..order.state import read_state

FORMAT = 1


class StreamWindow(Protocol):
    """Packed rows that were planned together."""

    epoch: int
    number: int
    """Number of the window within its epoch."""
    tokens: NDArray[np.int64]
    """(R,) tokens of each row."""
    certificate: Certificate
    ledger: Ledger

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """Return rows first .. last - 1, as `schemas.rows.PACKED`."""
        ...

    def documents(self, first: int, last: int) -> Sequence[Any]:
        """Return the origins of the pieces in these rows; each has fields `row` and `tokens`, among others."""
        ...


class Windows(Protocol):
    """A source of windows: the same fingerprint and seed give the same windows in the same order."""

    seed: int

    @property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of what the rows depend on besides the seed, by topic."""
        ...

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[StreamWindow]:
        """Yield the windows from a position to the end of epoch `epochs` - 1. A new walk ends the previous one."""
        ...

    def stop(self) -> None:
        """End the current walk."""
        ...

    def close(self) -> None:
        """Free the source's resources."""
        ...


@dataclass(frozen=True, slots=True)
class StreamState:
    """The position of a stream: equal on all ranks, valid for any number of ranks and rows per step."""

    fingerprint: dict[str, str]
    seed: int
    epoch: int
    window: int
    """Number of the window that holds the next row, within its epoch."""
    row: int
    """Number of the next row within its window."""
    rows: int
    """Number of rows returned by next(), over all ranks; rows planned ahead do not count."""
    tokens: int
    """Number of tokens in the returned rows."""

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "StreamState":
        """The inverse of `PackedStream.state_dict`.

        Raises:
            ConfigError: the data is from another version, or is not a stream's state.
        """
        return read_state(cls, state, "PackedStream", FORMAT)

    def refuse_other(self, other: "StreamState") -> None:
        """Raise ValueError if `other` has other rows or another order; the message says what differs."""
        names = sorted({*self.fingerprint, *other.fingerprint})
        differing = [name for name in names if self.fingerprint.get(name) != other.fingerprint.get(name)]
        if self.seed != other.seed:
            differing.append("seed")
        if differing:
            raise ValueError(
                f"the state belongs to another stream: {', '.join(differing)} differ. Resuming would repeat some rows "
                "and leave others out; configure the stream as before, or start again without the state"
            )


@dataclass(frozen=True, slots=True)
class StreamPacking:
    """How tightly the windows begun so far are packed."""

    windows: int = 0
    rows: int = 0
    bound: int = 0
    """Sum of the windows' lower bounds on rows."""
    tokens: int = 0
    """Number of tokens, without alignment padding."""
    capacity: int = 0
    """Capacity of a row in tokens."""
    pieces: int = 0

    @property
    def fill(self) -> float:
        """See `schemas.layout.fill_of`."""
        return fill_of(self.tokens, self.rows, self.capacity)

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of the bound."""
        return self.rows / self.bound - 1.0 if self.bound else 0.0

    def plus(self, plan: Certificate) -> "StreamPacking":
        """Add the figures of a window."""
        return StreamPacking(
            windows=self.windows + 1,
            rows=self.rows + plan.rows,
            bound=self.bound + plan.bound,
            tokens=self.tokens + plan.tokens,
            capacity=plan.capacity,
            pieces=self.pieces + plan.pieces,
        )
