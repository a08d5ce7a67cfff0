"""What a stream is made of: windows of packed rows, where it stands among them, and how tightly they are packed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.layout import Certificate
from ..schemas.ledger import Ledger
from .state import read_state

FORMAT = 1


class Window(Protocol):
    """Packed rows that were planned together."""

    epoch: int
    number: int
    """Of the window in its epoch."""
    tokens: NDArray[np.int64]
    """(R,) tokens of each row."""
    certificate: Certificate
    ledger: Ledger

    def lay_out(self, first: int, last: int) -> pa.RecordBatch:
        """Rows first .. last - 1, as `schemas.rows.PACKED`."""
        ...

    def documents(self, first: int, last: int) -> Sequence[Any]:
        """Where the pieces of these rows came from; each says so in its fields, `row` and `tokens` among them."""
        ...


class Windows(Protocol):
    """Who hands out windows: the same ones, in the same order, to whoever asks with the same fingerprint and seed."""

    seed: int

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the rows depend on besides the seed, by what it is about."""
        ...

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[Window]:
        """The windows from one place on, to the end of epoch `epochs` - 1. A new walk ends the one before."""
        ...

    def stop(self) -> None:
        """End the walk that is under way."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a stream stands: equal on all ranks, good for any number of ranks and rows a step."""

    fingerprint: dict[str, str]
    seed: int
    epoch: int
    window: int
    """Number in its epoch of the window that holds the next row."""
    row: int
    """The next row in that window."""
    rows: int
    """Rows handed out, by all ranks together: returned by next(), not merely planned ahead."""
    tokens: int
    """Tokens of those rows."""

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "StreamState":
        """The inverse of `PackedStream.state_dict`.

        Raises:
            ConfigError: it is of another version, or not a stream's state.
        """
        return read_state(cls, state, "PackedStream", FORMAT)

    def refuse_other(self, other: "StreamState") -> None:
        """Raise ValueError where `other` stands among other rows, or in another order. Says what differs."""
        names = sorted({*self.fingerprint, *other.fingerprint})
        differing = [name for name in names if self.fingerprint.get(name) != other.fingerprint.get(name)]
        if self.seed != other.seed:
            differing.append("seed")
        if differing:
            raise ValueError(
                f"the state is of another stream: {', '.join(differing)} differ. Resuming would repeat some rows and "
                "leave others out; make the stream as it was, or start anew without the state"
            )


@dataclass(frozen=True, slots=True)
class StreamPacking:
    """How tightly the windows that were begun are packed."""

    windows: int = 0
    rows: int = 0
    bound: int = 0
    """Rows that no plan of these windows could go below, added up."""
    tokens: int = 0
    """Alignment padding not counted."""
    capacity: int = 0
    """Tokens a row can hold."""
    pieces: int = 0

    @property
    def fill(self) -> float:
        """Share of the rows' capacity that holds tokens, 0 to 1."""
        return self.tokens / (self.rows * self.capacity) if self.rows else 1.0

    @property
    def gap(self) -> float:
        """Rows above the bound, as a share of the bound."""
        return self.rows / self.bound - 1.0 if self.bound else 0.0

    def plus(self, plan: Certificate) -> "StreamPacking":
        """One more window."""
        return StreamPacking(
            windows=self.windows + 1,
            rows=self.rows + plan.rows,
            bound=self.bound + plan.bound,
            tokens=self.tokens + plan.tokens,
            capacity=plan.capacity,
            pieces=self.pieces + plan.pieces,
        )
