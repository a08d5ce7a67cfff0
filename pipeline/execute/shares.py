"""Several runs that share the work without knowing each other: `packtrain run --shard i/N`.

Each of the N runs makes the same list of tasks and cuts it into N shares. It works through its own share from the
front, then helps with the others' shares from the back, so that helper and owner meet only once. A task whose record
already exists is skipped. So no run waits for another, no clocks are compared, any run may be missing, late or
restarted, and even a single run does everything. If two runs do a task at once, they write the same bytes.
"""

from collections.abc import Callable, Generator, Iterable, Iterator

from .executor import Executor, Result, Task, never


class SharedWork(Executor):
    """An executor whose tasks are shared with other runs.

    Args:
        executor: runs this run's tasks.
        shard: `i/N`, from 0.
    """

    def __init__(self, executor: Executor, shard: str) -> None:
        self._executor = executor
        self._index, self._count = parse_shard(shard)

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], made: Callable[[Task], bool] = never
    ) -> Generator[Result, None, None]:
        """See `Executor`. No task begins before all are known, because their number decides the shares."""
        every = list(tasks)
        order = turns(len(every), self._index, self._count)
        return self._executor.map(function, (every[position] for position in order), made)

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        self._executor.limit(workers)

    def close(self) -> None:
        """See `Executor`."""
        self._executor.close()


def parse_shard(shard: str) -> tuple[int, int]:
    """Parse `i/N` into (i, N); the configuration has already checked it."""
    index, _, count = shard.partition("/")
    return int(index), int(count)


def turns(tasks: int, index: int, count: int) -> Iterator[int]:
    """Return the positions of tasks in the order in which run `index` of `count` does them."""
    bounds = [tasks * share // count for share in range(count + 1)]
    yield from range(bounds[index], bounds[index + 1])
    for step in range(1, count):  # each run helps a different neighbour first
        share = (index + step) % count
        yield from reversed(range(bounds[share], bounds[share + 1]))
