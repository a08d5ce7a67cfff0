"""Advisory locks on local files, which the kernel releases when their holder dies.

`flock` belongs to an open file, not to a process: threads exclude each other like processes, and `kill -9` leaves no
stale lock, unless a forked child still has the file open. Some network file systems have no locks; every caller says
what it does there.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def lock(descriptor: int, *, wait: bool = True, shared: bool = False) -> bool | None:
    """Lock an open file. True: it is locked now. False: another holds the lock. None: the file system has no locks.

    Args:
        wait: block until the lock is free; then never returns False.
        shared: let others hold it too that ask for the same.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def release(descriptor: int) -> None:
    """Unlock and close, even if a fork still has the file open."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Wait for the exclusive lock of a file, and hold it. Creates the file and its folder.

    Gives whether the file is locked: False, at once, if the file system has no locks.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file is never removed: two processes could then hold the locks of two files of the same name.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        locked = lock(descriptor) is not None
        with suppress(OSError):
            os.utime(descriptor)  # `packtrain clean` removes files by their age
        yield locked
    finally:
        release(descriptor)
