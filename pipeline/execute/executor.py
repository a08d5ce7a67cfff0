"""The interface of executors, which apply a function to tasks and return results as they come.

Tasks and results are small (names, ranges, counts); data goes through the store. A task is a pure function of its
argument, so it is harmless to run it again after a death, twice at once, or on another machine.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from ...schemas.config.hints import setting
from ...schemas.errors import PacktrainError, TaskError

Task = TypeVar("Task")
Result = TypeVar("Result")

TRIES = 3
"""Number of workers that may die over a task before the run gives the task up."""
_SHOWN = 50
"""Maximum number of tasks that a message names."""

ENGINE_THREADS = {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables for one tokenizer thread per process, because processes run in parallel. Engines read them when
they are loaded.
"""


def limit_threads() -> None:
    """Limit the tokenizer engines of this process to one thread each. Call before loading them."""
    os.environ.update(ENGINE_THREADS)


def never(_task: object) -> bool:
    """Always false: no task is known to be done."""
    return False


class EngineAhead(NamedTuple):
    """A tokenizer engine that workers will probably use."""

    engine: str
    """Its name."""
    tokenizer: str
    """The tokenizer's key; see `TokenizerSpec.key`."""


class Work(Protocol):
    """The interface of a run's tasks. Tasks that put a record also have `destination` (a store) and `record` (its
    name).
    """

    def run(self) -> object:
        """Do the task; a pure function of its fields."""
        ...


def perform(task: Work) -> object:
    """Run a task. This is the function passed to executors."""
    return task.run()


class TaskQueue(ABC, Generic[Task, Result]):
    """The tasks of one stage in an executor, which applies one function to all of them.

    Must be closed; closing early abandons the running tasks.
    """

    @abstractmethod
    def submit(self, task: Task) -> list[Result]:
        """Submit a task, waiting until the queue has room. Returns the results that arrived meanwhile, in any order.

        Raises:
            TaskError: several workers died over a task; the message says which. Errors of tasks are raised too.
        """

    @abstractmethod
    def drain(self) -> Iterator[Result]:
        """Yield the results of all running tasks. Nothing may be submitted afterwards.

        Raises:
            TaskError: as `submit` does.
        """

    def close(self) -> None:
        """Abandon running tasks."""


class Executor(Protocol):
    """Runs tasks somewhere."""

    def get_ready(self, ahead: EngineAhead | None = None) -> None:
        """Prepare in the background for workers to come, where there is something to prepare.

        Args:
            ahead: a tokenizer engine that they will probably use.
        """
        return

    def queue(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> TaskQueue[Task, Result]:
        """Return a queue for the tasks of one stage, including finished ones; every driver has the same tasks.

        Tasks that other drivers finish give no result here; their records are in the store.

        Args:
            made: tells whether a task is already done; called just before the task would begin.
        """
        ...

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], made: Callable[[Task], bool] = never
    ) -> Iterator[Result]:
        """Yield the results of tasks. Tasks are taken from the iterable one by one when the queue has room; see
        `queue`.

        Raises:
            TaskError: several workers died over tasks; the message says which. Errors of tasks are raised too.
        """
        with closing(self.queue(function, made)) as queue:
            for task in tasks:
                yield from queue.submit(task)
            yield from queue.drain()

    def limit(self, workers: int) -> None:
        """Change the number of workers for the next tasks. Only allowed between two queues."""
        ...

    def isolate(self) -> None:
        """From now on run tasks in other processes, because they may never end. Only allowed between two queues."""
        ...

    def close(self) -> None:
        """Free the workers."""
        ...


class Quarantine:
    """Handles tasks whose workers die.

    Args:
        policy: `stop` ends the run at the first task without tries left; `continue` skips the task, runs all others,
            and fails at the end.
    """

    def __init__(self, policy: Literal["stop", "continue"] = "stop") -> None:
        self.policy = policy
        self._lost: list[str] = []

    def give_up(self, task: object, why: str, tries: int) -> bool:
        """Count a death. Returns whether the task has no tries left.

        Args:
            why: how the worker ended, such as `killed by SIGSEGV`.
            tries: deaths over this task, including this one.

        Raises:
            TaskError: the task has no tries left, and the policy is to stop.
        """
        if tries < TRIES:
            return False
        self._lost.append(f"a worker died {tries} times over {task}: {why}")
        if self.policy == "stop":
            self.check()
        return True

    def check(self) -> None:
        """Raise an error if any task was skipped.

        Raises:
            TaskError: tasks were skipped; the message names each with its input.
        """
        if not self._lost:
            return
        lost, self._lost = self._lost, []
        kept = (
            "All other tasks are done, and their results are kept for the next run. "
            if self.policy == "continue"
            else ""
        )
        fix = (
            f"{kept}Fix or leave out the named input, use fewer workers so that each gets more memory "
            f"({setting('run.workers', 1)}), or the reference engine ({setting('tokenizer.engine', 'tokenizers')})"
        )
        if len(lost) == 1:
            raise TaskError(f"{lost[0]}. {fix}")
        shown = "".join(f"\n  {line}" for line in lost[:_SHOWN])
        more = f"\n  and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        raise TaskError(f"{len(lost):,} tasks failed:{shown}{more}\n{fix}")


def named(error: Exception, task: object) -> Exception:
    """Add the task's name to an unexpected error; packtrain's own errors already name their origin."""
    if isinstance(error, PacktrainError):
        return error
    return TaskError(
        f"{task}: {type(error).__name__}: {str(error).removesuffix('.')}. This is a bug in packtrain, or a damaged "
        "file in its cache: delete the cache and run again; if that does not help, please report it with the named "
        "input"
    )
