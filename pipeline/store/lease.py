"""Lets only one driver at a time work on an output folder (or several that share the work), and shows others which.

The lease does not protect the data: two drivers of one run write the same bytes. It avoids doing the work twice, and
shows users and `packtrain wait` whether a driver is at work.

It is a lock of the file `_run/lease`: exclusive, or shared by drivers with a share of the work (`--shard`). The kernel
releases it when its driver ends, in whatever way. The file says who holds it, or how the last one failed; after a
success it is empty. Object stores and some network file systems have no locks: there, two drivers do the work twice.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import msgspec

from ...schemas.errors import BusyError, OutputError
from ...schemas.escape import escape
from ...schemas.files import lock
from .local import LocalStore, Store, explain

NAME = "_run/lease"
_TRIES, _PAUSE_SECONDS = 5, 0.1
"""Whoever looks whether a driver is at work has the lock for an instant."""
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_BYTES = 1 << 16


class Lease(msgspec.Struct, frozen=True):
    """A driver's description of itself."""

    host: str
    pid: int
    since: str
    """When the driver began, by its own clock, for messages."""
    shard: str | None = None
    error: str | None = None
    """What the driver failed of."""

    def __str__(self) -> str:
        what = f"shard {self.shard}" if self.shard else "a run"
        return f"{what} on {self.host}, process {self.pid}, since {self.since}"


@contextmanager
def leased(out: Store, *, shard: str | None = None) -> Iterator[None]:
    """Hold the lease of an output folder. If the work fails, the file says why.

    Args:
        shard: `i/N` for a driver that shares the work with others.

    Raises:
        BusyError: another driver holds the lease; the message says which, and since when.
        StoreError: the folder cannot be written.
    """
    if not isinstance(out, LocalStore):
        yield
        return
    mine = Lease(os.uname().nodename, os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"), shard)
    descriptor, left = _taken(out, shared=shard is not None), b""
    try:
        _write(descriptor, msgspec.json.encode(mine))
        yield
    except OutputError:  # the folder belongs to another run, of which this one says nothing
        raise
    except (Exception, KeyboardInterrupt) as error:
        said = "interrupted" if isinstance(error, KeyboardInterrupt) else escape(str(error))
        left = msgspec.json.encode(msgspec.structs.replace(mine, error=said))
        raise
    finally:
        _write(descriptor, left)
        lock.release(descriptor)


def look(out: Store) -> tuple[Lease | None, bool | None]:
    """The last driver of an output folder that has not finished, and whether it is at work; None if unknown."""
    if not isinstance(out, LocalStore):
        return None, None
    try:
        descriptor = os.open(out.path(NAME), _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None, False
    except OSError:  # another user's
        return None, None
    try:
        free = lock.lock(descriptor, wait=False)
        return _read(descriptor), None if free is None else not free
    finally:
        lock.release(descriptor)


def _taken(out: LocalStore, *, shared: bool) -> int:
    """The locked file."""
    path = out.path(NAME)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o666)
    except OSError as error:
        raise explain(error, out.root) from error
    for _ in range(_TRIES):
        if lock.lock(descriptor, wait=False, shared=shared) is not False:
            return descriptor
        time.sleep(_PAUSE_SECONDS)
    other = _read(descriptor)
    lock.release(descriptor)
    raise BusyError(
        f"out: {other or 'another run'} works on {out.url}. Let it finish, stop it, or name another folder with --out; "
        "only runs that all have --shard share a folder"
    )


def _read(descriptor: int) -> Lease | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, _MOST_BYTES, 0), type=Lease)
    except (OSError, msgspec.MsgspecError):  # just made, or torn
        return None


def _write(descriptor: int, data: bytes) -> None:
    with suppress(OSError):  # the disk is full, which the data will say
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)
