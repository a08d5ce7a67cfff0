"""The stream: makes batches from a configuration's sources, packed on the fly in bounded windows, without stored
shards.

Every rank walks the same canonical sequence of packed rows: window after window, epoch after epoch. `rows_per_step` is
global: each step takes the next `rows_per_step` rows of that sequence, and each rank lays out only its share. So all
ranks make the same number of steps, and a position is three numbers: epoch, window, row.

`packtrain.pipeline.stream.live_windows` makes the windows, and is imported only then.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.dataset.ledger import Ledger, SourceLedger
from ..schemas.dataset.row_batch import RowBatch
from ..schemas.errors import ConfigError, InputError, IntegrityError, choice
from ..schemas.units import plural
from .batch import flatten, untrained
from .branches import require_attention
from .loader import checked_state, refuse_workers
from .order import Tail
from .rank_info import detect_rank, divisible

if TYPE_CHECKING:
    from ..pipeline.stream.window import PlannedWindow
    from ..schemas.config.config import RunConfig
    from .attention.packed_attention import Applied

    Place = tuple[PlannedWindow, int]
    """A row of the stream: its window, and its number in it."""

FORMAT = 3
"""Version of a stream's state."""
_COUNTS = ("epoch", "window", "row", "rows")
"""Keys of a state that say where a stream is: the next row, and the number of rows returned over all ranks."""


