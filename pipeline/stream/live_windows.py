"""Packed rows straight from sources, window by window, without stored shards.

1. Scan the inputs, find their formats, load the tokenizer and choose the engine, as a run does, with the same notes in
   the cache.
2. Divide an epoch's blocks into windows (`Blocks`).
3. Encode the next window's blocks in worker processes, into the cache that runs use. Processes that stream the same
   inputs share the work as runs do (`execute.executor.shared_order`).
4. Select documents and plan the window's rows (`window`) while the previous window is consumed.

A window is a pure function of the inputs, the configuration, the seed, its epoch and its number.
"""

import weakref
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, InputError
from ...schemas.fingerprint import fingerprint
from ..configfile import load_config
from ..encode.driver import Encoded, encode
from ..encode.notes import describe_unlocated_turns
from ..execute.pool import Pool
from ..inputs.scan import BLOCK_BYTES, scan_inputs
from ..observer import Observer, Printed
from ..pack.pack import padding_id
from ..run.prepare import prepare
from ..run.rejection_limit import describe_many_rejects
from ..run.run import compare_with_evaluation, plan_of
from ..run.workers import open_workspace
from ..store.open_store import mark_cache
from .window import Blocks, PlannedWindow

FORMAT = 1
"""Version of the stream; increase it whenever the same stream would give other rows, or another order, than before."""


