"""Shares encoding with other processes: one process encodes each block, and the others wait for it.

A process that encodes a block holds an advisory lock (flock) on a file named after the part's key, until the part's
record is in the cache. The kernel releases the lock when the process ends, however it ends.
"""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ...schemas.files import lock
from ..encode.task import EncodeResult, EncodeTask
from ..execute.executor import Executor, Result, Task, never

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 600.0
"""Seconds without progress by other processes after which this one encodes their blocks. Encoding twice does no
harm.
"""


class StoppedError(Exception):
    """Raised when the caller has asked to stop."""


class Lock:
    """An exclusive lock on a file, which exists only while the lock is held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Try to take the lock, without waiting; False if another process holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            if lock.lock(file, wait=False) is False:  # without locks (None), go on: encoding twice is harmless
                os.close(file)
                return False
            if lock.stands_at(file, self._path):
                self._file = file
                return True
            os.close(file)  # the last holder removed the file after we opened it and before we locked it

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        file, self._file = self._file, None
        if file is None:
            return
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        lock.release(file)

    def wait(self, stop: threading.Event | None = None) -> bool:
        """Wait for the lock and take it; False after `PATIENCE_SECONDS`.

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


class SharingExecutor(Executor):
    """Wraps an executor, for encode tasks that other processes may also be doing.

    Args:
        executor: runs the tasks.
        locks: the folder of locks, shared by all processes.
        made: tells whether a task's part is in the cache.
        stop: set by another thread to end `map`.
    """

    def __init__(
        self, executor: Executor, locks: Path, made: Callable[[EncodeTask], bool], stop: threading.Event
    ) -> None:
        self._executor = executor
        self._locks = locks
        self._made = made
        self._stop = stop

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        self._executor.limit(workers)

    def close(self) -> None:
        """See `Executor`."""
        self._executor.close()

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], made: Callable[[Task], bool] = never
    ) -> Generator[Result, None, None]:
        """See `Executor`. Tasks that other processes do give no result; their records appear in the cache.

        The caller must write a result's record before it asks for the next result.

        Raises:
            StoppedError: `stop` was set.
        """
        held: dict[str, Lock] = {}
        waiting: list[Task] = [task for task in tasks if not made(task)]
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
        """Lock and yield the tasks that no other process is doing; the others go to `later`."""
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
