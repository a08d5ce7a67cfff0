"""The loader: packed shards → batches, with the same rows in every step for any number of ranks.

`rows_per_step` is global. Step s holds positions s·B .. s·B + B - 1 of one canonical order (`Steps`); they are dealt to
the ranks by their cost, and each rank makes batches of its share. The state counts returned rows, so a run can resume
exactly where it stopped with another number of ranks or rows per step.
"""

import atexit
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from ..schemas.dataset.files import CACHE_BYTES
from ..schemas.dataset.row_batch import Row
from ..schemas.errors import ConfigError, StalledError, choice
from ..schemas.escape import escape_line
from ..schemas.units import duration
from .batch import FixedShape, flatten, unpack, untrained
from .order import Order, Steps, Tail, detect_rank, divisible
from .packed_rows import LINEAGE, PackedRows

_LOG = logging.getLogger(__name__)
_Task = TypeVar("_Task")
_Made = TypeVar("_Made")

REPORT_AFTER = 30.0
"""Seconds until a warning says what a rank waits for. It is repeated after twice that time, and so on."""
GIVE_UP_AFTER = 480.0
"""Seconds until the waiting rank stops with an error: collectives of the others time out after ten minutes (NCCL) or
thirty (gloo), and name no reason.
"""
_NAME = "packtrain"
"""Of threads."""


@dataclass(frozen=True, slots=True)
class StepDocument:
    """A document piece in a step."""

    rank: int
    row: int
    """Number of the packed row in its split."""
    doc_id: int
    id: str
    source: str
    file: str
    line: int
    tokens: int
    """Without padding, if the dataset says how much there is."""