class PackedStream:
    """Iterates over one rank's batches, packed on the fly from a configuration's sources.

    Args:
        data: the configuration: the path of its YAML file, plain data, or a RunConfig.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`.
        window_bytes: source bytes planned together: larger windows pack and mix better, but take longer to start.
        workers: processes per rank that encode the next window while the trainer takes the rows of this one.
        seed: seed of the order; by default the configuration's.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which.
        epochs: number of epochs, without a gap between them, each with different windows; the tail comes after the
            last.
        tail: `drop` leaves out the rows after the last full step; `pad` fills the last step with untrained rows. The
            number of steps is equal on every rank.
        seq_idx: also return the number of each token's document.
        attention: what `use_packed(model)` returned; only `pack.share` needs it.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks, or an option is out of range.
        InputError: a source cannot be read.
        TokenizerError, TemplateError: the tokenizer or its chat template cannot be used.
    """

    def __init__(
        self,
        data: "RunConfig | Mapping[str, Any] | str | Path",
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
        seq_idx: bool = False,
        attention: "Applied | None" = None,
    ) -> None:
        self.place = detect_rank(rank, world_size)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size)
        if epochs < 1:
            raise ConfigError(f"epochs={epochs}: must be at least 1")
        self.epochs = epochs
        self.tail = choice("tail", tail, Tail)
        self.seq_idx = seq_idx
        self.attention = attention
        # imported late, because a trainer's image may lack the pipeline
        from ..pipeline.stream.live_windows import LiveWindows

        share = (self.place.rank, self.place.world_size)
        self._windows = LiveWindows(
            data, split=split, window_bytes=window_bytes, workers=workers, share=share, seed=seed
        )
        # What every state says of the stream: its version, a hash of each thing that the rows depend on, and the seed.
        self._beginning = {"format": FORMAT, **self._windows.fingerprint, "seed": self._windows.seed}
        # Position and rows count the whole stream, so they are equal on all ranks.
        self._position = (0, 0, 0)
        """Of the next row: the epoch, the number of its window in the epoch, and its number in the window."""
        self._rows = 0
        """Rows returned so far, over all ranks and epochs."""
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
            InputError: the stream has no rows; an input changed since it was scanned; or a document cannot be used, and
                the configuration makes that an error.
            IntegrityError: the tokenizer engine or a traced template turned out wrong, or a window differs from the one
                of a saved state.
            ConfigError: no step would be full, and `tail` is `drop`; or this is one of several worker processes of a
                torch DataLoader.
        """
        refuse_workers("PackedStream")
        self._ledger = Ledger()
        begun: list[PlannedWindow] = []
        """Windows that are not in the ledger yet: `_places` appends them, and `_count` takes them out."""
        epoch, first_window, first_row = self._position
        places = self._places(epoch, first_window, first_row, begun)
        try:
            while step := list(islice(places, self.rows_per_step)):
                real = len(step)
                if real < self.rows_per_step and self.tail is Tail.DROP:
                    self._require_full_step(real)
                    break
                self._fill_up(step)
                batch = self._batch(step, real)
                # The state moves before the batch is yielded: a trainer saves it while it has the batch.
                self._count(begun)
                self._rows += real
                self._position = _position_behind(*step[real - 1])  # the window and the row of the last real place
                yield batch
            if self._rows == 0:
                raise InputError("the stream has no rows; packtrain run shows what happens to the data")
            # Windows of rows that the tail left out.
            self._count(begun)
        finally:
            self._windows.stop()

    def _require_full_step(self, rows: int) -> None:
        """Raise ConfigError if the last rows of a stream, too few for a step, are all that it has."""
        if self._rows == 0:
            raise ConfigError(
                f"rows_per_step={self.rows_per_step:,}, but the data has only {plural(rows, 'row')} in all: not one "
                "step would be full; take fewer rows a step, more epochs, or tail=pad"
            )

    def _fill_up(self, step: "list[Place]") -> None:
        """Fill up the last step, in place, because every rank must make it: with the first rows of the stream, and
        those again if they are too few. They are not trained, and not in the ledger.
        """
        while len(step) < self.rows_per_step:
            not_counted: list[PlannedWindow] = []
            step += islice(
                self._places(epoch=0, first_window=0, first_row=0, begun=not_counted), self.rows_per_step - len(step)
            )

    def state_dict(self) -> dict[str, Any]:
        """The stream's position: equal on all ranks, under a kilobyte."""
        epoch, window, row = self._position
        return {**self._beginning, "epoch": epoch, "window": window, "row": row, "rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, on any number of ranks, workers and rows per step. Not during iteration.

        Only the current window is planned again, from the cache if possible.

        Raises:
            ConfigError: the state belongs to other inputs, or another configuration, seed or version.
        """
        beginning = {**self._beginning, **dict.fromkeys(_COUNTS, 0)}
        checked = checked_state(state, beginning, owner="PackedStream", counts=_COUNTS)
        self._position = (checked["epoch"], checked["window"], checked["row"])
        self._rows = checked["rows"]

    def close(self) -> None:
        """End the worker processes. Happens automatically when the stream is collected or its process ends."""
        self._windows.close()

    def _places(self, epoch: int, first_window: int, first_row: int, begun: "list[PlannedWindow]") -> "Iterator[Place]":
        """Yield the rows from a position on, to the end of the last epoch.

        Args:
            first_window: number of a window in the epoch.
            first_row: number of a row in that window.
            begun: each window is appended before its rows are yielded.
        """
        for window in self._windows.walk(epoch, first_window, self.epochs):
            begun.append(window)
            rows = len(window.tokens)  # which has a number for each row
            if first_row > rows:
                raise IntegrityError(
                    f"window {window.number} of epoch {window.epoch} has {rows:,} rows, but the state is at row "
                    f"{first_row:,}: the stream is not deterministic; please report it with the configuration"
                )
            for row in range(first_row, rows):
                yield window, row
            first_row = 0  # only the first window may begin in its middle

    def _batch(self, step: "list[Place]", real: int) -> dict[str, Any]:
        """The rank's share of a step. Rows from number `real` on only fill up the step."""
        share = self.rows_per_step // self.place.world_size
        rows = []
        for number in range(self.place.rank * share, (self.place.rank + 1) * share):
            # One row at a time, because the rows of a share may be of several windows.
            window, index = step[number]
            row = RowBatch(window.lay_out(index, index + 1), f"window {window.number} of the stream").row(0)
            rows.append(untrained(row) if number >= real else row)
        if rows[0].parents is not None:  # all rows of a stream have the same columns
            require_attention(self.attention, "the stream")
        return flatten(rows, seq_idx=self.seq_idx)

    def _count(self, begun: "list[PlannedWindow]") -> None:
        """Add the windows of a list to the ledger, and empty the list, so that none is counted twice."""
        sources = dict(self._ledger.sources)
        for window in begun:
            for name, counts in window.ledger.sources.items():
                sources[name] = sources.get(name, SourceLedger()) + counts
        # A new one, because somebody may have kept the last one to compare.
        self._ledger = Ledger(sources)
        begun.clear()


def _position_behind(window: "PlannedWindow", row: int) -> tuple[int, int, int]:
    """Epoch, window and row of the row behind one: behind row 4 of a window of 5 comes row 0 of the next window."""
    if row + 1 < len(window.tokens):
        return window.epoch, window.number, row + 1
    return window.epoch, window.number + 1, 0
