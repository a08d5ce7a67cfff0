"""The executor for one machine: a pool of processes that survives the death of any worker.

Each worker has its own pipe. So a death can be attributed to the first task in that pipe, a dead worker holds no lock
that others wait for, and a task that runs too long can be ended without affecting others. Existing pools do not do
that: the standard library's breaks as a whole, without naming the task; pebble's workers share one pipe and its lock,
so a worker that dies with the lock blocks all others until the pool gives up.
"""

import multiprocessing
import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from typing import Any, Literal

from ...schemas.config.hints import typed_keys
from ...schemas.errors import TaskError, TemplateError
from ...schemas.units import duration
from .child_exit import exit_reason, out_of_memory_kills
from .executor import EngineAhead, Executor, Quarantine, Result, Task, TaskQueue, named
from .fork_server import start_fork_server
from .interrupts import interrupted_later, without_main
from .local_worker import WorkerError, serve
from .rendering_note import NOTE_BYTES, RENDERING_KILLED, RenderingNote

_AHEAD = 2
"""Number of tasks that a worker has at once, so that it can begin the next task while the driver handles the last
result.
"""
_AHEAD_BYTES = 1 << 14
"""Only tasks of at most this many bytes are sent to a busy worker; they fit into the pipe, so the driver never
blocks.
"""
_FALSE_STARTS = 3
_START_PAUSES = (0.1, 1.0)
"""Seconds to wait before starting a worker again, because the kernel takes a moment to end a killed fork server."""


@dataclass(eq=False, slots=True)
class _Ticket:
    """One task of a worker."""

    task: Any
    tries: int
    """Number of workers that died over the task."""
    call: "_LocalQueue[Any, Any] | None"
    """The queue that waits for the result; None if no queue does."""


@dataclass(eq=False, slots=True)
class _Worker:
    process: BaseProcess
    pipe: "connection.Connection[bytes, bytes]"
    note: RenderingNote
    tickets: deque[_Ticket] = field(default_factory=deque)
    """The worker's tasks, in the order in which it runs them."""
    ready: bool = False
    """Whether the worker has reported that it is ready."""
    began: float = 0.0
    """When the worker began its first task, as far as the driver knows."""
    expired: bool = False


