"""The executor of one machine: processes that are forked from a server which has done the imports, so that a worker
begins without importing anything.

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
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from ...schemas.errors import StoppedTemplateError, TaskError
from ...schemas.units import duration
from .executor import (
    MAX_TRIES,
    TEMPLATE_TIMEOUT_SIGNAL,
    Executor,
    Result,
    Task,
    exit_reason,
    limit_threads,
    lost_task_error,
    never_done,
    out_of_memory_kills,
    parse_shard,
    run_task,
    shared_order,
    with_task_name,
)
from .server import INTERRUPTIONS, name_no_tokenizer, start_server

_NO_MORE_TASKS: Any = object()
"""What stands for the end of tasks; None may be a task."""
_STOP_SECONDS = 0.3
"""How long tasks that are stopped may take to remove their drafts. The next run removes what is left."""
_STOPPED_EXIT_CODE = 143
"""The exit code of a worker that was stopped, as shells report it for SIGTERM."""


@dataclass(eq=False, slots=True)
class _Worker:
    """A process, and the task that it has."""

    process: BaseProcess
    pipe: "connection.Connection[Any, Any]"
    """Our end: tasks go there, and answers come back."""
    row: Any
    """A number in shared memory: `row.value` is the row that the worker renders, or -1 if it renders none."""
    busy: bool = False
    """Whether it has a task. `task` alone does not tell: None may be a task."""
    task: Any = None
    """The task that it has; None also if it is idle."""
    deaths: int = 0
    """Number of workers that died over this task before."""
    start: float = 0.0
    """When it got the task, by the monotonic clock."""
    late: bool = False
    """Whether it was killed because its task took too long."""

    def free(self) -> None:
        """Mark the worker as idle: its task has ended."""
        self.task = None
        self.busy = False
        self.deaths = 0


class _Suspect(NamedTuple):
    """A task over which workers have died."""

    task: Any
    deaths: int
    """How many."""


class Pool(Executor):
    """Processes on this machine. Use from one thread at a time.

    Args:
        workers: how many processes.
        seconds: time limit of a task; exceeding it counts as a death of its worker.
        shard: `i/N` for a run that shares its tasks with others; see `shared_order`. Then no task begins before all are
            known.
    """

    def __init__(self, workers: int, *, seconds: float | None = None, shard: str | None = None) -> None:
        self.workers = workers
        self._seconds = seconds
        self._shard = parse_shard(shard) if shard is not None else None  # (i, N)
        self._pool: list[_Worker] = []
        # Counted before any worker starts: if a worker is killed and the count has grown, memory was the reason.
        self._kills_before = out_of_memory_kills()
        self._context: Any = multiprocessing.get_context("forkserver")

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], is_done: Callable[[Task], bool] = never_done
    ) -> Generator[Result, None, None]:
        """Yield the results of tasks in the order in which they are done; with one worker, in the order of the tasks.

        A task over which a worker died runs again, alone, because another task may have used up the memory. If the
        caller leaves the loop early, by an error or Ctrl-C, the tasks in progress are stopped: a task is done
        completely, or not at all.

        Raises:
            TaskError: `MAX_TRIES` workers died over a task. Errors of tasks are raised, too.
            StoppedTemplateError: a chat template rendered for too long.
        """
        if self._shard is not None:
            all_tasks = list(tasks)
            tasks = (all_tasks[position] for position in shared_order(len(all_tasks), *self._shard))
        # A generator, so that `is_done` is asked as a task is taken, not of all tasks before: another run may do some
        # of them meanwhile.
        new_tasks = (task for task in tasks if not is_done(task))
        suspects: deque[_Suspect] = deque()
        try:
            while True:
                self._assign_tasks(function, new_tasks, suspects)
                if not self._busy_workers():
                    return
                for worker in self._wait():
                    task = worker.task
                    deaths = worker.deaths
                    answer = self._receive(worker)
                    worker.free()  # before the `yield`, where the caller may leave the loop and end this generator
                    if answer is not None:
                        result, error = answer
                        if error is not None:
                            raise with_task_name(error, task) from error
                        yield result
                        continue
                    reason = self._remove_dead(worker, task)
                    if deaths + 1 == MAX_TRIES:
                        raise lost_task_error(task, reason)
                    suspects.append(_Suspect(task, deaths + 1))
        finally:
            # A worker is busy here only if the loop was left early. The next `map` would take its result for its own.
            if self._busy_workers():
                self.close()

    def close(self) -> None:
        """End the workers, and stop the tasks in progress: they remove their drafts if they do it in time."""
        workers = self._pool
        self._pool = []
        # First all workers get the signal, so that they end side by side; then each is waited for.
        for worker in workers:
            if worker.busy:
                worker.process.terminate()
            _shut_down(worker.pipe)
        deadline = time.monotonic() + _STOP_SECONDS
        for worker in workers:
            if worker.busy:
                patience: float | None = max(0.0, deadline - time.monotonic())
            else:
                # It ends by itself, now that its pipe is shut down. None waits as long as it takes.
                patience = self._seconds
            worker.process.join(patience)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

    def end_idle_workers(self) -> None:
        """End all workers, with the tokenizers that they have loaded: between two calls of `map` all are idle."""
        self.close()

    def _busy_workers(self) -> list[_Worker]:
        """The workers that have a task."""
        return [worker for worker in self._pool if worker.busy]

    def _assign_tasks(
        self, function: Callable[[Task], Result], new_tasks: Iterator[Task], suspects: deque[_Suspect]
    ) -> None:
        """Give tasks to workers while there is room: first suspects, then new ones.

        Args:
            suspects: tasks over which workers have died; the ones that are given out are taken from its left.
        """
        while self._has_room(alone=bool(suspects)):
            if suspects:
                suspect = suspects.popleft()
                self._assign(function, suspect.task, suspect.deaths)
                continue
            task = next(new_tasks, _NO_MORE_TASKS)
            if task is _NO_MORE_TASKS:
                return
            self._assign(function, task, deaths=0)

    def _has_room(self, *, alone: bool) -> bool:
        """Whether another task may begin.

        Args:
            alone: whether the next task must run alone.
        """
        busy = self._busy_workers()
        if not busy:
            return True
        # A task over which a worker died is tried again without others, because they may have used up the memory.
        runs_alone = any(worker.deaths for worker in busy)
        return len(busy) < self.workers and not alone and not runs_alone

    def _assign(self, function: Callable[[Task], Result], task: Task, deaths: int) -> None:
        """Send a task to an idle worker, or to a new one.

        Args:
            deaths: number of workers that have died over this task before.
        """
        idle = [worker for worker in self._pool if not worker.busy]
        worker = idle[0] if idle else self._start_worker()
        worker.busy = True
        worker.task = task
        worker.deaths = deaths
        worker.start = time.monotonic()
        # Suppressed if the worker died while it was idle: `_wait` returns it as dead, and the task is tried again.
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((function, task))

    def _start_worker(self) -> _Worker:
        """Start a worker.

        Raises:
            TaskError: no worker can be started.
        """
        our_end, worker_end = self._context.Pipe()
        row = self._context.RawValue("q", -1)  # an int64 in shared memory; -1: no row
        process: BaseProcess = self._context.Process(target=_serve, args=(worker_end, row), name="packtrain-worker")
        try:
            start_server()
            name_no_tokenizer()  # a server that still waited for a tokenizer would fork no worker
            with _without_main():
                process.start()
        except (EOFError, OSError) as error:  # such as those of a server that was killed
            raise TaskError(
                f"no worker process can be started ({type(error).__name__}: {error}); the machine is likely "
                "out of memory or of processes: free some, or use fewer workers, and run the same command again"
            ) from error
        worker_end.close()  # so that its death closes the pipe
        worker = _Worker(process, our_end, row)
        self._pool.append(worker)
        return worker

    def _wait(self) -> list[_Worker]:
        """Wait until workers have answered or died, and return them; kill those that are late."""
        busy = self._busy_workers()
        timeout = None
        if self._seconds is not None:
            first_deadline = min(worker.start for worker in busy) + self._seconds
            timeout = max(0.0, first_deadline - time.monotonic())
        # A pipe is ready once its worker has answered, a sentinel once its worker has ended.
        ends: list[Any] = [worker.pipe for worker in busy]
        ends += [worker.process.sentinel for worker in busy]
        ready_ends = set(connection.wait(ends, timeout))
        ready = [worker for worker in busy if worker.pipe in ready_ends or worker.process.sentinel in ready_ends]
        for worker in busy:
            if self._seconds is None or worker in ready or time.monotonic() <= worker.start + self._seconds:
                continue
            worker.late = True
            worker.process.kill()
            # The next call returns it as dead. Its time starts again, because its deadline, which is over, would make
            # that call not wait at all.
            worker.start = time.monotonic()
        return ready

    def _receive(self, worker: _Worker) -> tuple[Any, Exception | None] | None:
        """What a worker has sent: the result or the error of its task; None if it died."""
        try:
            return worker.pipe.recv() if worker.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def _remove_dead(self, worker: _Worker, task: object) -> str:
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
        if code == -TEMPLATE_TIMEOUT_SIGNAL:
            row = worker.row.value
            # Tasks that render rows have a method `at`, which names a row's file and line.
            describe_row = getattr(task, "at", None)
            place = task if describe_row is None or row < 0 else describe_row(row)
            raise StoppedTemplateError(
                f"{place}: the chat template was stopped: it rendered for too long. Fix the template, or leave the row "
                "out"
            )
        return exit_reason(code, self._kills_before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide `__main__` while a worker starts.

    multiprocessing runs the main script again in every worker, to find functions that are defined there. Our functions
    are not, and a user's script that calls `packtrain.run` without a `__main__` guard would start itself endlessly.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _shut_down(pipe: "connection.Connection[Any, Any]") -> None:
    """Close a pipe so that the other end notices, even if a forked process also holds this end."""
    with suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _serve(pipe: "connection.Connection[Any, Any]", row: Any) -> None:
    """A worker: run tasks until the pipe is closed, or the main process is gone.

    Args:
        row: a number in memory that is shared with the main process, in which this process notes the source row that a
            template renders: if the kernel stops the template, the message names the row.
    """
    from .template_watchdog import begin_task  # imported here, because the main process should not import jinja2

    limit_threads()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)  # blocked in the server that this process is forked from
    main_process = multiprocessing.parent_process()
    if main_process is not None:
        threading.Thread(target=_exit_after, args=(main_process.sentinel,), daemon=True).start()
    with suppress(EOFError, OSError):  # the pipe was closed
        while True:
            function, task = pipe.recv()
            begin_task(row)
            pipe.send(run_task(function, task))


def _stop(_number: int, _frame: FrameType | None) -> None:
    """The handler of SIGTERM in a worker: end it by an exception, so that its task removes what it has begun."""
    raise SystemExit(_STOPPED_EXIT_CODE)


def _exit_after(sentinel: int) -> None:
    """End this worker once the main process has ended; runs in a thread. Without it, the workers of a killed run would
    first finish their tasks.

    Args:
        sentinel: of the main process: a handle that becomes ready when that process ends.
    """
    connection.wait([sentinel])
    os._exit(1)
