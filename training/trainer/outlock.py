"""One training at a time in an output folder: two would write into each other's checkpoints.

The first rank holds a lock of the kernel's on a small file in the folder, which says who it is. The lock vanishes with
its process, however that ends; a worker that outlives its launcher still holds it.
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
from .. import locks

NAME = ".training.lock"
_LOG = logging.getLogger(__name__)
_HELD: set[Path] = set()
"""Folders whose lock this process holds: a training from a configuration trains with a PackedTrainer."""


@contextmanager
def locked(out: Path, rank: int) -> Iterator[None]:
    """Hold the folder; made if it is not there. Ranks other than the first hold nothing.

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
            with suppress(OSError):
                (folder / NAME).unlink()  # before it is unlocked: who opened it meanwhile sees that it is gone
            locks.release(descriptor)


def _lock(path: Path) -> int | None:
    """The open file, locked; None where the file system has no locks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            mine = locks.try_exclusive(descriptor)
        except locks.NoLocksError:
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
        if locks.stands_at(descriptor, path):
            break
        locks.release(descriptor)
    locks.own(descriptor)
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
