"""Makes things in threads before they are asked for, and says what is waited for if they do not come."""

import atexit
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from ..schemas.errors import PacktrainError, StalledError
from ..schemas.units import duration

if TYPE_CHECKING:
    from .steps import Steps

_LOG = logging.getLogger(__name__)
_Task = TypeVar("_Task")
_Made = TypeVar("_Made")


REPORT_AFTER = 30.0
"""Seconds until a warning says what a rank waits for. It is repeated after twice that time, and so on."""
GIVE_UP_AFTER = 480.0
"""Seconds until the waiting rank stops with an error: collectives of the others time out after ten minutes (NCCL) or
thirty (gloo), and name no reason.
"""


def _awaited(made: "Future[_Made]", what: Callable[[], str]) -> _Made:
    """The result of a task.

    Args:
        what: describes what the rank waits for; only called if it takes too long.

    Raises:
        StalledError: nothing came in time.
        Whatever the task raised.
    """
    began, report = time.monotonic(), REPORT_AFTER
    while not wait([made], max(0.0, min(report, GIVE_UP_AFTER) - (time.monotonic() - began))).done:
        waited = time.monotonic() - began
        if waited >= GIVE_UP_AFTER:
            raise StalledError(f"{what()}; gave up after {duration(waited)}. Check the store that is named")
        _LOG.warning("%s; %s by now", what(), duration(waited))
        report *= 2
    return made.result()


class Threads:
    """Threads that do one task after another. They end with the process, even if one hangs in a store."""

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = Event()
        arguments = (self._tasks, self._closed)
        self._threads = [Thread(target=_work, args=arguments, name="packtrain", daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        _OPEN.add(self)
        _STARTED.update(self._threads)

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


_OPEN: "weakref.WeakSet[Threads]" = weakref.WeakSet()
_STARTED: "weakref.WeakSet[Thread]" = weakref.WeakSet()
"""Threads may live longer than what started them: until they have done the task that they are at."""


@atexit.register
def _end() -> None:
    """Let threads finish what takes a moment: stopped by the interpreter in the middle of foreign code, they abort the
    process.
    """
    for threads in list(_OPEN):
        threads.close()
    until = time.monotonic() + 1.0
    for thread in list(_STARTED):
        thread.join(max(0.0, until - time.monotonic()))


def _work(tasks: "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]", closed: Event) -> None:
    while (given := tasks.get()) is not None and not closed.is_set():
        made, task = given
        try:
            made.set_result(task())
        except BaseException as error:
            made.set_exception(error)
        del given, made, task  # while it waits for the next one, what was made is not its own


def made_ahead(
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
    threads, left = Threads(1), iter(tasks)
    waiting: deque[tuple[Future[_Made], Callable[[], str]]] = deque()
    try:
        while True:
            for task in islice(left, count - len(waiting)):
                waiting.append((threads.submit(partial(make, task)), partial(what, task)))
            if not waiting:
                return
            yield _awaited(*waiting.popleft())
    finally:
        threads.close()


class ShardsAhead:
    """Downloads the shards of the next rows into the cache."""

    def __init__(self, steps: "Steps") -> None:
        self._steps, corpus = steps, steps.corpus
        self._rows = max(4 * steps.rows_per_step, 2 * len(corpus) // max(1, corpus.shard_of(len(corpus) - 1)))
        self._next = -1
        self._asked: set[int] = set()
        self._threads = Threads(4)

    def move(self, position: int) -> None:
        """Ask for the shards after a position. Cheap if little has changed."""
        if position < self._next:
            return
        corpus = self._steps.corpus
        shards = map(corpus.shard_of, self._steps.rows(position, position + self._rows).tolist())
        wanted = list(dict.fromkeys(shards))[: corpus.most]
        for shard in wanted:
            if shard not in self._asked:
                self._threads.submit(partial(self._fetch, shard))
        self._asked = set(wanted)  # others may be gone from the cache by the time they are needed again
        self._next = position + self._rows // 4

    def close(self) -> None:
        """Ask for no more."""
        self._threads.close()

    def _fetch(self, shard: int) -> None:
        try:
            self._steps.corpus.fetch(shard)
        except PacktrainError as error:  # reading the shard will raise it again
            _LOG.debug("fetching ahead: %s", error)
