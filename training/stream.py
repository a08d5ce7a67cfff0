"""The stream: makes batches from a configuration's sources, packed on the fly in bounded windows, without stored
shards.

Every rank walks the same canonical sequence of packed rows: window after window, epoch after epoch. `rows_per_step` is
global: each step takes the next `rows_per_step` rows of that sequence, and each rank lays out only its share. So all
ranks make the same number of steps, and a position is three numbers: epoch, window, row.

This file only knows a protocol for windows; `packtrain.pipeline.stream.stream` makes them from a configuration, and is
imported only then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
from numpy import int64
from numpy.typing import NDArray

from ..schemas.errors import ConfigError, InputError, IntegrityError, choice
from ..schemas.ledger import Ledger
from ..schemas.units import plural
from .batch import flatten, pinned, untrained
from .place import detect_rank, divisible
from .shard import Chunk, Row
from .steps import Tail, read_state

if TYPE_CHECKING:
    from ..schemas.config.config import RunConfig

FORMAT = 2


class StreamWindow(Protocol):
    """Packed rows that were planned together."""

    epoch: int
    number: int
    """Number of the window within its epoch."""
    tokens: NDArray[int64]
    """(R,) tokens of each row."""
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
    epoch: int = 0
    window: int = 0
    """Number of the window that holds the next row, within its epoch."""
    row: int = 0
    """Number of the next row within its window."""
    rows: int = 0
    """Number of rows returned by next(), over all ranks; rows planned ahead do not count."""


@dataclass(frozen=True, slots=True)
class StreamDocument:
    """A document piece in a step."""

    rank: int
    epoch: int
    window: int
    document: Any
    """`pipeline.stream.window.RowDocument`: its row in the window, id, source, file, line, tokens."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows first .. last - 1 of a window."""

    window: StreamWindow
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def rows(self, low: int, high: int) -> list[Row]:
        """Its rows low .. high - 1, as far as it has them, laid out."""
        first, last = self.first + max(low, 0), min(self.first + high, self.last)
        if first >= last:
            return []
        chunk = Chunk(self.window.lay_out(first, last), f"window {self.window.number} of the stream")
        return [chunk.row(number) for number in range(last - first)]


