"""Straight from sources to packed rows, window by window, without stored shards.

1. Scan the inputs, find their formats, load the tokenizer, choose the engine: as a run does, and with its notes in
   the cache.
2. Cut an epoch's blocks into windows (`live_blocks`).
3. Encode the next windows' blocks in worker processes, into the cache of every run; other processes that do the
   same share the work (`live_sharing`).
4. Read lengths, decide what stays, plan the window's rows (`live_window`), while the window before is consumed.

A window is a pure function of the inputs, the configuration, the seed, its epoch and its number.
"""

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError, InputError, IntegrityError
from ..schemas.fingerprint import fingerprint
from ..schemas.ledger import Ledger
from ..stages.nested_values import nests_values
from .cache_use import CacheUse
from .conditions import check_conditions, polars_version
from .configfile import load_config
from .encode import EncodeSpec, EncodeTask
from .encoding import DistrustedError, EncodedInputs, Encoding, cache_root
from .executors import Executor, InlineExecutor
from .formats import resolve_formats
from .live_ahead import ahead
from .live_blocks import Blocks
from .live_notes import scan_inputs
from .live_room import Held, Room
from .live_sharing import Lock, SharingExecutor
from .live_window import PlannedWindow, plan_window
from .local_executor import LocalExecutor
from .observer import Observer, Silent
from .outfolder import plan_inputs
from .packing import Packing, padding_id
from .pairs_kind import is_preference
from .resolve import guess_engine, warm_up
from .sources import BLOCK_BYTES, InputFile
from .store import LocalStore
from .stores import open_store, resolve_place, scratch_of
from .tokenizer import TokenizerLoading
from .tokenizer_place import find_tokenizer
from .unproved import check_proved

_LOG = logging.getLogger(__name__)
FORMAT = 1
"""Raised whenever the same stream would hand out other rows, or in another order, than before."""
LOCKS = "locks"
TASKS_AHEAD = 8
"""Blocks for each worker that are encoded in one go, so that few workers wait at the end of a window."""
HOLD_TRIES = 5
"""How often a window's parts may vanish before it is planned."""


