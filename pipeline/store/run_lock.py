"""The lock of an output folder: one process works on it at a time, or several that share the work, and it says which.

The lock does not protect the data: two processes of one run write the same bytes. It avoids doing the work twice, and
shows users and `packtrain wait` whether a process is at work.

The file `_run/lock` is locked exclusively, or shared by processes with a share of the work (`--shard`). The kernel
releases it when its process ends, in whatever way. Its content says which process holds it, or how the last one failed;
after a success it is empty. Object stores and some network file systems have no locks: there, two processes do the work
twice.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from ...schemas.errors import BusyError, OutputError
from ...schemas.escape import escape
from ...schemas.files import lock
from .local import LocalStore, Store, writing_to

LOCK_FILE = "_run/lock"
# `read_run_lock` takes the lock for an instant to see whether it is free. So a lock that is taken is tried again.
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.1
# O_NONBLOCK and O_NOFOLLOW: whatever lies in the folder under this name, a pipe or a link, is neither waited for nor
# followed.
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_BYTES = 1 << 16


class LockHolder(msgspec.Struct, frozen=True):
    """A process that works on an output folder, as it describes itself in the file."""

    host: str
    pid: int
    since: str
    """When it began, by its own clock, for messages."""
    shard: str | None = None
    """`i/N` if it does a share of the work; None if it does all."""
    error: str | None = None
    """Why it failed; None if it is at work, or was killed."""

    def __str__(self) -> str:
        work = f"shard {self.shard}" if self.shard else "a run"
        return f"{work} on {self.host}, process {self.pid}, since {self.since}"


class Activity(Enum):
    """Whether a process works on an output folder."""

    WORKING = auto()
    IDLE = auto()
    UNKNOWN = auto()
    """Object stores, and some file systems, have no locks, which would show it."""


class RunLock(NamedTuple):
    """What the lock of an output folder shows."""

    holder: LockHolder | None
    """The process that holds it, or held it last; None after a success, before the first run, or if that is unknown."""
    activity: Activity


@contextmanager
def hold_run_lock(out: Store, *, shard: str | None = None) -> Iterator[None]:
    """Hold the lock of an output folder. If the work fails, the file says why.

    Args:
        shard: `i/N` for a process that shares the work with others, and then the lock; None for one that works alone.

    Raises:
        BusyError: another process holds the lock; the message says which, and since when.
        StoreError: the folder cannot be written.
    """
    if not isinstance(out, LocalStore):
        yield
        return
    start = datetime.now(UTC).isoformat(timespec="seconds")
    holder = LockHolder(os.uname().nodename, os.getpid(), start, shard)
    descriptor = _open_locked(out, shared=shard is not None)
    final_content = b""  # what the file holds at the end: nothing after a success
    try:
        _write(descriptor, msgspec.json.encode(holder))
        yield
    except OutputError:  # the folder is of another run: that this one was refused is not a failure of that run
        raise
    except (Exception, KeyboardInterrupt) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else escape(str(error))
        final_content = msgspec.json.encode(msgspec.structs.replace(holder, error=reason))
        raise
    finally:
        _write(descriptor, final_content)
        lock.release(descriptor)


def read_run_lock(out: Store) -> RunLock:
    """Who works on an output folder, or worked on it last."""
    if not isinstance(out, LocalStore):
        return RunLock(None, Activity.UNKNOWN)
    try:
        descriptor = os.open(out.path(LOCK_FILE), _OPEN_FLAGS)
    except (FileNotFoundError, NotADirectoryError):  # no run has ever begun there
        return RunLock(None, Activity.IDLE)
    except OSError:  # a file of another user
        return RunLock(None, Activity.UNKNOWN)
    try:
        # The lock is ours for an instant only if no process holds it. Read after that: a run that ends in between
        # would seem to have died.
        is_ours = lock.lock(descriptor, wait=False)
        holder = _read(descriptor)
        if is_ours is None:  # the file system has no locks
            return RunLock(holder, Activity.UNKNOWN)
        return RunLock(holder, Activity.IDLE if is_ours else Activity.WORKING)
    finally:
        lock.release(descriptor)


def _open_locked(out: LocalStore, *, shared: bool) -> int:
    """The descriptor of the locked file.

    Args:
        shared: whether others that ask for the same may hold the lock, too.

    Raises:
        BusyError: another process holds the lock.
        StoreError: the file cannot be made.
    """
    path = out.path(LOCK_FILE)
    with writing_to(out.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o666)
    for _ in range(_ATTEMPTS):
        # True: it is ours. None: the file system has no locks, so the work goes on without one. False: it is taken.
        if lock.lock(descriptor, wait=False, shared=shared) is not False:
            return descriptor
        time.sleep(_PAUSE_SECONDS)
    holder = _read(descriptor)
    lock.release(descriptor)
    raise BusyError(
        f"out: {holder or 'another run'} works on {out.url}. Let it finish, stop it, or name another folder with "
        "--out; only runs that all have --shard share a folder"
    )


def _read(descriptor: int) -> LockHolder | None:
    """What the holder says of itself; None if nothing can be read: the lock is held without it, too."""
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_BYTES, 0), type=LockHolder)
    except (OSError, msgspec.MsgspecError):  # just made, empty, or written in part
        return None


def _write(descriptor: int, content: bytes) -> None:
    """Replace the content of the file."""
    with suppress(OSError):  # if the disk is full, writing the data will say so
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
