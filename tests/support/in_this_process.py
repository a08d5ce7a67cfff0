"""An executor without workers, for tests whose lies only this process knows."""

from collections.abc import Callable, Generator, Iterable

from packtrain.pipeline.execute.executor import Executor, Result, Task, never_done


class InThisProcess(Executor):
    """Runs each task here, when its result is wanted. Takes the arguments of `Pool`."""

    def __init__(self, _workers: int, *, seconds: float | None = None, shard: str | None = None) -> None:
        pass

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], is_done: Callable[[Task], bool] = never_done
    ) -> Generator[Result, None, None]:
        for task in tasks:
            if not is_done(task):
                yield function(task)

    def end_idle_workers(self) -> None:
        pass

    def close(self) -> None:
        pass
