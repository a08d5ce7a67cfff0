"""The executor of one machine: processes that are forked from a server which has done the imports.

Each worker has one task and one pipe. So a death names its task, a dead worker holds no lock that others wait for, and
a task that takes too long is killed alone. Existing pools do not do that: the standard library's breaks as a whole,
without naming the task; pebble's workers share one pipe and its lock, so a worker that dies with the lock blocks all
others.
"""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any

from ...schemas.errors import StoppedTemplateError, TaskError
from ...schemas.units import duration
from .executor import (
    RENDERING_KILLED,
    TRIES,
    Executor,
    Result,
    Task,
    attempt,
    exit_reason,
    limit_threads,
    lost,
    named,
    never,
    out_of_memory_kills,
    parse_shard,
    turns,
)

TASK_MODULES = tuple(
    f"{__package__.rpartition('.')[0]}.{module}"
    for module in ("encode.task", "encode.first_look", "encode.preload", "pack.shard", "pack.documents")
)
"""What the server imports. Given by name, because these modules import modules of this folder."""
SERVER_ENVIRONMENT: dict[str, str] = {}
"""Variables for the server alone, which tell its modules what to load."""
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
_NO_MORE: Any = object()
_STOP_SECONDS = 0.3
"""How long tasks that are stopped may take to remove their drafts. The next run removes what is left."""
_STOPPED = 143
"""The exit code of a worker that was stopped, as shells report it for SIGTERM."""


@dataclass(eq=False, slots=True)
class _Worker:
    process: BaseProcess
    pipe: "connection.Connection[Any, Any]"
    row: Any
    """A number in shared memory: the row that it renders, or -1."""
    task: Any = None
    busy: bool = False
    tries: int = 0
    """Number of workers that died over the task before."""
    began: float = 0.0
    late: bool = False


