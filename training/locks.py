"""Advisory locks on files, which the kernel gives up when their holder dies.

`flock` belongs to an open file, not to a process: two threads exclude each other as two processes do, and `kill -9`
leaves nothing stale. A child that is forked shares the open file, so a lock that the child must not keep alive is
taken with `own`.
"""

import errno
import fcntl
import os
from pathlib import Path

_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_OWNED: set[int] = set()
"""Descriptors whose locks are this process's alone."""


class NoLocksError(Exception):
    """The file system has no advisory locks."""


def try_exclusive(descriptor: int) -> bool:
    """Lock for one; False while anyone else holds it in any way."""
    return _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_exclusive(descriptor: int) -> None:
    """Lock for one, as soon as nobody else holds it."""
    _lock(descriptor, fcntl.LOCK_EX)


def share(descriptor: int) -> None:
    """Lock for many; waits while one has it alone."""
    _lock(descriptor, fcntl.LOCK_SH)


def own(descriptor: int) -> None:
    """Children that are forked from now on close this descriptor at once."""
    _OWNED.add(descriptor)


def disown(descriptor: int) -> None:
    """The contrary of `own`."""
    _OWNED.discard(descriptor)


def release(descriptor: int) -> None:
    """Unlock and close. A fork that still has the file open does not keep the lock."""
    disown(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def stands_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one that has this name now: what is locked may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise NoLocksError from error
        raise
    return True


def _close_owned() -> None:
    for descriptor in _OWNED:
        os.close(descriptor)
    _OWNED.clear()


os.register_at_fork(after_in_child=_close_owned)
