"""One training at a time in an output folder: two would write into each other's checkpoints.

The first rank locks a small file in the folder, which names its process and stays there. The kernel drops the lock when
the process ends, however it ends; a worker that outlives its launcher still holds it.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
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
    folder = out.resolve()
    if rank != 0 or folder in _HELD:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written as a folder ({error.strerror}); name another") from error
    lock.own(descriptor)
    _HELD.add(folder)
    try:
        mine = lock.lock(descriptor, wait=False)
        if mine is False:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace")
            raise BusyError(
                f"out: another training ({holder}) works on {out}. Let it finish, stop it, or name another folder"
            )
        if mine is None:
            _LOG.warning("%s: this file system has no locks; take care that no other training writes there", out)
        me = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M}"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, me.encode(), 0)
        yield
    finally:
        _HELD.discard(folder)
        lock.release(descriptor)
