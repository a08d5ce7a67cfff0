"""The stream: makes batches from a configuration's sources, packed on the fly in bounded windows, without stored
shards.

Every rank walks the same canonical sequence of packed rows: window after window, epoch after epoch. `rows_per_step` is
global: each step takes the next `rows_per_step` rows of that sequence, and each rank lays out only its share. So all
ranks make the same number of steps, and a position is three numbers: epoch, window, row.

This file only knows a protocol for windows; `packtrain.pipeline.stream.stream` makes them from a configuration, and is
imported only then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from ...schemas.config.hints import choice
from ...schemas.errors import ConfigError, InputError, IntegrityError
from ...schemas.ledger import Ledger
from ...schemas.rows import IGNORE_INDEX, UNPADDED, WEIGHTS
from ...schemas.units import plural
from ..order.options import divisible
from ..order.steps import Tail
from ..shards.arrow_shard import RowSpan, view
from .collate import flatten, pinned
from .context_parallel import ContextPart, context_places
from .loss_weights import any_weighted, hands_out
from .stream_windows import FORMAT, StreamPacking, StreamState, StreamWindow, Windows

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows first .. last - 1 of a window."""

    window: StreamWindow
    first: int
    last: int

    def part(self, low: int, high: int) -> "_Span":
        """Return rows low .. high - 1 of the window, clipped to this span."""
        size = self.last - self.first
        return _Span(self.window, self.first + min(max(low, 0), size), self.first + min(max(high, 0), size))


@dataclass(frozen=True, slots=True)
class StreamDocument:
    """A document piece in a step."""

    rank: int
    epoch: int
    window: int
    document: Any
    """`pipeline.stream.window.RowDocument`: its row in the window, id, source, file, line, tokens."""