class LiveWindows:
    """The windows of a configuration's inputs, in order, epoch after epoch.

    `config.out` is not written; encoded parts are in the cache that runs use.

    Args:
        split: `train` or `holdout`.
        window_bytes: source bytes that are planned together.
        workers: processes that encode the next window.
        seed: seed of the order; None: the configuration's. What is held out always follows the configuration's seed.
        share: (this process's number, number of processes) among processes that stream the same inputs, such as ranks.
            Each encodes its own share of a window first, and then what the others have not begun.
        config: a validated configuration, plain data, or the path of a YAML file.
        base: the folder where relative paths start; None: the file's, or for data the working directory.
        observer: receives progress and notes. None: the first of the processes prints notes on standard error.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
    """

    def __init__(
        self,
        config: "RunConfig | Mapping[str, Any] | str | Path",
        *,
        split: str = "train",
        window_bytes: int = 64 << 20,
        workers: int = 2,
        share: tuple[int, int] = (0, 1),
        seed: int | None = None,
        base: Path | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.config, folder = load_config(config, base)
        _check(self.config, split, window_bytes, workers)
        self.split = split
        self.seed = self.config.seed if seed is None else seed
        if observer is None:
            # Processes that stream the same inputs would all say the same.
            observer = Printed() if share[0] == 0 else Observer()
        self._work = open_workspace(self.config, folder, observer)
        mark_cache(self._work.scratch)
        self._executor = Pool(workers, shard=f"{share[0]}/{share[1]}")
        try:
            files = scan_inputs(self.config.sources, folder, self._work.scratch)
            self.blocks = Blocks(files, window_bytes, self.seed)
            self._prepared = prepare(self.config, self._work, self._executor, files=files)
            # `pairs`: whether the documents are preference pairs. `does`: what pack.strategy does, from its table.
            if self._prepared.pairs and not self.config.pack.does.is_packing:
                raise ConfigError(
                    f"sources.{self._prepared.sources[0].name}: a stream gives packed rows, but with pack.strategy "
                    "none preference pairs are not packed; take bfd, or make the pairs with `packtrain run`"
                )
        except BaseException:
            self._executor.close()
            raise
        self._pad_id = padding_id(self.config, self._prepared.spec.tokenizer)
        self._walking: Generator[PlannedWindow, None, None] | None = None  # the current walk; None if there is none
        self._has_warned_of_unlocated = False
        self._has_warned_of_rejected = False
        # Closes the pool when this object is collected or the process ends: a pool that Python shuts down by itself may
        # print errors.
        self._end = weakref.finalize(self, self._executor.close)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Hashes (16 digits) of everything besides the seed that the rows and their order depend on, by topic."""
        plan = plan_of(self.config, self._prepared)
        # What decides the rows of a run but not those of a stream: it writes no shards, has windows of its own, and
        # `FORMAT` in place of packtrain's version.
        del plan["config"]["output"]
        del plan["config"]["pack"]["window_tokens"]
        del plan["versions"]["packtrain"]
        # What decides which blocks are in which window.
        plan["windows"] = [FORMAT, BLOCK_BYTES, self.blocks.sizes.tolist(), self.blocks.window_bytes, self.split]
        return {name: fingerprint(part)[:16] for name, part in plan.items()}

    def count(self, epoch: int) -> int:
        """The number of windows in an epoch; epochs differ, as each cuts its own order of blocks."""
        return len(self.blocks.windows(epoch))

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[PlannedWindow]:
        """Yield the windows from `number` of `epoch` to the end of epoch `epochs` - 1. The next windows are prepared
        ahead.

        Only one walk runs at a time; starting a new one ends the previous one.

        Raises:
            InputError: an input has changed since it was scanned; a document is too long, or its turns cannot be
                located, and the configuration makes that an error; or a whole epoch leaves nothing to pack.
            IntegrityError: the engine or the traced template was found wrong; rows already delivered may be wrong.
        """
        self.stop()
        self._walking = self._walk(epoch, number, epochs)
        return self._walking

    def stop(self) -> None:
        """End the current walk, if there is one, after the window that is being made."""
        if self._walking is not None:
            self._walking.close()
        self._walking = None

    def close(self) -> None:
        """End the walk and free the workers."""
        self.stop()
        self._end()

    def _walk(self, epoch: int, number: int, epochs: int) -> Generator[PlannedWindow, None, None]:
        """Yield the windows from `number` of `epoch` to the end of epoch `epochs` - 1. Closing it also ends the thread
        that makes windows ahead.

        Raises:
            InputError: a whole epoch leaves nothing to pack.
        """
        is_whole_epoch = False  # whether the current epoch is walked from its first window
        epoch_rows = 0
        with closing(self._make_ahead(self._places(epoch, number, epochs))) as windows:
            for window in windows:
                if window.number == 0:
                    is_whole_epoch = True
                    epoch_rows = 0
                epoch_rows += window.rows
                yield window
                # Without this, a stream of many epochs would look for a row endlessly. Where the walk began within an
                # epoch, the windows before may have had rows.
                is_last = window.number + 1 == self.count(window.epoch)
                if is_last and is_whole_epoch and epoch_rows == 0:
                    raise InputError(
                        f"nothing is left to pack for the split {self.split!r}; packtrain run says what happens to the "
                        "rows"
                    )

    def _places(self, epoch: int, number: int, epochs: int) -> Iterator[tuple[int, int]]:
        """(epoch, number) of each window, from window `number` of `epoch` to the last one of epoch `epochs` - 1.

        From window 2 of epoch 0, of 2 epochs with 4 windows each: (0, 2) (0, 3) (1, 0) (1, 1) (1, 2) (1, 3).
        """
        for current_epoch in range(epoch, epochs):
            first_number = number if current_epoch == epoch else 0
            for current_number in range(first_number, self.count(current_epoch)):
                yield current_epoch, current_number

    def _make_ahead(self, places: Iterator[tuple[int, int]]) -> Generator[PlannedWindow, None, None]:
        """Make the windows at some places, each in a thread while the caller uses the one before."""
        begun: Future[PlannedWindow] | None = None
        with ThreadPoolExecutor(1, "packtrain-live") as thread:
            # While the caller uses window 1, the thread makes window 2:
            #     submit 0;  submit 1, yield 0;  submit 2, yield 1;  …  yield the last one
            for place in places:
                following = thread.submit(self._make_window, place)
                if begun is not None:
                    yield begun.result()
                begun = following
            if begun is not None:
                yield begun.result()

    def _make_window(self, place: tuple[int, int]) -> PlannedWindow:
        """Encode the blocks of a window, and plan its rows.

        Args:
            place: (epoch, number of the window in it).
        """
        epoch, number = place
        blocks = self.blocks.windows(epoch)[number]
        encoded = self._encode(blocks)
        # Rows beyond max_rows are in no block. The ledgers of an epoch's windows add up if one of them counts them.
        if number == 0:
            encoded = replace(encoded, not_taken=self.blocks.not_taken)
        files = self.blocks.select(blocks)
        # Each warning is given once, for the first window that has cause to: later ones have the same, as a rule.
        if not self._has_warned_of_rejected:
            for problem in describe_many_rejects(self.config, files, encoded.records):
                self._has_warned_of_rejected = True
                self._work.observer.note(problem)
        if not self._has_warned_of_unlocated:
            note = describe_unlocated_turns(self.config, files, encoded)
            if note is not None:
                self._has_warned_of_unlocated = True
                self._work.observer.note(note)
        pairs = self._prepared.pairs
        return PlannedWindow(
            place, self.config, encoded, pad_id=self._pad_id, split=self.split, seed=self.seed, pairs=pairs
        )

    def _encode(self, blocks: NDArray[np.int64]) -> Encoded:
        """The encoded parts of some blocks, which are numbers as in `Blocks`, compared with evaluation data."""
        files = tuple(self.blocks.select(blocks))
        # `joined` has the same files: a stream does not join small files, whose blocks may be in several windows.
        prepared = replace(self._prepared, files=files, joined=files)
        encoded = encode(prepared, self._work.parts, self._executor, self._work.observer)
        return compare_with_evaluation(self.config, prepared, encoded, self._work, self._executor)


def _check(config: RunConfig, split: str, window_bytes: int, workers: int) -> None:
    """Raise ConfigError for options out of range, and for configurations that need all data at once."""
    if split not in ("train", "holdout"):
        raise ConfigError(f"split={split!r}: choose train or holdout")
    if split == "holdout" and not config.holdout.fraction:
        raise ConfigError("split='holdout', but the configuration has no holdout; set holdout.fraction")
    if window_bytes < 1:
        raise ConfigError(f"window_bytes={window_bytes}: give the source bytes to plan together, such as 64 << 20")
    if workers < 1:
        raise ConfigError(f"workers={workers}: give a number of processes, at least 1")
    # What needs all data at once: a stream never has more than one window.
    if config.duplicates == "drop":
        raise ConfigError(
            "duplicates: drop compares every example with all others, but a stream sees one window at a time; set "
            "duplicates: keep, or pack with `packtrain run` and read the shards with PackedLoader"
        )
    weighted = next((source.name for source in config.sources if source.weight is not None), None)
    if weighted is not None:
        raise ConfigError(
            f"sources.{weighted}.weight: weights are shares of all tokens, which a stream knows only at the end; give "
            "each source a `repeat` instead, or pack with `packtrain run` and read the shards with PackedLoader"
        )
