"""The executor of one machine: a pool of processes that survives the death of any of them.

Each worker has a pipe of its own. So a death is known to be over the task that stood first in that pipe and over no
other, it can leave no lock behind that others wait for, and a task that runs too long is ended without touching its
neighbours. Neither of the pools at hand does that: the standard library's breaks as a whole and cannot say over which
task; pebble's workers share one pipe and its lock, so that whoever dies while holding it stops them all until the pool
gives up.
"""

import multiprocessing
import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from typing import Any, Literal

from ..schemas.errors import TaskError, TemplateError
from ..schemas.hints import typed_keys
from ..schemas.units import duration
from .child_exit import exit_reason, out_of_memory_kills
from .executors import Quarantine, Result, Task, named, not_made
from .interrupts import deaf_to_interrupts, interrupted_later, without_main
from .local_worker import RemoteError, serve
from .rendering_note import NOTE_BYTES, RENDERING_KILLED, RenderingNote

_AHEAD = 2
"""Tasks that a worker has at once: it begins the next while the driver looks at the result of the last."""
_AHEAD_BYTES = 1 << 14
"""Only so small a task is sent to a busy worker: a pipe holds it, and the driver never waits for room in one."""
_FALSE_STARTS = 3
_START_PAUSES = (0.1, 1.0)
"""Seconds before a worker's start is tried again: the kernel takes a moment to end a fork server that was killed."""


@dataclass(eq=False, slots=True)
class _Ticket:
    """One task that a worker has."""

    task: Any
    tries: int
    """How many workers died over it."""
    call: "_Call | None"
    """Who waits for the result; None where nobody does."""


@dataclass(eq=False, slots=True)
class _Call:
    """One call of `map`."""

    running: set[_Ticket] = field(default_factory=set)
    answers: deque[tuple[_Ticket, bool, Any]] = field(default_factory=deque)
    """(what for, whether it went well, the result or the error)."""
    deaths: deque[tuple[_Ticket, str]] = field(default_factory=deque)
    """(over what, how the worker ended)."""
    freed: deque[_Ticket] = field(default_factory=deque)
    """What a worker had not begun when it died."""


@dataclass(eq=False, slots=True)
class _Worker:
    process: BaseProcess
    pipe: "connection.Connection[bytes, bytes]"
    note: RenderingNote
    tickets: deque[_Ticket] = field(default_factory=deque)
    """In the order in which it runs them."""
    ready: bool = False
    """Whether it has said that it is there."""
    began: float = 0.0
    """When it began the first of them, as far as the driver knows."""
    expired: bool = False


