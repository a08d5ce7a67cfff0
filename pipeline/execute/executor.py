"""The interface of executors, which apply a function to tasks and return results as they come.

Tasks and results are small (names, ranges, counts); data goes through the store. A task is a pure function of its
argument, so it is harmless to run it again after a death, twice at once, or on another machine.
"""

import os
import pickle
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ...schemas.errors import PacktrainError, StoppedTemplateError, TaskError
from ...schemas.tables.engines import TOKENIZER_ENGINES

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_TRIES = 3
"""Number of workers that may die over a task before the run gives up."""
TEMPLATE_TIMEOUT_SIGNAL = signal.SIGVTALRM
"""The signal by which the kernel kills a worker whose chat template does not respond; see `template_watchdog`."""


def never_done(_task: object) -> bool:
    """Always false: for tasks that leave no record, so that none is known to be done."""
    return False


def perform(task: Any) -> object:
    """Run a task of a run: its `run` is a pure function of its fields. This is the function passed to executors."""
    return task.run()


class Executor(ABC):
    """Runs tasks somewhere."""

    @abstractmethod
    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], is_done: Callable[[Task], bool] = never_done
    ) -> Generator[Result, None, None]:
        """Yield the results of tasks, in any order. Tasks are taken from the iterable one by one, when there is room.

        Several runs may have the same tasks. A task that another run finishes gives no result here; its records are in
        the store.

        Args:
            is_done: tells whether a task is already done, and so left out; called just before the task would begin.

        Raises:
            TaskError: several workers died over a task; the message says which. Errors of tasks are raised too.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the workers."""

    @abstractmethod
    def end_idle_workers(self) -> None:
        """Free what idle workers have loaded for their tasks, such as a tokenizer, by ending them. The next task starts
        others.
        """


def lost_task_error(task: object, reason: str) -> TaskError:
    """The error for a task over which `MAX_TRIES` workers have died.

    Args:
        reason: how the last worker ended, such as `killed by SIGSEGV`.
    """
    return TaskError(
        f"a worker died {MAX_TRIES} times over {task}: {reason}. Fix or leave out the named input (its source's "
        "max_row_bytes rejects long rows), use fewer workers so that each gets more memory (run.workers=1), or the "
        "reference engine (tokenizer.engine=tokenizers)"
    )


def with_task_name(error: Exception, task: object) -> Exception:
    """The error of a task, as the user gets it.

    The task is named in errors that do not say where they come from: errors of other packages, and of a template that
    was stopped. Other errors of packtrain name their file or key already, and stay as they are.
    """
    if isinstance(error, StoppedTemplateError):
        return StoppedTemplateError(f"{task}: {error}")
    if isinstance(error, PacktrainError):
        return error
    return TaskError(
        f"{task}: {type(error).__name__}: {str(error).removesuffix('.')}. This is a bug in packtrain, or a damaged "
        "file in its cache: delete the cache and run again; if that does not help, please report it with the named "
        "input"
    )


# Workers: what they do, and how they end


def limit_threads() -> None:
    """Limit the tokenizer engines of this process, a worker, to one thread each: there is a worker for each core. To be
    called before any engine is loaded: it reads these environment variables as it loads.
    """
    for engine in TOKENIZER_ENGINES.values():
        os.environ.update(engine.one_thread)


def run_task(function: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    """Run a task in a worker. Returns (result, None) or (None, error). An error is returned, not raised, because it is
    sent to the main process.
    """
    try:
        return function(task), None
    except Exception as error:
        error.add_note("in a worker:\n" + traceback.format_exc())  # pickling drops tracebacks
        # An error of another package may not survive pickling: it may need arguments that it does not keep.
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error


def exit_reason(code: int, kills_before: int | None) -> str:
    """Describe why a child ended, for example `killed by SIGKILL: ...`.

    Args:
        code: its exit code, negative for a signal, as in `subprocess` and `multiprocessing`.
        kills_before: the result of `out_of_memory_kills` before the child started.
    """
    if code >= 0:
        return f"it ended with exit code {code}"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        kills_now = out_of_memory_kills()
        if kills_now is not None and kills_before is not None and kills_now > kills_before:
            return f"killed by {name}: out of memory, according to the kernel's count of such kills"
        return f"killed by {name}, usually by the kernel when memory runs out"
    return f"killed by {name}"


def out_of_memory_kills() -> int | None:
    """Return how often this machine's kernel has killed a process for lack of memory; None if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None  # a kernel that does not count them


# Tasks that are shared with other runs that do not know each other: `packtrain run --shard i/N`


def parse_shard(shard: str) -> tuple[int, int]:
    """Parse `i/N` into (i, N). Nothing is checked, because the configuration has checked it already."""
    index, _, count = shard.partition("/")
    return int(index), int(count)


def shared_order(task_count: int, index: int, count: int) -> Iterator[int]:
    """The positions of tasks in the order in which run `index` of `count` does them.

    Each of the runs makes the same list of tasks and cuts it into as many shares. It works through its own share from
    the front, then helps with the others' shares from the back, so that helper and owner meet only once. A task whose
    record already exists is skipped. So no run waits for another, no clocks are compared, any run may be missing, late
    or restarted, and even a single run does everything. If two runs do a task at once, they write the same bytes.

    Of 6 tasks, run 0 of 3 does 0 1, then 3 2, then 5 4; run 1 does 2 3, then 5 4, then 1 0.
    """
    bounds = [task_count * share // count for share in range(count + 1)]
    yield from range(bounds[index], bounds[index + 1])
    for step in range(1, count):
        # Each run helps a different neighbour first.
        share = (index + step) % count
        yield from reversed(range(bounds[share], bounds[share + 1]))
