"""Checks that files of earlier runs are intact before they are used.

A matching size does not prove that a file is intact, because disks and memory flip bits. Hashing takes a fraction of
the time of packing the same bytes, and each file is read once.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...schemas.errors import IntegrityError, StoreError
from ..store.local import LocalStore, hash_file
from ..store.open import Store, StoredFile
from .executor import Executor, perform

TASK_BYTES = 256 << 20
"""Bytes to check in one task: about a tenth of a second of work."""
ALONE_BYTES = 4 << 30
"""Up to this many bytes are checked by threads of this process, which is faster than waiting for workers to start.
Hashing and reading leave the interpreter to other threads.
"""
_THREADS = 4
"""Maximum number of threads."""


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Files to read."""

    store: Store
    files: tuple[StoredFile, ...]

    def run(self) -> "CheckResult":
        """See `check_files`."""
        return check_files(self)

    def __str__(self) -> str:
        return f"checking {len(self.files):,} files of {self.store.url}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    damaged: tuple[str, ...]
    """Names of files that do not match their hash, or are missing."""


def check_files(task: CheckTask) -> CheckResult:
    """Run one task.

    Raises:
        StoreError: a file cannot be read, and making it again would not help.
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
                f"{task.store.where(file.name)} cannot be read: {error.strerror}; fix its permissions, and run again"
            ) from error
        except OSError:  # the disk has an unreadable block
            found.append(file.name)
            continue
        if (put.bytes, put.hash) != (file.bytes, file.hash):
            found.append(file.name)
    return CheckResult(tuple(found))


def damaged(executor: Executor, store: Store, files: Iterable[StoredFile]) -> set[str]:
    """Return the names of the files that do not match their hash.

    Files of remote stores are not read here, because copies are checked when they are fetched.
    """
    listed = sorted(set(files), key=lambda file: file.name)
    if not isinstance(store, LocalStore) or not listed:
        return set()
    if sum(file.bytes for file in listed) <= ALONE_BYTES:
        in_turn = sorted(listed, key=lambda file: -file.bytes)  # the largest first, so that the threads end together
        with ThreadPoolExecutor(_THREADS, "packtrain-check") as pool:
            checks = [CheckTask(store, (file,)) for file in in_turn]
            return {name for found in pool.map(check_files, checks) for name in found.damaged}
    found: set[str] = set()
    for result in executor.map(perform, _tasks(store, listed)):
        assert isinstance(result, CheckResult)
        found.update(result.damaged)
    return found


def _tasks(store: Store, files: list[StoredFile]) -> Iterator[CheckTask]:
    group: list[StoredFile] = []
    size = 0
    for file in files:
        if group and size + file.bytes > TASK_BYTES:
            yield CheckTask(store, tuple(group))
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield CheckTask(store, tuple(group))
