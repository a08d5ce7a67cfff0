"""Who runs the tasks. An executor maps a function over tasks and hands results back as they come.

Tasks and results are small (names, ranges, counts); the data goes through the store. A task is a pure function of
its argument, so running it again after a death, twice at once, or on another machine is harmless.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol, TypeVar

from ..schemas.errors import PacktrainError, TaskError
from ..schemas.hints import setting

Task = TypeVar("Task")
Result = TypeVar("Result")

TRIES = 3
"""How often a task may take its worker down before the run gives it up."""
_SHOWN = 50
"""Tasks that a message names."""

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

    def order(self, tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterable[Task]:
        """Which tasks of a stage are done here, and in which order: what `map` is given.

        Where other drivers work on the same list, what they have done meanwhile is left out and gives no result
        here; its record stands in the store.

        Args:
            tasks: all of them, what is done already, too; the same in every driver.
            made: whether a task is done; may be asked just before it would begin.
        """
        ...

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in any order. An error raised by a task is raised here; what is under way is let go.

        Raises:
            TaskError: tasks took their workers down again and again; says which.
        """
        ...

    def limit(self, workers: int) -> None:
        """Have so many workers from now on, because of what the next tasks need. Between two calls of `map` only."""
        ...

    def isolate(self) -> None:
        """Run no task in this process from now on: it may never end. Between two calls of `map` only."""
        ...

    def close(self) -> None:
        """Free the workers."""
        ...


class InlineExecutor:
    """Runs every task in this process, one after another. Keeps tokenizers to one thread from then on.

    After `isolate`, in one process of their own.
    """

    def __init__(self) -> None:
        limit_threads()
        self._apart: Executor | None = None

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """See `Executor`. There is nobody else to call it."""

    def order(self, tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterator[Task]:
        """See `Executor`."""
        return not_made(tasks, made)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`."""
        if self._apart is not None:
            yield from self._apart.map(function, tasks)
            return
        for task in tasks:
            try:
                result = function(task)
            except Exception as error:
                raise named(error, task) from error
            yield result

    def limit(self, workers: int) -> None:
        """See `Executor`. There is always one."""

    def isolate(self) -> None:
        """See `Executor`."""
        from .local_executor import LocalExecutor  # here, because that module imports this one

        self._apart = self._apart or LocalExecutor(1)

    def close(self) -> None:
        """Let go of the parts that tasks hold mapped: before the next run they may be made anew."""
        if self._apart is not None:
            self._apart.close()
        from .worker import forget  # here, because workers import what is in this module

        forget()


def not_made(tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterator[Task]:
    """What one driver alone has to do."""
    return (task for task in tasks if not made(task))


class Quarantine:
    """What becomes of tasks whose workers die.

    Args:
        policy: `stop` gives the run up at the first task that has used up its tries; `continue` leaves it out, lets
            all others go on, and fails at the end.
    """

    def __init__(self, policy: Literal["stop", "continue"] = "stop") -> None:
        self.policy = policy
        self._lost: list[str] = []

    def give_up(self, task: object, why: str, tries: int) -> bool:
        """Count a death; whether the task is out of tries.

        Args:
            why: how the worker ended, such as `killed by SIGSEGV`.
            tries: deaths over this task, this one among them.

        Raises:
            TaskError: it is, and the policy is to stop.
        """
        if tries < TRIES:
            return False
        self._lost.append(f"a worker died {tries} times over {task}: {why}")
        if self.policy == "stop":
            self.check()
        return True

    def check(self) -> None:
        """Fail if anything was left out.

        Raises:
            TaskError: names every task, so that its input can be looked at.
        """
        if not self._lost:
            return
        lost, self._lost = self._lost, []
        kept = "What else could be done is done, and is kept for the next run. " if self.policy == "continue" else ""
        mend = (
            f"{kept}Fix or leave out the input that is named, use fewer workers so that each gets more memory "
            f"({setting('run.workers', 1)}), or the reference engine ({setting('tokenizer.engine', 'tokenizers')})"
        )
        if len(lost) == 1:
            raise TaskError(f"{lost[0]}. {mend}")
        shown = "".join(f"\n  {line}" for line in lost[:_SHOWN])
        more = f"\n  and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        raise TaskError(f"{len(lost):,} tasks were given up:{shown}{more}\n{mend}")


def named(error: Exception, task: object) -> Exception:
    """What packtrain raises on purpose says where it came from; anything else is given its task's name."""
    if isinstance(error, PacktrainError):
        return error
    return TaskError(
        f"{task}: {type(error).__name__}: {error}. This is a defect, of packtrain or of a file in its cache: delete "
        "the cache and run again; if that does not help, please report it with the input that is named"
    )
