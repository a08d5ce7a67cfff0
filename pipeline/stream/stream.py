"""Packed rows straight from sources, window by window, without stored shards.

1. Scan the inputs, find their formats, load the tokenizer and choose the engine, as a run does, with the same notes in
   the cache.
2. Divide an epoch's blocks into windows (`blocks`).
3. Encode the next windows' blocks in worker processes, into the cache that runs use. Processes that stream the same
   inputs share the work (`shared_encoding`).
4. Select documents and plan the window's rows (`window`) while the previous window is consumed.

A window is a pure function of the inputs, the configuration, the seed, its epoch and its number.
"""

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, InputError, IntegrityError
from ...schemas.fingerprint import fingerprint, version
from ...schemas.ledger import Ledger
from ..configfile import load_config
from ..dataset.output_folder import plan_inputs
from ..encode.driver import Encoded, encode_missing
from ..encode.known_parts import KnownParts
from ..encode.notes import unlocated
from ..encode.prepared import Prepared
from ..execute.executor import Executor
from ..execute.pool import Pool
from ..inputs.first_rows import polars_version
from ..inputs.scan import BLOCK_BYTES
from ..inputs.scan_cache import scan_inputs
from ..observer import Observer, Silent
from ..pack.accounts import fate_of_rows
from ..pack.pack import padding_id
from ..run.prepare import prepare
from ..run.steps import decontaminate
from ..run.workspace import Workspace
from ..store.cache_bound import HeldParts, PartCacheBudget
from ..store.cache_lock import CacheUse
from ..store.local import LocalStore
from ..store.open import cache_root, open_store, resolve_place, scratch_of
from .blocks import Blocks
from .prefetch import ahead
from .shared_encoding import Lock, SharingExecutor
from .window import PlannedWindow, plan_window

_LOG = logging.getLogger(__name__)
FORMAT = 1
"""Version of the stream; increase it whenever the same stream would give other rows, or another order, than before."""
LOCKS = "locks"
TASKS_AHEAD = 8
"""Number of blocks per worker that are encoded together, so that few workers wait at the end."""
HOLD_TRIES = 5
"""How often a window's parts may vanish, and be encoded again, before it is planned."""


