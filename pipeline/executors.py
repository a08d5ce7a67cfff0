"""Who runs the tasks. An executor maps a function over tasks and hands results back as they come.

Tasks and results are small (names, ranges, counts); the data goes through the store. A task is a pure function of
its argument, so running it again after a death is harmless.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from types import FrameType, ModuleType
from typing import Protocol, TypeVar

from ..schemas.errors import PacktrainError, TaskError

Task = TypeVar("Task")
Result = TypeVar("Result")

TRIES = 3
"""How often a task may take its worker down before the run gives it up."""

ENGINE_THREADS = {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""One tokenizer thread a process: the processes are the parallelism. Read when an engine is loaded."""


def limit_threads() -> None:
    """Keep the tokenizer engines of this process to one thread each; before they are loaded."""
    os.environ.update(ENGINE_THREADS)


class Executor(Protocol):
    """Runs tasks somewhere."""

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the workers get ready beside what the caller does; nobody waits for it."""
        ...

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in any order. An error raised by a task is raised here; what is under way is let go."""
        ...

    def close(self) -> None:
        """Free the workers."""
        ...


class InlineExecutor:
    """Runs every task in this process, one after another. Keeps tokenizers to one thread from then on."""

    def __init__(self) -> None:
        limit_threads()

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """See `Executor`. There is nobody else to call it."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`."""
        for task in tasks:
            try:
                result = function(task)
            except Exception as error:
                raise _named(error, task) from error
            yield result

    def close(self) -> None:
        """Nothing to free."""


class LocalExecutor:
    """A pool of processes on this machine. The death of a worker costs its tasks a try, not the run.

    The workers come from a fork server that has the imports done: starting one takes milliseconds, and a driver
    full of threads is never forked.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if self._context.get_start_method() == "forkserver":
            self._context.set_forkserver_preload([f"{__package__}.worker"])
            with _deaf_to_interrupts():
                forkserver.ensure_running()  # returns at once: the imports go on beside what the driver does

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """Have each worker but one call a function now, whose result nobody waits for: loading a tokenizer, say."""
        pool = self._pool or self._new_pool()
        self._pool = pool
        with _without_main(), _interrupted_later():
            for _ in range(self.workers - 1):
                pool.submit(function, *arguments)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`. At most two tasks a worker are under way, so that the queue holds no memory."""
        waiting = iter(tasks)
        again: list[tuple[Task, int]] = []
        running: dict[Future[Result], tuple[Task, int]] = {}
        try:
            while True:
                # After a death nobody knows which task did it: the suspects run alone, one by one.
                suspects = bool(again) or any(tries for _, tries in running.values())
                while len(running) < (1 if suspects else 2 * self.workers):
                    if again:
                        task, tries = again.pop()
                    else:
                        try:
                            task, tries = next(waiting), 0
                        except StopIteration:
                            break
                    self._submit(function, task, tries, running)
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    task, tries = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool as error:
                        if tries + 1 >= TRIES:
                            raise TaskError(
                                f"a worker died {TRIES} times over {task}; out of memory, or a crash in a native "
                                "library. Try fewer workers (--workers 1), or the reference engine "
                                "(--set tokenizer.engine=tokenizers)"
                            ) from error
                        again.append((task, tries + 1))
                        self._drop_pool()
                        continue
                    except Exception as error:
                        raise _named(error, task) from error
                    yield result
        finally:
            for future in running:
                future.cancel()

    def close(self) -> None:
        """Stop the workers; tasks that have not begun are let go, and those under way are waited for.

        A second Ctrl-C does not wait.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return
        workers = list((pool._processes or {}).values())
        try:
            pool.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:
            for worker in workers:
                worker.kill()
            raise

    def _submit(
        self,
        function: Callable[[Task], Result],
        task: Task,
        tries: int,
        running: dict[Future[Result], tuple[Task, int]],
    ) -> None:
        for _ in range(2):
            pool = self._pool or self._new_pool()
            self._pool = pool
            try:
                with _without_main(), _interrupted_later():
                    running[pool.submit(function, task)] = (task, tries)
                return
            except BrokenProcessPool:
                # It broke while idle or under another task, whose future will tell; take a new one.
                self._drop_pool()
        raise TaskError("workers die as soon as they start; look above for what they printed")

    def _drop_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=False)
            self._pool = None

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.workers, mp_context=self._context, initializer=_settle)


def _named(error: Exception, task: object) -> Exception:
    """What packtrain raises on purpose says where it came from; anything else is given its task's name."""
    if isinstance(error, PacktrainError):
        return error
    return TaskError(
        f"{task}: {type(error).__name__}: {error}. This is a defect, of packtrain or of a file in its cache: delete "
        "the cache and run again; if that does not help, please report it with the input that is named"
    )


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started here ignore Ctrl-C from their first moment; the driver hears it and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # elsewhere Python sets no handlers
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Hold Ctrl-C back while a worker starts: half-started, nobody would end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if held and callable(handler):
        handler(*held[0])


def _settle() -> None:
    """In a new worker: one thread an engine; Ctrl-C is the driver's business; and end when the driver does."""
    limit_threads()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = multiprocessing.parent_process()
    if driver is not None:
        threading.Thread(target=_end_with, args=(driver.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    # Without this, workers whose driver was killed would wait for tasks for ever.
    connection.wait([sentinel])
    os._exit(1)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide `__main__` while a worker starts.

    multiprocessing runs the main script again in every worker, to find functions defined there. Ours are not, and
    a person's script that calls `packtrain.run` without a `__main__` guard would start itself without end.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
