"""Encoding beside other processes that encode the same: each block is made by one of them, the others wait for it.

Whoever encodes a block holds an advisory lock (flock) on a file named after the part's key, from before it begins
until the part's record stands in the cache. The kernel frees the lock when its holder ends, however it ends.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from .encode import EncodeResult, EncodeTask
from .executors import Executor, Result, Task

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 600.0
"""After so long without news from the others, their blocks are encoded here: twice is harmless, waiting is not."""


class StoppedError(Exception):
    """The caller wants no more results."""


class Lock:
    """An exclusive lock on a file, which is there only as long as the lock is held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Whether the lock is ours now; False where another holds it. Never waits."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            except OSError:
                pass  # a file system without locks: better to encode twice than not at all
            if self._is(file):
                self._file = file
                return True
            os.close(file)  # its last holder removed it between our opening and locking

    def release(self) -> None:
        """Give it up. Does nothing where it is not held."""
        file, self._file = self._file, None
        if file is None:
            return
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # by name: a child forked meanwhile holds the open file, too
        os.close(file)

    def wait(self, stop: threading.Event | None = None) -> bool:
        """Take the lock, however long another holds it; False after `PATIENCE_SECONDS`.

        Raises:
            StoppedError: `stop` was set.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.take():
            if stop is not None and stop.is_set():
                raise StoppedError
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _is(self, file: int) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(file)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


class SharingExecutor:
    """Another executor, for encode tasks that other processes have on their lists, too.

    Args:
        executor: runs the tasks.
        locks: folder of the locks, shared by all these processes.
        made: whether a task's part stands in the cache.
        stop: set by another thread to end `map`.
    """

    def __init__(
        self, executor: Executor, locks: Path, made: Callable[[EncodeTask], bool], stop: threading.Event
    ) -> None:
        self._executor = executor
        self._locks = locks
        self._made = made
        self._stop = stop

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """See `Executor`."""
        self._executor.start(function, *arguments)

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        self._executor.limit(workers)

    def isolate(self) -> None:
        """See `Executor`."""
        self._executor.isolate()

    def close(self) -> None:
        """See `Executor`."""
        self._executor.close()

    def order(self, tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterable[Task]:
        """See `Executor`."""
        return self._executor.order(tasks, made)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`. What others encode meanwhile gives no result: its record stands in the cache.

        The caller must have put a result's record when it asks for the next one.

        Raises:
            StoppedError: `stop` was set.
        """
        held: dict[str, Lock] = {}
        waiting: list[Task] = list(tasks)
        quiet = time.monotonic()
        try:
            while waiting:
                later: list[Task] = []
                for result in self._executor.map(function, self._mine(waiting, held, later, quiet)):
                    yield result
                    if isinstance(result, EncodeResult):
                        held.pop(result.key).release()
                if len(later) < len(waiting):
                    quiet = time.monotonic()
                else:
                    time.sleep(POLL_SECONDS)
                waiting = later
        finally:
            for lock in held.values():
                lock.release()

    def _mine(self, tasks: list[Task], held: dict[str, Lock], later: list[Task], quiet: float) -> Iterator[Task]:
        """The tasks that nobody else has in hand, locked; what others have goes to `later`."""
        for task in tasks:
            if self._stop.is_set():
                raise StoppedError
            if not isinstance(task, EncodeTask):
                yield task
                continue
            key = task.key
            lock = Lock(self._locks / key)
            if not lock.take() and time.monotonic() - quiet < PATIENCE_SECONDS:
                later.append(task)
            elif self._made(task):
                lock.release()
            else:
                held[key] = lock
                yield task
