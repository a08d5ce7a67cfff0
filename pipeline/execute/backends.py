"""Chooses the executor of a run, and defines the one without workers."""

from collections.abc import Callable, Iterator

from ...schemas.config.run_section import RunSection
from ..store.open import Store
from .executor import Executor, Result, Task, TaskQueue, limit_threads, named
from .local import LocalExecutor


class InlineExecutor(Executor):
    """Runs every task in this process, one after another. Limits tokenizers to one thread.

    After `isolate`, tasks run in a separate process.
    """

    def __init__(self) -> None:
        limit_threads()
        self._apart: Executor | None = None

    def queue(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> TaskQueue[Task, Result]:
        """See `Executor`. A task is run when it is submitted."""
        return self._apart.queue(function, made) if self._apart is not None else _InlineQueue(function, made)

    def limit(self, workers: int) -> None:
        """See `Executor`. Does nothing, because there is only one process."""

    def isolate(self) -> None:
        """See `Executor`."""
        self._apart = self._apart or LocalExecutor(1)

    def close(self) -> None:
        """See `Executor`."""
        if self._apart is not None:
            self._apart.close()


class _InlineQueue(TaskQueue[Task, Result]):
    """Runs every task as soon as it is submitted."""

    def __init__(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> None:
        self._function = function
        self._made = made

    def submit(self, task: Task) -> list[Result]:
        """See `TaskQueue`."""
        if self._made(task):
            return []
        try:
            return [self._function(task)]
        except Exception as error:
            raise named(error, task) from error

    def drain(self) -> Iterator[Result]:
        """See `TaskQueue`."""
        return iter(())


def open_executor(section: RunSection, workers: int, *stores: Store) -> Executor:
    """Make the configured executor; its workers start in the background.

    Args:
        workers: number of workers on this machine.
        stores: the stores that every worker must reach, wherever it runs.

    Raises:
        ConfigError: a package that the executor needs is not installed, or a machine does not see a store.
    """
    if section.executor == "ray":
        from .ray_cluster import RayExecutor

        return RayExecutor(
            section.address,
            workers if section.workers is None else section.workers,
            stores,
            seconds=section.task_seconds,
            policy=section.on_dead_task,
        )
    executor: Executor
    if workers == 1 and section.task_seconds is None and section.on_dead_task == "stop":
        executor = InlineExecutor()  # not needed for a single process, because nothing survives its death
    else:
        executor = LocalExecutor(workers, seconds=section.task_seconds, policy=section.on_dead_task)
    if section.shard is None:
        return executor
    from .static_shards import StaticExecutor

    return StaticExecutor(executor, section.shard)