class PackedLoader:
    """Iterates over one rank's batches of a packed dataset.

    Args:
        data: folder or URL that `packtrain run` wrote.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which. Devices
            that share a sequence take the same batches: they have one rank, and each takes its part by `cp_part`.
        seed: seed of the order.
        epochs: number of epochs, without a gap between them; the tail comes after the last.
        tail: see `Tail`. The number of steps is the same on every rank.
        order: see `Order`. Use `sequential` for remote shards that do not fit into the cache. Epoch 0 is in stored
            order if packing shuffled the rows.
        balance: with one row a rank, the number of ranks: so many rows of similar cost are placed together, within
            blocks of eight groups. Ranks with several rows need it not: the rows of a step are dealt by cost.
        prefetch: number of steps that a thread makes ahead. With 0 they are made when they are asked for, and nothing
            warns if that takes long.
        static_shapes: give all batches the same shape, for compiled steps and CUDA graphs: rows are padded to the
            capacity of a row, and `cu_seq_lens` to the most documents of a row.
        unpacked: one document per row, padded, with an attention mask: for models that cannot separate packed
            documents. It loses what packing saves.
        seq_idx: also return the number of each token's document.
        accumulate: divide a rank's share of a step into this many batches, for gradient accumulation; `rows_per_step`
            must be a multiple of the number of ranks times this. The state advances with the last batch of a step;
            `len` counts all batches.
        cache, cache_bytes, storage_options: for remote shards; see `DatasetFiles`.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks (the message names numbers that can), or another
            argument is invalid.
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(
        self,
        data: str | Path,
        *,
        rows_per_step: int,
        split: str = "train",
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        epochs: int = 1,
        tail: str = "drop",
        order: str = "full",
        balance: int = 1,
        prefetch: int = 2,
        static_shapes: bool = False,
        unpacked: bool = False,
        seq_idx: bool = False,
        accumulate: int = 1,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.place = detect_rank(rank, world_size)
        _LOG.info("rank %d of %d, from %s", self.place.rank, self.place.world_size, self.place.origin)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size, accumulate)
        for name, value, least in (("epochs", epochs, 1), ("prefetch", prefetch, 0), ("balance", balance, 1)):
            if value < least:
                raise ConfigError(f"{name}={value}: must be at least {least}")
        if unpacked and static_shapes:
            raise ConfigError(
                "static_shapes and unpacked exclude each other: padded rows differ in length; leave out one of the two"
            )
        tails, orders = choice("tail", tail, Tail), choice("order", order, Order)
        self.corpus = PackedRows(data, split, cache=cache, cache_bytes=cache_bytes, storage_options=storage_options)
        if not len(self.corpus):
            raise ConfigError(f"{data}: the split {split!r} has no rows; name another split")
        self.steps = Steps(
            self.corpus, seed=seed, order=orders, epochs=epochs, balance=balance,
            rows_per_step=rows_per_step, ranks=self.place.world_size, tail=tails,
        )  # fmt: skip
        """The order, cut into steps and divided among the ranks."""
        self.accumulate, self.prefetch, self.unpacked, self.seq_idx = accumulate, prefetch, unpacked, seq_idx
        self._pad_id = self.corpus.manifest.pad_id
        self.shape = FixedShape.of(self.corpus) if static_shapes else None
        """The size to which rows are padded; None without `static_shapes`."""
        self._rows = 0

    def __getitem__(self, index: object) -> dict[str, Any]:
        """Refused, because only a torch DataLoader around the loader asks for it.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a PackedLoader gives whole batches by itself, and makes them ahead in a thread; iterate over it, without "
            "a torch DataLoader around it"
        )

    @property
    def total_rows(self) -> int:
        """Number of rows of all epochs, over all ranks."""
        return self.steps.total

    def __len__(self) -> int:
        """Number of batches left; the same on every rank."""
        return self.steps.left(self._rows) * self.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned.

        Raises:
            ConfigError: this is one of several worker processes of a torch DataLoader.
        """
        refuse_workers("PackedLoader")
        first, width = self._rows, self.rows_per_step
        positions = range(first, first + self.steps.left(first) * width, width)
        shards = None if self.corpus.files.is_local else _ShardsAhead(self.steps)
        made = _made_ahead(self._batches, positions, self.prefetch, self._whereabouts)
        try:
            for position, batches in zip(positions, made, strict=True):
                if shards is not None:
                    shards.move(position)
                for number, batch in enumerate(batches, 1):
                    if number == self.accumulate:
                        self._rows = min(position + width, self.total_rows)
                    yield batch
        finally:
            if shards is not None:
                shards.close()

    @property
    def lineage(self) -> dict[str, str]:
        """`{"packtrain/dataset": …}`, the hash of the dataset's manifest, for the configuration that a log shows:
        `wandb.init(config={**config, **loader.lineage})`. It is also in `state_dict`.
        """
        return self.corpus.lineage

    def state_dict(self) -> dict[str, Any]:
        """The loader's position: equal on all ranks, under a kilobyte."""
        return {**self.steps.beginning, "rows": self._rows, **self.lineage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, on any number of ranks and rows per step.

        Raises:
            ConfigError: the state belongs to another dataset, order or version, or is damaged.
        """
        # The same rows may be in a dataset with another manifest.
        given = {key: value for key, value in state.items() if key != LINEAGE} if isinstance(state, Mapping) else state
        rows = read_state(given, self.steps.beginning, "PackedLoader", ["rows"])["rows"]
        if rows > self.total_rows:
            raise ConfigError(
                f"the state is after {rows:,} rows, but the order has {self.total_rows:,}; give as many epochs as "
                "before, or resume from another checkpoint"
            )
        self._rows = rows

    def explain(self, step: int) -> list[StepDocument]:
        """The documents of a step, with their ranks. Steps are counted from the beginning of the order.

        Raises:
            IndexError: the order has fewer steps.
        """
        if not 0 <= step < self.steps.left(0):
            raise IndexError(f"there is no step {step}; the order has {self.steps.left(0):,}")
        found = self.steps.at(step * self.rows_per_step)
        hands = [(rank, index) for rank, hand in enumerate(found.hands) for index in found.rows[hand].tolist()]
        rows = {index: self.corpus.row(index) for _, index in hands}
        origins = self.corpus.origins([doc_id for row in rows.values() for doc_id in row.doc_ids.tolist()])
        return [
            StepDocument(rank, index, doc_id, *origins[doc_id], tokens)
            for rank, index in hands
            for doc_id, tokens in zip(rows[index].doc_ids.tolist(), rows[index].own_lengths.tolist(), strict=True)
        ]

    def _batches(self, position: int) -> list[dict[str, Any]]:
        """This rank's batches of the step that begins at a position."""
        step = self.steps.at(position)
        hand = step.hands[self.place.rank]
        rows = [self.corpus.row(index) for index in step.rows[hand].tolist()]
        if step.real < self.rows_per_step:
            rows = [row if index < step.real else untrained(row) for index, row in zip(hand, rows, strict=True)]
        share = len(rows) // self.accumulate
        return [self._batch(rows[begin : begin + share]) for begin in range(0, len(rows), share)]

    def _batch(self, rows: list[Row]) -> dict[str, Any]:
        return unpack(rows, self._pad_id) if self.unpacked else flatten(rows, seq_idx=self.seq_idx, shape=self.shape)

    def _whereabouts(self, position: int) -> str:
        """What the batches of a step wait for."""
        rows = self.steps.rows(position, position + self.rows_per_step)
        urls = sorted({self.corpus.url_of(self.corpus.shard_of(row)) for row in rows.tolist()})
        more = f" and {len(urls) - 3:,} more" if len(urls) > 3 else ""
        return (
            f"rank {self.place.rank} of {self.place.world_size} waits for step {position // self.rows_per_step:,}, "
            f"whose rows are in {', '.join(urls[:3])}{more}"
        )


def refuse_workers(name: str) -> None:
    """Raise ConfigError in one of several worker processes of a torch DataLoader: each would deliver every row.

    Args:
        name: what is iterated over.
    """
    torch_data = sys.modules.get("torch.utils.data")  # not imported here: without it, there is no such process
    worker = torch_data.get_worker_info() if torch_data is not None else None
    if worker is not None and worker.num_workers > 1:
        raise ConfigError(
            f"a {name} is read by {worker.num_workers} workers of a torch DataLoader, each of which would deliver "
            "every row; take num_workers=0: the next batches are made ahead in a thread anyway"
        )


def read_state(given: Any, mine: dict[str, Any], of: str, counts: Collection[str]) -> dict[str, Any]:
    """A state that was saved, from untrusted plain data.

    Args:
        mine: the state at the beginning.
        of: name of the object that it belongs to, for messages.
        counts: the keys that say where it is, in whole numbers from 0. All others must be as in `mine`.

    Raises:
        ConfigError: it is of another version or order, damaged, or not a state of this kind; the message names the key.
    """
    found = dict(given) if isinstance(given, Mapping) else {}
    for key in {**mine, **found}:
        theirs: Any = found.get(key)
        own: Any = mine.get(key)
        fits = type(theirs) is type(own) and (0 <= theirs <= 2**62 if key in counts else theirs == own)
        if not fits:
            raise ConfigError(
                f"the state of a {of} does not fit: {escape_line(str(key))} differs: here it is {own!r}, in the state "
                f"{theirs!r:.60}. Resuming would repeat some rows and leave others out: configure it as before, resume "
                "from another checkpoint, or start again without the state"
            )
    return found


# Ahead of time


class _Threads:
    """Threads that do one task after another. They end with the process, even if one hangs in a store."""

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = threading.Event()
        arguments = (self._tasks, self._closed)
        self._threads = [threading.Thread(target=_work, args=arguments, name=_NAME, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        _OPEN.add(self)

    def submit(self, task: Callable[[], _Made]) -> "Future[_Made]":
        """Have a task done."""
        made: Future[_Made] = Future()
        self._tasks.put((made, task))
        return made

    def close(self) -> None:
        """Drop the tasks that have not been begun."""
        self._closed.set()
        for _ in self._threads:
            self._tasks.put(None)


_OPEN: "weakref.WeakSet[_Threads]" = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Let threads finish what takes a moment: stopped by the interpreter in the middle of foreign code, they abort the
    process.
    """
    for threads in list(_OPEN):
        threads.close()
    until = time.monotonic() + 1.0
    for thread in threading.enumerate():  # also those that finish a task for what is closed already
        if thread.name == _NAME:
            thread.join(max(0.0, until - time.monotonic()))


def _work(tasks: "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]", closed: threading.Event) -> None:
    while (given := tasks.get()) is not None and not closed.is_set():
        made, task = given
        try:
            made.set_result(task())
        except BaseException as error:
            made.set_exception(error)
        del given, made, task  # while it waits for the next one, what was made is not its own


def _made_ahead(
    make: Callable[[_Task], _Made], tasks: Iterable[_Task], count: int, what: Callable[[_Task], str]
) -> Iterator[_Made]:
    """Yield `make(task)` for every task, in order, while a thread makes the next `count`.

    Args:
        count: with 0, each is made when it is asked for, however long that takes.
        what: describes what a task waits for.

    Raises:
        StalledError: nothing came for a long time. Errors of `make` come when their turn comes.
    """
    if not count:
        yield from map(make, tasks)
        return
    threads, left = _Threads(1), iter(tasks)
    waiting: deque[tuple[Future[_Made], _Task]] = deque()
    try:
        while True:
            for task in islice(left, count - len(waiting)):
                waiting.append((threads.submit(partial(make, task)), task))
            if not waiting:
                return
            made, task = waiting.popleft()
            began, report = time.monotonic(), REPORT_AFTER
            while not wait([made], max(0.0, min(report, GIVE_UP_AFTER) - (time.monotonic() - began))).done:
                waited = time.monotonic() - began
                if waited >= GIVE_UP_AFTER:
                    raise StalledError(f"{what(task)}; gave up after {duration(waited)}. Check the store that is named")
                _LOG.warning("%s; %s by now", what(task), duration(waited))
                report *= 2
            yield made.result()
    finally:
        threads.close()


class _ShardsAhead:
    """Downloads the shards of the next rows into the cache."""

    def __init__(self, steps: Steps) -> None:
        self._steps, corpus = steps, steps.corpus
        self._rows = max(4 * steps.rows_per_step, 2 * len(corpus) // max(1, corpus.shard_of(len(corpus) - 1)))
        self._next = -1
        self._asked: set[int] = set()
        self._threads = _Threads(4)
        self.close = self._threads.close

    def move(self, position: int) -> None:
        """Ask for the shards after a position. Cheap if little has changed."""
        if position < self._next:
            return
        corpus = self._steps.corpus
        shards = map(corpus.shard_of, self._steps.rows(position, position + self._rows).tolist())
        wanted = list(dict.fromkeys(shards))[: corpus.most]
        for shard in wanted:
            if shard not in self._asked:  # if it fails, reading the shard raises the error again
                self._threads.submit(partial(corpus.fetch, shard))
        self._asked = set(wanted)  # others may be gone from the cache by the time they are needed again
        self._next = position + self._rows // 4
