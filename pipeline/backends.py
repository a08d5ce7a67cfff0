"""Which executor a run has."""

from ..schemas.run_section import RunSection
from .executors import Executor, InlineExecutor
from .local_executor import LocalExecutor
from .stores import Store


def open_executor(section: RunSection, workers: int, *stores: Store) -> Executor:
    """The executor that the configuration names, its workers on their way.

    Args:
        workers: of this machine; nobody else's.
        stores: what every worker must reach, wherever it runs.

    Raises:
        ConfigError: what it needs is not installed, or a machine does not see a store.
    """
    if section.executor == "ray":
        from .ray_executor import RayExecutor

        return RayExecutor(
            section.address,
            workers if section.workers is None else section.workers,
            stores,
            seconds=section.task_seconds,
            policy=section.on_dead_task,
        )
    executor: Executor
    if workers == 1 and section.task_seconds is None and section.on_dead_task == "stop":
        executor = InlineExecutor()  # nobody could outlive the death of the one process there is
    else:
        executor = LocalExecutor(workers, seconds=section.task_seconds, policy=section.on_dead_task)
    if section.shard is None:
        return executor
    from .static import StaticExecutor

    return StaticExecutor(executor, section.shard)
