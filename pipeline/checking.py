"""Are the bytes that an earlier run left still what they were? Before anything is made of them, they are read.

A size says that a file is whole, not that it is right: disks and memory flip bits. Hashing costs a fraction of what
packing the same bytes costs, and each file is read once, whatever the number of workers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..schemas.errors import IntegrityError, StoreError
from .executors import Executor
from .parts import PartFile
from .store import LocalStore, hash_file
from .stores import Store

TASK_BYTES = 256 << 20
"""Of one task: a tenth of a second's work."""
ALONE_BYTES = 64 << 20
"""So little is read here and now: to wait for workers would take longer."""


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Files to read."""

    store: Store
    files: tuple[PartFile, ...]

    def __str__(self) -> str:
        return f"checking {len(self.files):,} files of {self.store.url}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was found."""

    damaged: tuple[str, ...]
    """Names of files whose bytes are not those of their hash, or that are gone."""


def check_files(task: CheckTask) -> CheckResult:
    """Run one task.

    Raises:
        StoreError: a file cannot be read, for a reason that making it anew would not mend.
    """
    found = []
    for file in task.files:
        try:
            put = hash_file(task.store.local(file.name, bytes=file.bytes, hash=file.hash))
        except (FileNotFoundError, IntegrityError):
            found.append(file.name)
            continue
        except PermissionError as error:
            raise StoreError(
                f"{task.store.where(file.name)} cannot be read: {error.strerror}; mend the rights, and run again"
            ) from error
        except OSError:  # a block of the disk that cannot be read any more
            found.append(file.name)
            continue
        if (put.bytes, put.hash) != (file.bytes, file.hash):
            found.append(file.name)
    return CheckResult(tuple(found))


def damaged(executor: Executor, store: Store, files: Iterable[PartFile]) -> set[str]:
    """Names of the files that are not what their hash says.

    Nothing is read of a store that is not on this machine: its copies are checked when they are fetched.
    """
    listed = sorted(set(files), key=lambda file: file.name)
    if not isinstance(store, LocalStore) or not listed:
        return set()
    if sum(file.bytes for file in listed) <= ALONE_BYTES:
        return set(check_files(CheckTask(store, tuple(listed))).damaged)
    from .worker import perform  # here, because a worker imports this module for its task

    found: set[str] = set()
    for result in executor.map(perform, _tasks(store, listed)):
        assert isinstance(result, CheckResult)
        found.update(result.damaged)
    return found


def _tasks(store: Store, files: list[PartFile]) -> Iterator[CheckTask]:
    group: list[PartFile] = []
    size = 0
    for file in files:
        if group and size + file.bytes > TASK_BYTES:
            yield CheckTask(store, tuple(group))
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield CheckTask(store, tuple(group))
