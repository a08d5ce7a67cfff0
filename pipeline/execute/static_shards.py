"""Several runs that share the work without knowing each other: `packtrain run --shard i/N`.

Each of the N runs makes the same list of tasks and cuts it into N shares. It works through its own share from the
front, then helps with the others' shares from the back, so that helper and owner meet only once. A task whose record
already exists is skipped. So no run waits for another, no clocks are compared, any run may be missing, late or
restarted, and even a single run does everything. If two runs do a task at once, they write the same bytes.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from ..store.open import Store
from .executor import EngineAhead, Executor, Result, Task, TaskQueue

_SHARE_OF_TIME = 20
"""Listings are repeated after a pause of this many times their duration."""
_SHORTEST_SECONDS = 1.0


class StaticExecutor(Executor):
    """An executor whose tasks are shared with other runs.

    Args:
        executor: runs this run's tasks.
        shard: `i/N`, from 0.
    """

    def __init__(self, executor: Executor, shard: str) -> None:
        self._executor = executor
        self._index, self._count = parse_shard(shard)

    def get_ready(self, ahead: EngineAhead | None = None) -> None:
        """See `Executor`."""
        self._executor.get_ready(ahead)

    def queue(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> TaskQueue[Task, Result]:
        """See `Executor`. No task begins before all are known, because their number decides the shares."""
        return _SharedQueue(self._executor.queue(function, made), self._index, self._count)

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        self._executor.limit(workers)

    def isolate(self) -> None:
        """See `Executor`."""
        self._executor.isolate()

    def close(self) -> None:
        """See `Executor`."""
        self._executor.close()


class _SharedQueue(TaskQueue[Task, Result]):
    """A queue that orders its tasks for one of several drivers."""

    def __init__(self, queue: TaskQueue[Task, Result], index: int, count: int) -> None:
        self._queue = queue
        self._index = index
        self._count = count
        self._tasks: list[Task] = []

    def submit(self, task: Task) -> list[Result]:
        """See `TaskQueue`."""
        self._tasks.append(task)
        return []

    def drain(self) -> Iterator[Result]:
        """See `TaskQueue`."""
        seen: dict[Store, _Listing] = {}
        for position in turns(shares(self._tasks, self._count), self._index, self._count):
            task = self._tasks[position]
            place = _record_of(task)
            if place is not None:
                store, name = place
                listing = seen.get(store)
                if listing is None:
                    listing = seen[store] = _Listing(store, name.partition("/")[0])
                if name in listing.new():
                    continue
            yield from self._queue.submit(task)
        yield from self._queue.drain()

    def close(self) -> None:
        """See `TaskQueue`."""
        self._queue.close()


def parse_shard(shard: str) -> tuple[int, int]:
    """Parse `i/N` into (i, N); the configuration has already checked it."""
    index, _, count = shard.partition("/")
    return int(index), int(count)


def shares(tasks: Sequence[object], count: int) -> list[int]:
    """Return the share of each task, ascending from 0.

    Shares consist of whole windows if there are enough, because a window's shards are made from the same parts.
    """
    groups = list(range(len(tasks)))
    windows: list[int] = []
    last: object = None
    for task in tasks:
        layout = getattr(task, "layout", last)
        windows.append((windows[-1] if windows else 0) + (last is not None and layout != last))
        last = layout
    if windows and last is not None and windows[-1] + 1 >= count:
        groups = windows
    whole = groups[-1] + 1 if groups else 0
    return [group * count // whole for group in groups]


def turns(owners: Sequence[int], index: int, count: int) -> Iterator[int]:
    """Return the positions of tasks in the order in which one of `count` runs does them.

    Args:
        owners: the share of each task, ascending.
        index: the number of this run.
    """
    places: list[list[int]] = [[] for _ in range(count)]
    for position, owner in enumerate(owners):
        places[owner].append(position)
    yield from places[index]
    for step in range(1, count):  # each run helps a different neighbour first
        yield from reversed(places[(index + step) % count])


class _Listing:
    """Names added to a store since the beginning; they are listed in bulk to save requests."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._new: set[str] = set()
        began = time.monotonic()
        self._before = set(store.names(folder))
        self._took(began)

    def new(self) -> set[str]:
        """Names that other runs had put when the store was last listed."""
        if time.monotonic() >= self._again:
            began = time.monotonic()
            self._new = set(self._store.names(self._folder)) - self._before
            self._took(began)
        return self._new

    def _took(self, began: float) -> None:
        now = time.monotonic()
        self._again = now + max(_SHORTEST_SECONDS, _SHARE_OF_TIME * (now - began))


def _record_of(task: object) -> tuple[Store, str] | None:
    """Return the store and the name of a task's record."""
    record = getattr(task, "record", None)
    return (getattr(task, "destination"), record) if isinstance(record, str) else None  # noqa: B009