class PackedStream:
    """Iterates over one rank's batches, packed on the fly from a configuration's sources.

    Args:
        data: the configuration: the path of its YAML file, plain data, or a RunConfig; or your own windows.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`. This and the next four arguments do not apply to your own windows.
        window_bytes: source bytes planned together: larger windows pack and mix better, but take longer to start.
        workers: processes per rank that encode ahead. 0 encodes in this process, while the trainer waits.
        seed: seed of the order; by default the configuration's.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which.
        epochs: number of epochs, without a gap between them, each with different windows; the tail comes after the
            last.
        tail: the rows after the last full step are left out (`drop`), or a last step is filled with the first rows
            of the stream, untrained (`pad`) or as they are (`repeat`). The number of steps is equal on every rank.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        seq_idx: also return the number of each token's document.
        loss_weights: as in `PackedLoader`.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks, or an option is out of range.
        InputError, TokenizerError, TemplateError: see `packtrain.run`.
    """

    def __init__(
        self,
        data: "Windows | RunConfig | Mapping[str, Any] | str | Path",
        *,
        rows_per_step: int,
        split: str = "train",
        window_bytes: int = 64 << 20,
        workers: int = 2,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        epochs: int = 1,
        tail: str = "drop",
        pin_memory: bool = False,
        seq_idx: bool = False,
        loss_weights: bool = True,
    ) -> None:
        self.place = detect_rank(rank, world_size)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size)
        if epochs < 1:
            raise ConfigError(f"epochs={epochs}: must be at least 1")
        self.epochs, self.tail = epochs, choice("tail", tail, Tail)
        self.pin_memory, self.seq_idx = pin_memory, seq_idx
        self._weights = None if loss_weights else False
        if hasattr(data, "fingerprint"):
            self._windows = cast(Windows, data)
        else:
            # imported late, because a trainer's image may lack the pipeline
            from ..pipeline.stream.stream import LiveWindows

            self._windows = LiveWindows(
                data,
                split=split,
                window_bytes=window_bytes,
                workers=workers,
                share=(self.place.rank, self.place.world_size),
                seed=seed,
            )
        self._state = StreamState(self._windows.fingerprint, self._windows.seed)
        self._last: list[_Span] = []
        self._ledger = Ledger()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the windows that were begun since the iteration began.

        It counts whole windows, so its numbers add up, and it is equal on all ranks. Rows that the tail leaves out
        count as packed.
        """
        return self._ledger

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned.

        Raises:
            InputError, IntegrityError: see `pipeline.stream.stream.LiveWindows.walk`.
            ConfigError: no step would be full, and `tail` is `drop`.
        """
        self._ledger = Ledger()
        step: list[_Span] = []
        begun: list[StreamWindow] = []
        size = 0
        try:
            for span in self._spans(begun):
                step.append(span)
                size += len(span)
                if size == self.rows_per_step:
                    batch = self._batch(step, size)
                    self._consumed(step, begun)
                    step, size = [], 0
                    yield batch
            if size and self.tail is not Tail.DROP:
                batch = self._batch([*step, *self._first_rows(self.rows_per_step - size)], size)
                self._consumed(step, begun)
                yield batch
            elif self._state.rows == 0:
                raise ConfigError(
                    f"rows_per_step={self.rows_per_step:,}, but the data has only {plural(size, 'row')} in all: not "
                    "one step would be full; take fewer rows a step, more epochs, or tail='pad' or 'repeat'"
                )
            self._count(begun)
        finally:
            self._windows.stop()

    def state_dict(self) -> dict[str, Any]:
        """The stream's position: equal on all ranks, under a kilobyte."""
        return {"format": FORMAT, **asdict(self._state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, on any number of ranks, workers and rows per step. Not during iteration.

        Only the current window is planned again, from the cache if possible.

        Raises:
            ConfigError: the state belongs to other inputs, or another configuration, seed or version.
        """
        found, mine = read_state(StreamState, state, "PackedStream", FORMAT), self._state
        names = sorted({*mine.fingerprint, *found.fingerprint})
        differing = [name for name in names if mine.fingerprint.get(name) != found.fingerprint.get(name)]
        differing += ["seed"] if mine.seed != found.seed else []
        if differing:
            raise ConfigError(
                f"the state belongs to another stream: {', '.join(differing)} differ. Resuming would repeat some rows "
                "and leave others out; configure the stream as before, or start again without the state"
            )
        self._state = found

    def explain(self) -> list[StreamDocument]:
        """The documents of the step that was returned last, with their ranks."""
        out = []
        share = self.rows_per_step // self.place.world_size
        before = 0
        for span in self._last:
            for document in span.window.documents(span.first, span.last):
                rank = (before + document.row - span.first) // share
                out.append(StreamDocument(rank, span.window.epoch, span.window.number, document))
            before += len(span)
        return out

    def close(self) -> None:
        """End the worker processes. Happens automatically when the stream is collected or its process ends."""
        self._last = []
        self._windows.close()

    def __enter__(self) -> "PackedStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spans(self, begun: list[StreamWindow]) -> Iterator[_Span]:
        """Yield the rows from the current state on, cut where a window or a step ends."""
        row, room = self._state.row, self.rows_per_step
        for window in self._windows.walk(self._state.epoch, self._state.window, self.epochs):
            begun.append(window)
            rows = len(window.tokens)
            if row > rows:
                raise IntegrityError(
                    f"window {window.number} of epoch {window.epoch} has {rows:,} rows, but the state is at row "
                    f"{row:,}: the stream is not deterministic; please report it with the configuration"
                )
            while row < rows:
                last = min(row + room, rows)
                yield _Span(window, row, last)
                room = room - (last - row) or self.rows_per_step
                row = last
            row = 0

    def _first_rows(self, count: int) -> list[_Span]:
        """The first `count` rows of the stream, repeated if it has fewer."""
        out: list[_Span] = []
        while count:
            before = count
            for window in self._windows.walk(0, 0, self.epochs):
                span = _Span(window, 0, min(count, len(window.tokens)))
                out.append(span)
                count -= span.last
                if not count:
                    break
            if count == before:
                raise InputError("the stream has no rows; packtrain run shows what happens to the data")
        return out

    def _batch(self, step: list[_Span], real: int) -> dict[str, Any]:
        """The rank's share of a step. Rows from number `real` on only fill up the step."""
        share = self.rows_per_step // self.place.world_size
        low = self.place.rank * share
        rows: list[Row] = []
        before = 0
        for span in step:
            mine = span.rows(low - before, low + share - before)
            # A span ends where the rows that count end.
            rows += map(untrained, mine) if self.tail is Tail.PAD and before >= real else mine
            before += len(span)
        batch = flatten(rows, seq_idx=self.seq_idx, weights=self._weights)
        return pinned(batch) if self.pin_memory else batch

    def _consumed(self, step: list[_Span], begun: list[StreamWindow]) -> None:
        self._count(begun)
        end = step[-1]
        done = end.last == len(end.window.tokens)
        self._state = replace(
            self._state,
            epoch=end.window.epoch,
            window=end.window.number + done,
            row=0 if done else end.last,
            rows=self._state.rows + sum(map(len, step)),
        )
        self._last = list(step)

    def _count(self, begun: list[StreamWindow]) -> None:
        """Add windows to the ledger."""
        for window in begun:
            names = list(dict.fromkeys([*self._ledger.sources, *window.ledger.sources]))
            both = (self._ledger, window.ledger)
            parts = {
                name: Ledger({str(i): one.sources[name] for i, one in enumerate(both) if name in one.sources})
                for name in names
            }
            self._ledger = Ledger({name: part.total() for name, part in parts.items()})
        begun.clear()