class LiveWindows:
    """The windows of a configuration's inputs, in order, epoch after epoch.

    Args:
        config: a RunConfig, the same as plain data, or the path of a YAML file. `out` is not written; the cache of
            encoded parts is beside it, unless `cache` says otherwise.
        split: `train`, or `holdout` if the configuration holds out documents.
        window_bytes: maximum source bytes planned together.
        workers: encoding processes, which work ahead; 0 for one that works between windows.
        cache_bytes: maximum bytes of encoded parts in the cache. The least recently used parts are removed, and encoded
            again when needed. None keeps all parts. Do not set a limit for a cache that runs use at the same time.
        seed: the seed for the order of blocks and rows, by default the configuration's seed. Held-out groups always
        follow the configuration's seed.
        base: the folder where relative paths start; by default the file's, or the working directory.
        observer: receives progress and notes. By default notes are logged, as warnings if examples are left out.

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
        cache_bytes: int | None = None,
        seed: int | None = None,
        base: Path | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.config, folder = load_config(config, base)
        _refuse_whole(self.config)
        _check(self.config, split, window_bytes, workers, cache_bytes)
        self.split = split
        self.seed = self.config.seed if seed is None else seed
        self.workers = workers
        self.cache = _SweptOnce(_cache_folder(self.config, folder))
        self._use = CacheUse(self.cache)
        self._room = PartCacheBudget(self.cache, cache_bytes)
        self._observer = observer or _Logged()
        self._executor: Executor = Pool(max(workers, 1))
        try:
            with _alone(self.cache.path(LOCKS) / "prepare"):
                files = scan_inputs(self.config.sources, folder, self.cache)
                self.blocks = Blocks(files, window_bytes, self.seed)
                # A stream writes only to its cache.
                work = Workspace(folder, self.cache, KnownParts(self.cache), self._observer)
                self._prepared = prepare(self.config, work, self._executor, files=files)
                _refuse_pairs(self._prepared)
        except BaseException:
            self._executor.close()
            raise
        self._work, self._parts = work, work.parts
        self._pad_id = padding_id(self.config, self._prepared.tokenizer)
        self._walking: Iterator[PlannedWindow] | None = None
        self._stops: list[threading.Event] = []
        self._said_unproved = False
        # Also close it when the process ends, because a pool that Python shuts down by itself may print errors.
        self._end = weakref.finalize(self, _end, self._executor, self._stops)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Hashes (16 digits) of everything besides the seed that the rows and their order depend on, by topic."""
        config = self.config.identity()
        del (
            config["output"],
            config["pack"]["window_tokens"],
        )  # a stream writes no shards, and has its own windows
        tokenizer = self._prepared.tokenizer
        versions = {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers")}
        if any(source.where is not None for source in self.config.sources):
            versions["polars"] = polars_version()
        evaluation = self._prepared.evaluation
        compared = [evaluation.payload()] if evaluation is not None else []
        parts: dict[str, Any] = {
            "inputs": [plan_inputs(list(self.blocks.files)), self.blocks.sizes.tolist(), *compared],
            "configuration": config,
            "formats": {name: form.payload() for name, form in self._prepared.formats.items()},
            "tokenizer": [tokenizer.hash, tokenizer.template_hash, tokenizer.pad_id],
            "encoding": [self._prepared.spec.payload(), versions],
            "windows": [FORMAT, BLOCK_BYTES, self.blocks.window_bytes, self.split],
        }
        return {name: fingerprint(part)[:16] for name, part in parts.items()}

    def count(self, epoch: int) -> int:
        """The number of windows in an epoch."""
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
        walking = self._walk(epoch, number, epochs)
        self._walking = walking
        return walking

    def stop(self) -> None:
        """End the current walk, if there is one."""
        walking, self._walking = self._walking, None
        if walking is not None:
            walking.close()  # type: ignore[attr-defined]  # a generator

    def close(self) -> None:
        """End the walk and free the workers."""
        self.stop()
        self._end()
        self._use.release()

    def _walk(self, epoch: int, number: int, epochs: int) -> Iterator[PlannedWindow]:
        places = self._places(epoch, number, epochs)
        stop = threading.Event()
        self._stops[:] = [stop]
        if self.workers:
            planned = ahead(self._planned(ahead(self._encoded(places, stop), 1, stop)), 1, stop)
        else:
            planned = self._planned(self._encoded(places, stop))
        empty: Ledger | None = None
        try:
            for window in planned:
                if window.number == 0:
                    empty = Ledger()
                if window.rows:
                    empty = None
                if empty is not None:
                    empty.sources.update({f"{window.number} {name}": s for name, s in window.ledger.sources.items()})
                yield window
                if empty is not None and window.number + 1 == self.count(window.epoch):
                    raise InputError(_nothing(empty, self.split))
        finally:
            stop.set()
            planned.close()  # type: ignore[attr-defined]  # a generator

    def _places(self, epoch: int, number: int, epochs: int) -> Iterator[tuple[int, int]]:
        for current in range(epoch, epochs):
            for window in range(number if current == epoch else 0, self.count(current)):
                yield current, window

    def _encoded(self, places: Iterator[tuple[int, int]], stop: threading.Event) -> Iterator[list["_EncodedWindow"]]:
        """Yield groups of windows whose parts are all in the cache. The first group is a single window, for a quick
        start.
        """
        executor = SharingExecutor(self._executor, self.cache.path(LOCKS), self._parts.holds, stop)
        enough = 1
        group: list[tuple[int, int]] = []
        blocks: list[NDArray[np.int64]] = []
        for place in places:
            group.append(place)
            blocks.append(self.blocks.windows(place[0])[place[1]])
            if sum(map(len, blocks)) >= enough:
                yield self._encode(group, blocks, executor)
                enough, group, blocks = TASKS_AHEAD * self.workers, [], []
        if group:
            yield self._encode(group, blocks, executor)

    def _encode(
        self, group: list[tuple[int, int]], blocks: list[NDArray[np.int64]], executor: Executor
    ) -> list["_EncodedWindow"]:
        self._room.make()
        self._encode_blocks(np.unique(np.concatenate(blocks)), executor)
        return [self._held(place, mine, executor) for place, mine in zip(group, blocks, strict=True)]

    def _encode_blocks(self, blocks: NDArray[np.int64], executor: Executor) -> Encoded:
        files = tuple(self.blocks.select(blocks))
        some = replace(self._prepared, files=files, joined=files)
        encoded = encode_missing(some, self._parts, executor, self._observer)
        return decontaminate(self.config, some, encoded, self._work, executor)

    def _held(self, place: tuple[int, int], blocks: NDArray[np.int64], executor: Executor) -> "_EncodedWindow":
        """Return one window, with its parts protected from removal until it is planned. Usually this only reads
        records.
        """
        for _ in range(HOLD_TRIES):
            encoded = self._encode_blocks(blocks, executor)
            held = self._room.hold([part.path for part in encoded.places])
            if held is not None:
                if place[1] == 0:  # the first window of an epoch counts the rows beyond max_rows
                    encoded = replace(encoded, not_taken=self.blocks.not_taken)
                return _EncodedWindow(place, blocks, encoded, held)
        raise IntegrityError(
            f"other processes remove encoded parts from {self.cache.root} as soon as they are made; raise cache_bytes"
        )

    def _planned(self, groups: "Iterator[list[_EncodedWindow]]") -> Iterator[PlannedWindow]:
        try:
            for group in groups:
                for one in group:
                    self._require_proved(one)
                    window = plan_window(
                        one.place, self.config, one.encoded, self._pad_id, one.blocks, self.split, self.seed
                    )
                    one.held.release()  # the window has its parts mapped by now
                    yield window
        finally:
            groups.close()  # type: ignore[attr-defined]  # a generator

    def _require_proved(self, one: "_EncodedWindow") -> None:
        blocks = self.blocks.select(one.blocks)
        said = next(unlocated(self.config.mask, blocks, one.encoded), None)
        if said is not None and not self._said_unproved:
            self._said_unproved = True  # only once, not in every window
            (_LOG.warning if isinstance(self._observer, _Logged) else self._observer.note)(said)


@dataclass(frozen=True, slots=True)
class _EncodedWindow:
    """Return a window whose blocks are encoded."""

    place: tuple[int, int]
    blocks: NDArray[np.int64]
    encoded: Encoded
    held: HeldParts


class _Logged(Silent):
    """An observer that writes notes to the log."""

    def note(self, text: str) -> None:
        """See `Observer`."""
        _LOG.info(text)


class _SweptOnce(LocalStore):
    """A store that sweeps half-written files only once, because a stream encodes in many small portions."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._swept: set[str] = set()

    def sweep(self, folder: str = "") -> None:
        """See `LocalStore`."""
        if folder not in self._swept:
            self._swept.add(folder)
            super().sweep(folder)


def _end(executor: Executor, stops: list[threading.Event]) -> None:
    for stop in stops:
        stop.set()
    executor.close()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let only one process per machine in at a time; the others then find its results in the cache."""
    lock = Lock(path)
    lock.wait()
    try:
        yield
    finally:
        lock.release()


def _check(config: RunConfig, split: str, window_bytes: int, workers: int, cache_bytes: int | None) -> None:
    if split not in ("train", "holdout"):
        raise ConfigError(f"split={split!r}: choose train or holdout")
    if split == "holdout" and not config.holdout.fraction:
        raise ConfigError("split='holdout', but the configuration has no holdout; set holdout.fraction")
    if window_bytes < 1:
        raise ConfigError(f"window_bytes={window_bytes}: give the source bytes to plan together, such as 64 << 20")
    least = 4 * max(window_bytes, TASKS_AHEAD * workers * BLOCK_BYTES)
    if cache_bytes is not None and cache_bytes < least:
        raise ConfigError(
            f"cache_bytes={cache_bytes:,} is too small for the windows being worked on; give at least {least:,} per "
            "process that shares the cache, or use smaller windows and fewer workers"
        )
    if workers < 0:
        raise ConfigError(f"workers={workers}: give a number of processes, or 0 to encode in this one")


def _cache_folder(config: RunConfig, base: Path) -> Path:
    """Return the folder for encoded parts: the cache that runs use, or the scratch folder if that cache is remote."""
    place = cache_root(config.cache, resolve_place(config.out, base), base)
    scratch = None if config.run.scratch is None else (base / config.run.scratch).absolute()
    return scratch_of(open_store(place, scratch=scratch)).root


def _refuse_whole(config: RunConfig) -> None:
    """Refuse options that need all data at once, because a stream never has more than one window."""
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


def _refuse_pairs(prepared: Prepared) -> None:
    if prepared.pairs:
        raise ConfigError(
            f"sources.{prepared.sources[0].name}: a stream gives packed rows of tokens and labels, but preference "
            "pairs are not packed; make the pairs with `packtrain run`"
        )


def _nothing(ledger: Ledger, split: str) -> str:
    fate = fate_of_rows(ledger.total())
    return f"nothing is left to pack for the split {split!r}: of {fate}. Check each source's format, and its keys"
