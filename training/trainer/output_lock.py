"""One training at a time in an output folder: two would write into each other's checkpoints.

The first rank locks a small file in the folder, which names its process. The kernel drops the lock when the process
ends, however it ends; a worker that outlives its launcher still holds it.
"""

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from ...schemas.errors import BusyError, ConfigError
from ...schemas.files import lock

NAME = ".training.lock"
_LOG = logging.getLogger(__name__)
_HELD: set[Path] = set()
"""Folders whose lock this process holds: `train` locks, and its PackedTrainer would lock again."""


@contextmanager
def locked(out: Path, rank: int) -> Iterator[None]:
    """Hold the folder, which is made if needed. Only the first rank holds it.

    Raises:
        BusyError: another training works on it; says which process, where and since when.
        ConfigError: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be made a folder ({error.strerror}); name another") from error
    folder = out.resolve()
    if rank != 0 or folder in _HELD:
        yield
        return
    try:
        descriptor = _lock(folder / NAME)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written ({error.strerror}); name another folder") from error
    _HELD.add(folder)
    try:
        yield
    finally:
        _HELD.discard(folder)
        if descriptor is not None:
            with suppress(OSError):  # before it is unlocked: a process that has opened it sees that it is gone
                (folder / NAME).unlink()
            lock.release(descriptor)


def _lock(path: Path) -> int | None:
    """The open file, locked; None where the file system has no locks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        mine = lock.lock(descriptor, wait=False)
        if mine is None:
            os.close(descriptor)
            _LOG.warning("%s: this file system has no locks; take care that no other training writes there", path)
            return None
        if not mine:
            said = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise BusyError(
                f"out: another training{_who(said)} works on {path.parent}. Let it finish, stop it, or name another "
                "folder"
            )
        if lock.stands_at(descriptor, path):
            break
        lock.release(descriptor)
    lock.own(descriptor)
    me = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(me).encode(), 0)
    return descriptor


def _who(said: bytes) -> str:
    try:
        found = json.loads(said)
        return f" (process {int(found['pid'])} on {str(found['host'])!r}, since {str(found['since'])!r})"
    except (ValueError, KeyError, TypeError):
        return ""
