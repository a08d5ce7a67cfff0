"""Several runs that share the work without knowing each other: `packtrain run --shard i/N`.

Each of the N makes the same list of tasks and cuts it into N shares. It does its own from the front, then the others'
from their ends, so that whoever helps and whoever owns the share meet once. Before a task begins, its record is looked
for: what stands there is left out. So nobody waits for anybody, no clock is read, any of them may be missing, late or
started again, and one alone does everything. A task that two do at once is done twice, into the same bytes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from .documents import RECORD, DocumentsTask
from .encode import EncodeTask, record_name
from .executors import Executor, Result, Task
from .stores import Store

_SHARE_OF_TIME = 20
"""A listing is made anew after so many times what it took."""
_SHORTEST_SECONDS = 1.0


class StaticExecutor:
    """An executor whose tasks others have on their lists, too.

    Args:
        executor: runs the tasks that are done here.
        shard: `i/N`, from 0.
    """

    def __init__(self, executor: Executor, shard: str) -> None:
        self._executor = executor
        self._index, self._count = parse_shard(shard)

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """See `Executor`."""
        self._executor.start(function, *arguments)

    def order(self, tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterator[Task]:
        """See `Executor`."""
        listed = list(tasks)
        seen: dict[Store, _Listing] = {}
        for position in turns(shares(listed, self._count), self._index, self._count):
            task = listed[position]
            place = _record_of(task)
            if place is not None:
                store, name = place
                listing = seen.get(store)
                if listing is None:
                    listing = seen[store] = _Listing(store, name.partition("/")[0])
                if name in listing.new():
                    continue
            if not made(task):
                yield task

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`."""
        return self._executor.map(function, tasks)

    def limit(self, workers: int) -> None:
        """See `Executor`."""
        self._executor.limit(workers)

    def isolate(self) -> None:
        """See `Executor`."""
        self._executor.isolate()

    def close(self) -> None:
        """See `Executor`."""
        self._executor.close()


def parse_shard(shard: str) -> tuple[int, int]:
    """(i, N) of `i/N`; the configuration has checked it."""
    index, _, count = shard.partition("/")
    return int(index), int(count)


def shares(tasks: Sequence[object], count: int) -> list[int]:
    """Whose share each task is in, from 0 on, never falling.

    Whole windows where there are enough of them, because the shards of a window are made from the same parts.
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
    """Positions of tasks in the order in which one of `count` does them.

    Args:
        owners: whose share each is in, never falling.
        index: who asks.
    """
    places: list[list[int]] = [[] for _ in range(count)]
    for position, owner in enumerate(owners):
        places[owner].append(position)
    yield from places[index]
    for step in range(1, count):  # each helps another neighbour first
        yield from reversed(places[(index + step) % count])


class _Listing:
    """Names that have come since the beginning: asked for in bulk, where one by one would be a request each."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._new: set[str] = set()
        began = time.monotonic()
        self._before = set(store.names(folder))
        self._took(began)

    def new(self) -> set[str]:
        """What others have put, as of a short while ago."""
        if time.monotonic() >= self._again:
            began = time.monotonic()
            self._new = set(self._store.names(self._folder)) - self._before
            self._took(began)
        return self._new

    def _took(self, began: float) -> None:
        now = time.monotonic()
        self._again = now + max(_SHORTEST_SECONDS, _SHARE_OF_TIME * (now - began))


def _record_of(task: object) -> tuple[Store, str] | None:
    """Where a task's record will stand."""
    if isinstance(task, EncodeTask):
        return task.cache, record_name(task.key)
    if isinstance(task, DocumentsTask):
        return task.out, RECORD
    record = getattr(task, "record", None)
    return (getattr(task, "out"), record) if isinstance(record, str) else None  # noqa: B009