class LiveWindows:
    """The windows of a configuration's inputs, one after another, epoch after epoch.

    Args:
        config: a RunConfig, the same as plain data, or the path of a YAML file. `out` is not written; the cache of
            encoded parts stands beside it, unless `cache` says otherwise.
        split: `train`, or `holdout` where the configuration holds something out.
        window_bytes: source bytes that are planned together, at most.
        workers: processes that encode; 0 encodes in this one, between two windows.
        cache_bytes: encoded parts in the cache, at most; what was used longest ago is removed, and encoded again when
            it is needed. None keeps all. Not for a cache that runs use at the same time.
        seed: of the order of blocks and rows. By default the configuration's, which chooses the held-out groups
            in any case.
        base: the folder where relative paths start; by default the file's, or the working directory.
        observer: hears how it goes; by default notes are logged, as warnings where examples are left out.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that a person can mend.
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
        self._room = Room(self.cache, cache_bytes)
        self._observer = observer or _Logged()
        self._executor: Executor = LocalExecutor(workers) if workers else InlineExecutor()
        try:
            with _alone(self.cache.path(LOCKS) / "prepare"):
                files = scan_inputs(self.config, folder, self.cache)
                self.blocks = Blocks(files, window_bytes, self.seed)
                self._encoding, self._spec = self._prepare(folder, files)
        except BaseException:
            self._executor.close()
            raise
        self._pad_id = padding_id(self.config, self._encoding.tokenizer)
        self._walking: Iterator[PlannedWindow] | None = None
        self._stops: list[threading.Event] = []
        self._said_unproved = False
        # Also when the process ends and nobody has closed it: a pool that Python itself takes down may complain.
        self._end = weakref.finalize(self, _end, self._executor, self._stops)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the rows and their order depend on besides the seed, by what it is about; 16 digits each."""
        config = self.config.identity()
        del config["output"], config["pack"]["window_tokens"]  # no shards are written, and windows are cut otherwise
        tokenizer = self._encoding.tokenizer
        versions = {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers")}
        if any(source.where is not None for source in self.config.sources):
            versions["polars"] = polars_version()
        parts: dict[str, Any] = {
            "inputs": [plan_inputs(list(self.blocks.files)), self.blocks.sizes.tolist()],
            "configuration": config,
            "formats": {name: form.payload() for name, form in self._encoding.formats.items()},
            "tokenizer": [tokenizer.hash, tokenizer.template_hash, tokenizer.pad_id],
            "encoding": [self._spec.payload(), versions],
            "windows": [FORMAT, BLOCK_BYTES, self.blocks.window_bytes, self.split],
        }
        return {name: fingerprint(part)[:16] for name, part in parts.items()}

    def count(self, epoch: int) -> int:
        """Windows of an epoch."""
        return len(self.blocks.windows(epoch))

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[PlannedWindow]:
        """The windows from `number` of `epoch` on, to the end of epoch `epochs` - 1; the next ones are made ahead.

        One walk at a time: a new one ends the one before.

        Raises:
            InputError: an input has changed since it was scanned; a document is too long, or its turns are not proved,
                where that is an error; nothing of a whole epoch is left to pack.
            IntegrityError: the tokenizer engine or the traced template was caught; the stream must begin anew.
        """
        self.stop()
        walking = self._walk(epoch, number, epochs)
        self._walking = walking
        return walking

    def stop(self) -> None:
        """End the walk that is under way, if there is one."""
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

    def _encoded(self, places: Iterator[tuple[int, int]], stop: threading.Event) -> Iterator[list["_Encoded"]]:
        """Groups of windows whose parts all stand in the cache; the first group is one window, so that it is soon."""
        executor = SharingExecutor(self._executor, self.cache.path(LOCKS), self._made, stop)
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
    ) -> list["_Encoded"]:
        encoding = self._encoding
        self._room.make()
        try:
            encoding.files = self.blocks.select(np.unique(np.concatenate(blocks)))
            encoding.encode(executor, self._spec)
            return [self._held(place, mine, executor) for place, mine in zip(group, blocks, strict=True)]
        except DistrustedError as error:
            encoding.distrust(error, self._spec)
            raise IntegrityError(
                f"{error}: what was handed out cannot be taken back. Begin the stream anew, without its state: the "
                "cache has a note, and the reference takes over"
            ) from error

    def _held(self, place: tuple[int, int], blocks: NDArray[np.int64], executor: Executor) -> "_Encoded":
        """One window, its parts held until it is planned. They are there, or nearly always: this reads records."""
        self._encoding.files = self.blocks.select(blocks)
        for _ in range(HOLD_TRIES):
            encoded = self._encoding.encode(executor, self._spec)
            held = self._room.hold([part.path for part in encoded.places])
            if held is not None:
                if place[1] == 0:  # rows that nobody encodes, in an epoch's first window
                    encoded = replace(encoded, not_taken=self.blocks.not_taken)
                return _Encoded(place, blocks, encoded, held)
        raise IntegrityError(
            f"other processes remove encoded parts from {self.cache.root} as fast as they are made; raise cache_bytes"
        )

    def _planned(self, groups: "Iterator[list[_Encoded]]") -> Iterator[PlannedWindow]:
        try:
            for group in groups:
                for one in group:
                    self._require_proved(one)
                    packing = Packing(self.config, self.cache, one.encoded, self._pad_id, self._observer)
                    window = plan_window(one.place, self.config, packing, one.blocks, self.split, self.seed)
                    one.held.release()  # the window has its parts mapped
                    yield window
        finally:
            groups.close()  # type: ignore[attr-defined]  # a generator

    def _require_proved(self, one: "_Encoded") -> None:
        said = check_proved(self.config, self.blocks.select(one.blocks), one.encoded)
        if said is not None and not self._said_unproved:
            self._said_unproved = True  # once, not window after window
            (_LOG.warning if isinstance(self._observer, _Logged) else self._observer.note)(said)

    def _made(self, task: EncodeTask) -> bool:
        return not self._encoding.missing([task])

    def _prepare(self, base: Path, files: list[InputFile]) -> tuple[Encoding, EncodeSpec]:
        """Formats, the tokenizer, and which engine encodes: the steps of a run, in its order."""
        section = self.config.tokenizer
        template = named = section.chat_template
        if template is not None and "{{" not in template and "{%" not in template:
            template = str(base / template)
        folder, cache = find_tokenizer(section.path, base), self.cache.root / "tokenizers"
        with TokenizerLoading.start(folder, chat_template=template, template_name=named, cache=cache) as loading:
            formats = resolve_formats(self.config, base, files)
            for form in formats.values():
                for note in form.notes:
                    self._observer.note(note)
            check_conditions(self.config.sources, files, formats)
            if is_preference(self.config, formats, files):
                raise ConfigError(
                    f"sources.{self.config.sources[0].name}: preference pairs are not packed into rows of tokens and "
                    "labels, which is what a stream hands out; make the pairs with `packtrain run`"
                )
            tokenizer = loading.result()
        encoding = Encoding(self.config, self.cache, files, tokenizer, self._observer, formats)
        guess = encoding.spec(*guess_engine(section.engine, encoding.distrusted()))
        if guess.template is not None and nests_values(guess.template):
            self._executor.isolate()
        name = guess.save(self.cache)
        encoding.files = self.blocks.select(self.blocks.windows(0)[0])
        if encoding.missing(encoding.tasks(guess)):
            self._executor.start(warm_up, self.cache, name)
        encoding.files = files
        choice = encoding.choose(self._executor, name)
        return encoding, encoding.spec(choice.name, choice.version)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A window whose blocks are encoded."""

    place: tuple[int, int]
    blocks: NDArray[np.int64]
    encoded: EncodedInputs
    held: Held


class _Logged(Silent):
    """What a person would want to know goes to the log."""

    def note(self, text: str) -> None:
        """See `Observer`."""
        _LOG.info(text)


class _SweptOnce(LocalStore):
    """A store that looks for half-written files once: a stream encodes in many small portions."""

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
    """One process of the machine at a time; the others then find in the cache what the first has worked out."""
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
        raise ConfigError("split='holdout', but the configuration holds nothing out; set holdout.fraction")
    if window_bytes < 1:
        raise ConfigError(f"window_bytes={window_bytes}: give the bytes of source data to plan together, 64 << 20 say")
    least = 4 * max(window_bytes, TASKS_AHEAD * workers * BLOCK_BYTES)
    if cache_bytes is not None and cache_bytes < least:
        raise ConfigError(
            f"cache_bytes={cache_bytes:,}: what is worked on at once would not fit; give at least {least:,}, for each "
            "process that shares the cache, or smaller windows and fewer workers"
        )
    if workers < 0:
        raise ConfigError(f"workers={workers}: give a number of processes, or 0 to encode in this one")


def _cache_folder(config: RunConfig, base: Path) -> Path:
    """Where parts are kept: in the cache of runs; in the scratch folder where that is far away."""
    place = cache_root(config, resolve_place(config.out, base), base)
    scratch = None if config.run.scratch is None else (base / config.run.scratch).absolute()
    return scratch_of(open_store(place, scratch=scratch)).root


def _refuse_whole(config: RunConfig) -> None:
    """Refuse what can only be done with all data at hand: a stream never has more than a window."""
    if config.duplicates == "drop":
        raise ConfigError(
            "duplicates: drop compares every example with all others, and a stream sees them window by window; set "
            "duplicates to keep, or pack with `packtrain run` and read the shards with PackedLoader"
        )
    weighted = next((source.name for source in config.sources if source.weight is not None), None)
    if weighted is not None:
        raise ConfigError(
            f"sources.{weighted}.weight: weights are shares of the tokens of all sources, which a stream knows only at "
            "the end; give each source a `repeat` instead, or pack with `packtrain run` and read the shards with "
            "PackedLoader"
        )


def _nothing(ledger: Ledger, split: str) -> str:
    total = ledger.total()
    reasons = {**total.rows_rejected, **total.rows_filtered, **total.examples_dropped}
    what = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items(), key=lambda one: -one[1]))
    return (
        f"nothing is left to pack for the split {split!r}: of {total.rows_read:,} rows, {total.rows_used:,} gave "
        f"examples{f' ({what})' if what else ''}. Check each source's format, and its keys"
    )