class LocalExecutor(Executor):
    """A pool of processes on this machine. If a worker dies, its task loses one try.

    Workers are forked from a fork server, in milliseconds, so a driver with threads is never forked.
    Use from one thread at a time; any thread may close it.

    Args:
        workers: how many processes.
        seconds: time limit of a task; exceeding it counts as a death of its worker.
        policy: see `Quarantine`.
    """

    def __init__(
        self, workers: int, *, seconds: float | None = None, policy: Literal["stop", "continue"] = "stop"
    ) -> None:
        self.workers = workers
        self._seconds = seconds
        self._policy: Literal["stop", "continue"] = policy
        self._pool: list[_Worker] = []
        self._false_starts = 0
        self._killed_before = out_of_memory_kills()
        self._closed = False
        methods = multiprocessing.get_all_start_methods()
        self._forks = "forkserver" in methods
        self._context: Any = multiprocessing.get_context("forkserver" if self._forks else "spawn")

    def get_ready(self, ahead: EngineAhead | None = None) -> None:
        """See `Executor`."""
        if self._forks:
            start_fork_server(ahead)

    def queue(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> TaskQueue[Task, Result]:
        """See `Executor`. Each worker has at most two tasks, so that the queue needs little memory."""
        self._closed = False
        return _LocalQueue(self, function, made, Quarantine(self._policy))

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        fewer, self.workers = workers < self.workers, workers
        if fewer:
            self.close()  # the next task starts workers again

    def isolate(self) -> None:
        """See `Executor`. Does nothing: all tasks run in other processes."""

    def close(self) -> None:
        """Stop the workers. Waits for running tasks and abandons the others; a second Ctrl-C stops the waiting."""
        self._closed = True
        pool, self._pool = self._pool, []
        for worker in pool:
            _hang_up(worker.pipe)
        try:
            for worker in pool:
                worker.process.join()
        except KeyboardInterrupt:
            for worker in pool:
                worker.process.kill()
            raise
        for worker in pool:
            worker.pipe.close()

    def free(self, size: int) -> _Worker | None:
        """Return a worker for a task of this many bytes: an idle one, else a new one, else one that can take another
        task.
        """
        idle = next((worker for worker in self._pool if not worker.tickets), None)
        if idle is not None:
            return idle
        if len(self._pool) < self.workers:
            return self._new_worker()
        if size > _AHEAD_BYTES:
            return None
        least = min(self._pool, key=lambda worker: len(worker.tickets))
        return least if len(least.tickets) < _AHEAD else None

    def _new_worker(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        place = RawArray("c", NOTE_BYTES)
        process = self._start_process(theirs, place)
        theirs.close()
        worker = _Worker(process, ours, RenderingNote(place))
        self._pool.append(worker)
        return worker

    def _start_process(self, pipe: "connection.Connection[bytes, bytes]", place: Any) -> BaseProcess:
        """Start a worker. If the fork server was killed, this fails with a broken pipe, and the next attempt starts
        another fork server.

        Raises:
            TaskError: no worker can be started.
        """
        for pause in (*_START_PAUSES, None):
            self.get_ready()
            process: BaseProcess = self._context.Process(
                target=serve, args=(pipe, place, typed_keys()), name="packtrain-worker"
            )
            try:
                with without_main(), interrupted_later():
                    process.start()
            except (EOFError, OSError) as error:
                if pause is None:
                    raise TaskError(
                        f"no worker process can be started ({type(error).__name__}: {error}); the machine is likely "
                        "out of memory or of processes: free some, or use fewer workers, and run the same command again"
                    ) from error
                time.sleep(pause)
            else:
                break
        return process

    def send(self, worker: _Worker, ticket: _Ticket, data: bytes) -> bool:
        """Send a task. False if the worker is gone, which is then removed."""
        try:
            with interrupted_later():
                worker.pipe.send_bytes(data)
        except OSError:
            self._bury(worker)
            return False
        if not worker.tickets:
            worker.began = time.monotonic()
        worker.tickets.append(ticket)
        if ticket.call is not None:
            ticket.call.running.add(ticket)
        return True

    def listen(self) -> None:
        """Wait for a message from any worker, or for a task to exceed its time."""
        pool = list(self._pool)
        try:
            if self._closed:
                raise OSError
            ready = set(
                connection.wait([one.pipe for one in pool] + [one.process.sentinel for one in pool], self._patience())
            )
        except (OSError, ValueError):
            if self._closed:
                raise TaskError("the workers were closed while tasks were under way") from None
            raise
        for worker in pool:
            if worker.pipe in ready or worker.process.sentinel in ready:
                self._hear(worker)
        if self._seconds is not None:
            self._end_the_slow(self._seconds)

    def _patience(self) -> float | None:
        if self._seconds is None:
            return None
        ends = [one.began + self._seconds for one in self._pool if one.tickets and one.ready and not one.expired]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _end_the_slow(self, seconds: float) -> None:
        for worker in self._pool:
            late = worker.tickets and worker.ready and time.monotonic() > worker.began + seconds
            # the worker may just have answered
            if late and not worker.expired and not worker.pipe.poll():
                worker.expired = True
                worker.process.kill()

    def _hear(self, worker: _Worker) -> None:
        """Receive what a worker has sent; handle its end if it has ended."""
        try:
            while worker.pipe.poll():
                data = worker.pipe.recv_bytes()
                worker.began = time.monotonic()
                if not worker.ready:
                    worker.ready, self._false_starts = True, 0
                    continue
                well, answer, where = pickle.loads(data)
                if not well:
                    answer.__cause__ = WorkerError(where)
                ticket = worker.tickets.popleft()
                if ticket.call is not None:
                    ticket.call.running.discard(ticket)
                    ticket.call.answers.append((ticket, well, answer))
        except (EOFError, OSError):
            self._bury(worker)
            return
        if not worker.process.is_alive():
            self._bury(worker)

    def _bury(self, worker: _Worker) -> None:
        """Remove a worker that ended, and report its death for the task that it had."""
        if worker not in self._pool:
            return
        self._pool.remove(worker)
        worker.process.join()
        why = self._ending(worker)
        worker.pipe.close()
        if worker.process.exitcode == -RENDERING_KILLED:  # another try would end in the same way
            task = worker.tickets[0].task if worker.tickets else "a task"
            row, at = worker.note.row, getattr(task, "at", None)
            said = worker.note.said(at(row)) if at and row >= 0 else worker.note
            why = "one step took so long that the process had to be killed"
            raise TemplateError(f"{task}: {said}: {why}. Fix the template, or leave the row out")
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= _FALSE_STARTS:
                raise TaskError(f"workers die as soon as they start ({why}); see above for what they printed")
        begun = worker.ready
        for ticket in worker.tickets:
            call = ticket.call
            if call is None:
                pass
            elif begun:
                call.running.discard(ticket)
                call.deaths.append((ticket, why))
            else:
                call.running.discard(ticket)
                call.freed.append(ticket)
            begun = False

    def _ending(self, worker: _Worker) -> str:
        """Describe how a worker ended, for messages."""
        if worker.expired:
            return f"it ran longer than run.task_seconds ({duration(self._seconds or 0)}) and was killed"
        return exit_reason(worker.process.exitcode or 0, self._killed_before)


class _LocalQueue(TaskQueue[Task, Result]):
    """Tasks in a pool, and their results."""

    def __init__(
        self,
        pool: LocalExecutor,
        function: Callable[[Task], Result],
        made: Callable[[Task], bool],
        quarantine: Quarantine,
    ) -> None:
        self._pool = pool
        self._function = function
        self._made = made
        self._quarantine = quarantine
        self._waiting: deque[Task] = deque()
        self._suspects: list[tuple[Task, int]] = []
        self._held: tuple[Task, int, bytes] | None = None
        """The next task, the number of workers that died over it, and its bytes for the pipe."""
        self.running: set[_Ticket] = set()
        self.answers: deque[tuple[_Ticket, bool, Any]] = deque()
        """(ticket, whether it succeeded, the result or the error)."""
        self.deaths: deque[tuple[_Ticket, str]] = deque()
        """(ticket, how the worker ended)."""
        self.freed: deque[_Ticket] = deque()
        """Tasks that a worker had not begun when it died."""

    def submit(self, task: Task) -> list[Result]:
        """See `TaskQueue`."""
        self._waiting.append(task)
        results: list[Result] = []
        while not self._send():
            results += self._hear()
        return results

    def drain(self) -> Iterator[Result]:
        """See `TaskQueue`."""
        while True:
            self._send()
            if not (self.running or self._held or self.answers or self.deaths):
                self._quarantine.check()
                return
            yield from self._hear()  # one by one, so that workers get their next tasks before the caller sees a result

    def close(self) -> None:
        """See `TaskQueue`."""
        for ticket in self.running:
            ticket.call = None

    def _send(self) -> bool:
        """Send tasks while there is room. Returns whether all were sent."""
        # The task may not have caused the death: another one may have used up the memory. So it runs alone.
        alone = bool(self._suspects) or any(ticket.tries for ticket in self.running)
        while len(self.running) < (1 if alone else _AHEAD * self._pool.workers):
            if self._held is None:
                found = self._next(alone)
                if found is None:
                    return True
                self._held = (*found, pickle.dumps((self._function, (found[0],))))
            task, tries, data = self._held
            worker = self._pool.free(len(data))
            if worker is None:
                return False
            if self._pool.send(worker, _Ticket(task, tries, self), data):
                self._held = None
        return not (self._held or self._suspects or self.freed or self._waiting)

    def _next(self, alone: bool) -> tuple[Task, int] | None:
        """Return a task to send, and the number of workers that died over it."""
        if self.freed and not alone:
            return self.freed.popleft().task, 0
        if self._suspects:
            return self._suspects.pop()
        if self.freed:
            return self.freed.popleft().task, 0
        while self._waiting:
            task = self._waiting.popleft()
            if not self._made(task):
                return task, 0
        return None

    def _hear(self) -> list[Result]:
        """Wait until something happens; return the next result, if there is one."""
        if not (self.answers or self.deaths):
            self._pool.listen()
        while self.deaths:
            ticket, why = self.deaths.popleft()
            if not self._quarantine.give_up(ticket.task, why, ticket.tries + 1):
                self._suspects.append((ticket.task, ticket.tries + 1))
        if not self.answers:
            return []
        ticket, well, answer = self.answers.popleft()
        if not well:
            raise named(answer, ticket.task) from answer
        return [answer]


def _hang_up(pipe: "connection.Connection[bytes, bytes]") -> None:
    """Close a pipe so that the other end notices, even if a forked process also holds this end."""
    with suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