class Pool(Executor):
    """Processes on this machine. Use from one thread at a time.

    Args:
        workers: how many processes.
        seconds: time limit of a task; exceeding it counts as a death of its worker.
        shard: `i/N` for a run that shares its tasks with others; see `turns`. Then no task begins before all are known.
    """

    def __init__(self, workers: int, *, seconds: float | None = None, shard: str | None = None) -> None:
        self.workers = workers
        self._seconds = seconds
        self._share = parse_shard(shard) if shard is not None else None
        self._pool: list[_Worker] = []
        self._killed_before = out_of_memory_kills()
        self._context: Any = multiprocessing.get_context("forkserver")

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], made: Callable[[Task], bool] = never
    ) -> Generator[Result, None, None]:
        """See `Executor`. A task over which a worker died runs again, alone, because another one may have used up the
        memory. If it is left early, by an error or Ctrl-C, it stops the tasks in progress: a task is done as a whole,
        or not at all.
        """
        if self._share is not None:
            every = list(tasks)
            tasks = (every[position] for position in turns(len(every), *self._share))
        source, suspects = iter(tasks), deque[tuple[Task, int]]()
        try:
            while True:
                while self._has_room(alone=bool(suspects)):
                    if suspects:
                        self._give(function, *suspects.popleft())
                    elif (task := next(source, _NO_MORE)) is _NO_MORE:
                        break
                    elif not made(task):
                        self._give(function, task, 0)
                if not self._busy():
                    return
                for worker in self._ready():
                    answer, task, tries = self._answer(worker), worker.task, worker.tries + 1
                    worker.task, worker.busy, worker.tries = None, False, 0
                    if answer is None:
                        why = self._bury(worker, task)
                        if tries == TRIES:
                            raise lost(task, why)
                        suspects.append((task, tries))
                        continue
                    result, error = answer
                    if error is not None:
                        raise named(error, task) from error
                    yield result
        finally:
            if self._busy():
                self.close()

    def close(self) -> None:
        """End the workers, and stop the tasks in progress: they remove their drafts if they do it in time."""
        pool, self._pool = self._pool, []
        for worker in pool:
            if worker.busy:
                worker.process.terminate()
            _hang_up(worker.pipe)
        until = time.monotonic() + _STOP_SECONDS
        for worker in pool:
            worker.process.join(max(0.0, until - time.monotonic()) if worker.busy else self._seconds)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

    def start(self) -> None:
        """See `Executor`."""
        with suppress(OSError):  # which the first task meets, too
            _start_server()

    def renew(self) -> None:
        """See `Executor`."""
        self.close()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._pool if worker.busy]

    def _has_room(self, *, alone: bool) -> bool:
        """Whether another task may begin: one that runs alone, or one beside others."""
        busy = self._busy()
        return not busy or (len(busy) < self.workers and not alone and not any(one.tries for one in busy))

    def _give(self, function: Callable[[Task], Result], task: Task, tries: int) -> None:
        worker = next((one for one in self._pool if not one.busy), None) or self._start()
        worker.task, worker.busy, worker.tries, worker.began = task, True, tries, time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while idle, which the next look finds
            worker.pipe.send((function, task))

    def _start(self) -> _Worker:
        """Start a worker.

        Raises:
            TaskError: no worker can be started.
        """
        ours, theirs = self._context.Pipe()
        row = self._context.RawValue("q", -1)
        process: BaseProcess = self._context.Process(target=_serve, args=(theirs, row), name="packtrain-worker")
        try:
            _start_server()
            with _without_main():
                process.start()
        except (EOFError, OSError) as error:  # such as those of a server that was killed
            raise TaskError(
                f"no worker process can be started ({type(error).__name__}: {error}); the machine is likely "
                "out of memory or of processes: free some, or use fewer workers, and run the same command again"
            ) from error
        theirs.close()
        worker = _Worker(process, ours, row)
        self._pool.append(worker)
        return worker

    def _ready(self) -> list[_Worker]:
        """Wait until workers have answered or died, and return them; kill those that are late."""
        busy, left = self._busy(), None
        if self._seconds is not None:
            left = max(0.0, min(one.began for one in busy) + self._seconds - time.monotonic())
        ready = set(connection.wait([one.pipe for one in busy] + [one.process.sentinel for one in busy], left))
        found = [one for one in busy if one.pipe in ready or one.process.sentinel in ready]
        for worker in busy:
            if self._seconds is not None and worker not in found and time.monotonic() > worker.began + self._seconds:
                worker.late, worker.began = True, time.monotonic()
                worker.process.kill()
        return found

    def _answer(self, worker: _Worker) -> tuple[Any, Exception | None] | None:
        """What a worker has sent: the result or the error of its task; None if it died."""
        try:
            return worker.pipe.recv() if worker.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def _bury(self, worker: _Worker, task: object) -> str:
        """Remove a worker that died over a task, and describe how it ended.

        Raises:
            StoppedTemplateError: the kernel killed it for its template, as it would each time.
        """
        self._pool.remove(worker)
        worker.process.join()
        worker.pipe.close()
        if worker.late:
            return f"it ran longer than run.task_seconds ({duration(self._seconds or 0)}) and was killed"
        code = worker.process.exitcode or 0
        if code == -RENDERING_KILLED:
            row, at = worker.row.value, getattr(task, "at", None)
            raise StoppedTemplateError(
                f"{task if at is None or row < 0 else at(row)}: the chat template was stopped: it rendered for too "
                "long. Fix the template, or leave the row out"
            )
        return exit_reason(code, self._killed_before)


def _start_server() -> None:
    """Start the process that workers are forked from, unless it runs. That is as late as possible, because from then on
    nothing can be loaded into it.

    Terminals interrupt all processes of a command; the driver handles that, and stops the others. So the server and its
    workers inherit that interruptions are blocked.
    """
    resource_tracker.ensure_running()  # it would unblock them
    forkserver.set_forkserver_preload([*TASK_MODULES])
    before, environ = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS), os.environ.copy()
    os.environ.update(SERVER_ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        for name in SERVER_ENVIRONMENT.keys() - environ.keys():
            del os.environ[name]
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide `__main__` while a worker starts.

    multiprocessing runs the main script again in every worker, to find functions that are defined there. Our functions
    are not, and a user's script that calls `packtrain.run` without a `__main__` guard would start itself endlessly.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _hang_up(pipe: "connection.Connection[Any, Any]") -> None:
    """Close a pipe so that the other end notices, even if a forked process also holds this end."""
    with suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _serve(pipe: "connection.Connection[Any, Any]", row: Any) -> None:
    """A worker: run tasks until the pipe is closed, or the driver is gone."""
    from .template_watchdog import begin_task  # imported here, because the driver should not import jinja2

    limit_threads()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
    driver = multiprocessing.parent_process()
    if driver is not None:
        threading.Thread(target=_end_with, args=(driver.sentinel,), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            function, task = pipe.recv()
            begin_task(row)
            pipe.send(attempt(function, task))


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End a worker. What its task has begun is removed on the way out."""
    raise SystemExit(_STOPPED)


def _end_with(sentinel: int) -> None:
    # Without this, workers of a killed driver would first finish their tasks.
    connection.wait([sentinel])
    os._exit(1)