class LocalExecutor:
    """A pool of processes on this machine. The death of a worker costs its task a try, not the run.

    The workers come from a fork server that has the imports done: starting one takes milliseconds, and a driver
    full of threads is never forked. For one thread at a time; any thread may close it.

    Args:
        workers: how many processes.
        seconds: a task that runs longer is killed, which counts as a death of its worker.
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
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if self._context.get_start_method() == "forkserver":
            self._context.set_forkserver_preload([f"{__package__}.worker"])
            with deaf_to_interrupts():
                forkserver.ensure_running()  # returns at once: the imports go on beside what the driver does

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """Have each worker but one call a function now, whose result nobody waits for: loading a tokenizer, say."""
        data = pickle.dumps((function, arguments))
        while len(self._pool) < self.workers:
            self._new_worker()
        for worker in [worker for worker in self._pool if not worker.tickets][: self.workers - 1]:
            self._send(worker, _Ticket(function, 0, None), data)

    def order(self, tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterator[Task]:
        """See `Executor`."""
        return not_made(tasks, made)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`. At most two tasks a worker are under way, so that the queue holds no memory."""
        self._closed = False
        waiting = iter(tasks)
        call, quarantine = _Call(), Quarantine(self._policy)
        suspects: list[tuple[Task, int]] = []
        held: list[tuple[Task, int, bytes]] = []
        try:
            while True:
                # Which task it was is known, but not whether it was to blame: where memory ran out, it may have been
                # another one's. So it runs alone.
                alone = bool(suspects) or any(ticket.tries for ticket in call.running)
                while len(call.running) < (1 if alone else _AHEAD * self.workers):
                    if not held:
                        if call.freed and not alone:
                            one, tries = call.freed.popleft().task, 0
                        elif suspects:
                            one, tries = suspects.pop()
                        elif call.freed:
                            one, tries = call.freed.popleft().task, 0
                        else:
                            try:
                                one, tries = next(waiting), 0
                            except StopIteration:
                                break
                        held.append((one, tries, pickle.dumps((function, (one,)))))
                    task, tries, data = held[0]
                    worker = self._free(len(data))
                    if worker is None:
                        break
                    if self._send(worker, _Ticket(task, tries, call), data):
                        held.clear()
                if not (call.running or held or call.answers or call.deaths):
                    quarantine.check()
                    return
                if not (call.answers or call.deaths):
                    self._listen()
                while call.deaths:
                    ticket, why = call.deaths.popleft()
                    if not quarantine.give_up(ticket.task, why, ticket.tries + 1):
                        suspects.append((ticket.task, ticket.tries + 1))
                if call.answers:  # one by one: the workers get their next tasks before the caller looks at a result
                    ticket, well, answer = call.answers.popleft()
                    if not well:
                        raise named(answer, ticket.task) from answer
                    yield answer
        finally:
            for ticket in call.running:
                ticket.call = None

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        fewer, self.workers = workers < self.workers, workers
        if fewer:
            self.close()  # and start anew with the next task

    def isolate(self) -> None:
        """See `Executor`. They all have processes of their own."""

    def close(self) -> None:
        """Stop the workers; tasks that have not begun are let go, and those under way are waited for.

        A second Ctrl-C does not wait.
        """
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

    def _free(self, size: int) -> _Worker | None:
        """A worker for a task of so many bytes: idle, else a new one, else one that has room for another."""
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
        """Start a worker. A fork server that was killed shows by a broken pipe; the next start begins another one.

        Raises:
            TaskError: none can be started.
        """
        for pause in (*_START_PAUSES, None):
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

    def _send(self, worker: _Worker, ticket: _Ticket, data: bytes) -> bool:
        """Whether it was sent; a worker that is gone is taken out."""
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

    def _listen(self) -> None:
        """Wait for news of any worker, or for a task to be over its time."""
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
            # It may have answered just now.
            if late and not worker.expired and not worker.pipe.poll():
                worker.expired = True
                worker.process.kill()

    def _hear(self, worker: _Worker) -> None:
        """Take what a worker has sent; bury it if it has ended."""
        try:
            while worker.pipe.poll():
                data = worker.pipe.recv_bytes()
                worker.began = time.monotonic()
                if not worker.ready:
                    worker.ready, self._false_starts = True, 0
                    continue
                well, answer, where = pickle.loads(data)
                if not well:
                    answer.__cause__ = RemoteError(where)
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
        """Take a worker out that has ended, and tell whose task it had."""
        if worker not in self._pool:
            return
        self._pool.remove(worker)
        worker.process.join()
        why = self._ending(worker)
        worker.pipe.close()
        if worker.process.exitcode == -RENDERING_KILLED:  # another try would end the same
            task = worker.tickets[0].task if worker.tickets else "a task"
            raise TemplateError(
                f"{task}: {worker.note}: one step of it took so long that its process had to be ended. Fix the "
                "template, or leave the row out"
            )
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= _FALSE_STARTS:
                raise TaskError(f"workers die as soon as they start ({why}); look above for what they printed")
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
        """How a worker ended, for people."""
        if worker.expired:
            return f"it ran longer than run.task_seconds ({duration(self._seconds or 0)}) and was killed"
        return exit_reason(worker.process.exitcode or 0, self._killed_before)


def _hang_up(pipe: "connection.Connection[bytes, bytes]") -> None:
    """End a pipe for whoever holds the other end, even if a process forked meanwhile holds this one, too."""
    with suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
