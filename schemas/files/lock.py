"""Advisory locks on local files, which the kernel releases when their holder dies.

`flock` belongs to an open file, not to a process: threads exclude each other like processes, and `kill -9` leaves no
stale lock. A forked child shares the open file, so use `own` for a lock that a child must not keep. Some network file
systems have no locks; every caller says what it does there.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OWNED: set[int] = set()
"""Descriptors that forked children must close."""
_CLOCK_ERROR = 5.0
"""Tolerance in seconds for the start time of a process: the system's boot time shifts with its clock."""


def lock(descriptor: int, *, wait: bool = True) -> bool | None:
    """Lock an open file. True: locked. False: another holds it. None: the file system has no locks.

    Args:
        wait: block until the lock is free; then never returns False.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def release(descriptor: int) -> None:
    """Unlock and close, even if a fork still has the file open."""
    _OWNED.discard(descriptor)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait for a file's exclusive lock and hold it. Creates the file and its folder. Without locks, does not wait.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    own(descriptor)
    try:
        lock(descriptor)
        yield
    finally:
        release(descriptor)


def own(descriptor: int) -> None:
    """Have children that are forked from now on close this descriptor, until it is released."""
    _OWNED.add(descriptor)


def stands_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name: a locked file may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_unused(path: Path, *, age: float = 0.0) -> bool:
    """Remove a file that is not locked. False if it is locked, or belongs to another user.

    Args:
        age: without locks, a file written to within these last seconds counts as used.
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # for an exclusive lock, NFS needs write access
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        mine = lock(descriptor, wait=False)
        if mine is False or (mine is None and time.time() - os.fstat(descriptor).st_mtime < age):
            return False
        if not stands_at(descriptor, path):
            return False
        path.unlink()
        return True
    except OSError:
        return False
    finally:
        release(descriptor)


def process_runs(pid: int, began: float | None = None) -> bool:
    """Whether a process of this machine is running; a zombie is not.

    Args:
        began: when it began, in seconds since 1970, if known: process numbers are reused.
    """
    import psutil  # here, because few callers need it

    try:
        process = psutil.Process(pid)
        same = began is None or abs(process.create_time() - began) < _CLOCK_ERROR
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True  # another user's


def _close_owned() -> None:
    for descriptor in _OWNED:
        os.close(descriptor)
    _OWNED.clear()


os.register_at_fork(after_in_child=_close_owned)
