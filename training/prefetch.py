"""Work ahead of a trainer: batches that a thread makes, and remote shards that threads download, while a step computes.

What this gains is that steps do not wait: of 40 steps of a model of 650,000 weights, none waited for longer than 0.3 %
of its time. A trainer that did nothing with its batches would be slower with it: 58 in place of 127 million tokens a
second at 1 row of 4,096 tokens a step, 642 in place of 847 at 32, because batches change threads (docs/benchmarks.md).
Threads are enough, because numpy, Arrow and downloads release the interpreter's lock.
"""

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from ..schemas.errors import StalledError
from ..schemas.units import duration
from .order import Steps

_LOG = logging.getLogger(__name__)
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

REPORT_AFTER_SECONDS = 30.0
"""Time until a warning says what a rank waits for. It is repeated after twice that time, and so on."""
GIVE_UP_AFTER_SECONDS = 480.0
"""Time until the waiting rank stops with an error: collectives of the others time out after ten minutes (NCCL) or
thirty (gloo), and name no reason.
"""
_END_SECONDS = 1.0
"""How long a process that ends waits for the task that a thread is doing."""
_THREAD_NAME = "packtrain"
"""Of all these threads, by which `_end` finds them."""
_DOWNLOADS_AT_ONCE = 4
"""Threads that download shards."""


class TaskThreads:
    """Threads that do one task after another. They end with the process, even if one hangs in a store. For the threads
    of a ThreadPoolExecutor, a process would wait.
    """

    def __init__(self, count: int) -> None:
        # (Future, task) of each task that no thread has begun; a thread that gets None ends.
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = threading.Event()
        arguments = (self._tasks, self._closed)
        self._threads = [
            threading.Thread(target=_work, args=arguments, name=_THREAD_NAME, daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()
        _OPEN.add(self)

    def submit(self, task: Callable[[], _Result]) -> "Future[_Result]":
        """Have a task done by the next free thread. If `close` drops it, its future never has a result."""
        future: Future[_Result] = Future()
        self._tasks.put((future, task))
        return future

    def close(self) -> None:
        """Drop the tasks that have not been begun."""
        self._closed.set()
        for _ in self._threads:
            self._tasks.put(None)  # wakes one thread, which then ends


_OPEN: "weakref.WeakSet[TaskThreads]" = weakref.WeakSet()
"""All that are in use, for `_end`."""


@atexit.register
def _end() -> None:
    """Let threads finish what takes a moment. One that the interpreter stops in the middle of foreign code, such as
    Arrow's, aborts the process.
    """
    for threads in list(_OPEN):
        threads.close()
    deadline = time.monotonic() + _END_SECONDS
    for thread in threading.enumerate():  # also threads that still finish a task although they were closed before
        if thread.name == _THREAD_NAME:
            thread.join(max(0.0, deadline - time.monotonic()))


def _work(tasks: "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]", closed: threading.Event) -> None:
    """The loop of a thread: it does tasks until it gets None, or finds the threads closed."""
    while True:
        entry = tasks.get()
        if entry is None or closed.is_set():
            return
        future, task = entry
        try:
            future.set_result(task())
        except BaseException as error:  # raised where the result is taken
            future.set_exception(error)
        del entry, future, task  # a thread that waits for its next task would keep the last batch in memory


def results_ahead(
    make: Callable[[_Task], _Result], tasks: Iterable[_Task], count: int, describe: Callable[[_Task], str]
) -> Iterator[_Result]:
    """Yield `make(task)` for every task, in order. While the caller works with a result, a thread makes the next ones.

    Args:
        count: how many results are made ahead. With 0, each is made when it is asked for, however long that takes.
        describe: says what a task waits for, for messages.

    Raises:
        StalledError: nothing came for a long time. Errors of `make` come when their turn comes.
    """
    if not count:
        yield from map(make, tasks)
        return
    threads = TaskThreads(1)
    remaining = iter(tasks)
    waiting = deque((threads.submit(partial(make, task)), task) for task in islice(remaining, count))
    try:
        while waiting:
            future, task = waiting.popleft()
            # The next task, if there is one, is begun before this result is waited for and handed over: so `count` are
            # made while the caller works with it.
            waiting.extend((threads.submit(partial(make, next_task)), next_task) for next_task in islice(remaining, 1))
            _wait_for(future, partial(describe, task))
            yield future.result()
    finally:
        threads.close()


def _wait_for(future: "Future[Any]", describe: Callable[[], str]) -> None:
    """Wait for a result, and warn from time to time.

    Raises:
        StalledError: it did not come in time.
    """
    began = time.monotonic()
    report_after = REPORT_AFTER_SECONDS
    while True:
        waited = time.monotonic() - began
        timeout = min(report_after, GIVE_UP_AFTER_SECONDS) - waited
        try:
            # Waits, and raises nothing but TimeoutError: the caller takes the result. 23 µs in place of the 28 that
            # `concurrent.futures.wait` takes.
            future.exception(max(0.0, timeout))
            return
        except TimeoutError:
            pass
        waited = time.monotonic() - began
        if waited >= GIVE_UP_AFTER_SECONDS:
            raise StalledError(f"{describe()}; gave up after {duration(waited)}. Check the store that is named")
        _LOG.warning("%s; %s by now", describe(), duration(waited))
        report_after *= 2


class ShardsAhead:
    """Downloads the shards of the next rows into the cache, so that a step finds them there."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._corpus = steps.corpus
        # How far ahead: four steps, or about two shards, whichever is more rows. The last shard may be short, so it is
        # not counted: with four shards, numbered 0 to 3, the rows are divided by 3.
        last_shard = self._corpus.shard_of(len(self._corpus) - 1)
        rows_per_shard = len(self._corpus) // max(1, last_shard)
        self._rows = max(4 * steps.rows_per_step, 2 * rows_per_shard)
        self._next_position = -1
        """Until a step begins there, `move` asks for nothing new."""
        self._requested: set[int] = set()
        """The shards that were asked for last."""
        self._threads = TaskThreads(_DOWNLOADS_AT_ONCE)

    def move(self, position: int) -> None:
        """Ask for the shards after a position. Most calls return at once: rows are looked up again when a quarter of
        the rows that were looked up last are read.
        """
        if position < self._next_position:
            return
        rows = self._steps.rows(position, position + self._rows).tolist()
        # In the order in which they are needed, without repetitions, as many as may be mapped at once.
        shards = list(dict.fromkeys(map(self._corpus.shard_of, rows)))[: self._corpus.max_mapped]
        for shard in shards:
            if shard not in self._requested:  # if it fails, reading the shard raises the error again
                self._threads.submit(partial(self._corpus.fetch, shard))
        # Shards behind the position are forgotten: they may be gone from the cache when a later epoch needs them.
        self._requested = set(shards)
        self._next_position = position + self._rows // 4

    def close(self) -> None:
        """Drop the downloads that have not been begun."""
        self._threads.close()