class PackedStream:
    """Iterates over one rank's batches, packed on the fly from a configuration's sources.

    Args:
        data: the configuration: the path of its YAML file, plain data, or a RunConfig; or your own windows.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`. This and the next four arguments do not apply to your own windows.
        window_bytes: source bytes planned together: larger windows pack and mix better, but take longer to start.
        workers: processes per rank that encode ahead. 0 encodes in this process, while the trainer waits.
        cache_bytes: maximum bytes of encoded parts in the cache; None keeps all, for later epochs and runs.
        seed: seed of the order; by default the configuration's.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which.
        cp_rank, cp_size, cp_layout: as in `PackedLoader`; the configuration has `pack.parallel`.
        epochs: number of epochs, without a gap between them, each with different windows; the tail comes after the
            last.
        tail: the rows after the last full step are left out (`drop`), or a last step is filled with the first rows
            of the stream, untrained (`pad`) or as they are (`repeat`). The number of steps is equal on every rank.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        seq_idx: also return the number of each token's document.
        loss_weights: as in `PackedLoader`; `None` warns at the first batch.

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
        cache_bytes: int | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        cp_rank: int | None = None,
        cp_size: int = 1,
        cp_layout: str | None = None,
        epochs: int = 1,
        tail: str = "drop",
        pin_memory: bool = False,
        seq_idx: bool = False,
        loss_weights: bool | None = None,
    ) -> None:
        self.place, group = context_places(rank, world_size, cp_rank, cp_size)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size)
        if epochs < 1:
            raise ConfigError(f"epochs={epochs}: must be at least 1")
        self.epochs, self.tail = epochs, choice("tail", tail, Tail)
        self.pin_memory, self.seq_idx = pin_memory, seq_idx
        self._wanted = loss_weights
        self._weights: bool | None = None if loss_weights is not False else False
        packs: list[dict[str, Any]] = []
        if hasattr(data, "fingerprint"):
            self._windows = cast(Windows, data)
        else:
            from ...pipeline.stream.stream import (
                LiveWindows,  # imported late, because a trainer's image may lack the pipeline
            )

            live = LiveWindows(
                data,
                split=split,
                window_bytes=window_bytes,
                workers=workers,
                cache_bytes=cache_bytes,
                seed=seed,
            )
            self._windows = live
            packs.append(live.config.pack.model_dump(mode="json"))
        self._context = ContextPart.of(group, cp_layout, packs)
        self._state = StreamState(self._windows.fingerprint, self._windows.seed, 0, 0, 0, 0, 0)
        self._last: list[_Span] = []
        self._forget()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the windows that were begun since the start or the last resume.

        It counts whole windows, so its numbers add up, and it is equal on all ranks. Rows that the tail leaves out
        count as packed.
        """
        return self._ledger

    @property
    def packing(self) -> StreamPacking:
        """How tightly the windows of `ledger` are packed."""
        return self._packing

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned.

        Raises:
            InputError, IntegrityError: see `pipeline.live.LiveWindows.walk`.
            ConfigError: no step would be full, and `tail` is `drop`.
        """
        step: list[_Span] = []
        begun: list[StreamWindow] = []
        size = 0
        try:
            for span in self._spans(begun):
                step.append(span)
                size += span.last - span.first
                if size == self.rows_per_step:
                    batch = self._batch(step, size)
                    self._consumed(step, begun)
                    step, size = [], 0
                    yield batch
            if size and self.tail is not Tail.DROP:
                filled = [*step, *self._first_rows(self.rows_per_step - size)]
                batch = self._batch(filled, size)
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
            ValueError: the state belongs to other inputs, or another configuration, seed or version.
        """
        found = StreamState.from_dict(state)
        self._state.refuse_other(found)
        self._state = found
        self._forget()

    def explain(self) -> list[StreamDocument]:
        """Return the documents of the step that was returned last, with their ranks."""
        out = []
        share = self.rows_per_step // self.place.world_size
        before = 0
        for span in self._last:
            for document in span.window.documents(span.first, span.last):
                rank = (before + document.row - span.first) // share
                out.append(StreamDocument(rank, span.window.epoch, span.window.number, document))
            before += span.last - span.first
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

    def _forget(self) -> None:
        self._ledger, self._packing = Ledger(), StreamPacking()
        self._counted = (-1, -1)

    def _spans(self, begun: list[StreamWindow]) -> Iterator[_Span]:
        """Yield the rows from the current state on, cut where a window or a step ends."""
        state = self._state
        row, room = state.row, self.rows_per_step
        for window in self._windows.walk(state.epoch, state.window, self.epochs):
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
        """Return the first `count` rows of the stream, repeated if it has fewer."""
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
        """Return the rank's share of a step. Rows from number `real` on only fill up the step."""
        share = self.rows_per_step // self.place.world_size
        low = self.place.rank * share
        row_spans: list[RowSpan] = []
        before = 0
        for span in step:
            mine = span.part(low - before, low + share - before)
            if mine.first < mine.last:
                row_span = _row_span(span.window.lay_out(mine.first, mine.last))
                if self.tail is Tail.PAD and before >= real:
                    untrained = np.full_like(row_span.labels, IGNORE_INDEX)
                    weights = None if row_span.loss_weights is None else np.zeros_like(row_span.loss_weights)
                    row_span = replace(row_span, labels=untrained, loss_weights=weights)
                row_spans.append(row_span)
            before += span.last - span.first
        if self._weights is None:  # all windows have weights, or none
            self._weights = hands_out(any_weighted(row_spans), self._wanted)
        batch = flatten(row_spans, seq_idx=self.seq_idx, weights=self._weights, context=self._context)
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
            rows=self._state.rows + sum(span.last - span.first for span in step),
            tokens=self._state.tokens + sum(int(span.window.tokens[span.first : span.last].sum()) for span in step),
        )
        self._last = list(step)

    def _count(self, begun: list[StreamWindow]) -> None:
        """Add the windows to the ledger, except one that was counted before an interruption."""
        for window in begun:
            place = (window.epoch, window.number)
            if place > self._counted:
                self._counted = place
                self._ledger = _sum(self._ledger, window.ledger)
                self._packing = self._packing.plus(window.certificate)
        begun.clear()


def _sum(one: Ledger, other: Ledger) -> Ledger:
    """Return the sum of two ledgers, by source."""
    names = list(dict.fromkeys([*one.sources, *other.sources]))
    parts = {
        name: Ledger({str(i): ledger.sources[name] for i, ledger in enumerate((one, other)) if name in ledger.sources})
        for name in names
    }
    return Ledger({name: part.total() for name, part in parts.items()})


def _row_span(batch: pa.RecordBatch) -> RowSpan:
    """Return all rows of a laid-out batch as one span of views."""
    names = ("input_ids", "labels", "position_ids", "seq_lengths")
    unpadded = view(batch.column(UNPADDED).values, pa.int32()) if UNPADDED in batch.schema.names else None
    weights = view(batch.column(WEIGHTS).values, pa.float32()) if WEIGHTS in batch.schema.names else None
    columns = (view(batch.column(name).values, pa.int32()) for name in names)
    return RowSpan(*columns, seq_lengths_unpadded=unpadded, loss_weights=weights)
