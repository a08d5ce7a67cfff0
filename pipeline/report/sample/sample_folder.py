"""Makes the temporary folder of a sample, and removes folders that killed plans left behind.

A killed process cannot clean up, and a sample may have gigabytes. So every folder has a lock file. The kernel releases
the lock when its process ends, and the next plan removes folders that no process has locked.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ....schemas.files import lock

_PREFIX = "packtrain-sample-"
_LOCK = ".in-use"
_YOUNG_SECONDS = 60.0
"""Seconds: a younger folder without a lock file may be in the middle of its creation."""


@contextmanager
def sample_folder() -> Iterator[Path]:
    """Make a folder for a sample below the system's temporary folder; it is removed afterwards."""
    home = Path(tempfile.gettempdir())
    for left in home.glob(f"{_PREFIX}*"):
        _sweep(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        # Programs that are started do not inherit the lock, and forked workers end with their driver.
        held = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock.lock(held)
            (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # renamed when locked, so that it is never seen unlocked
            yield folder
        finally:
            os.close(held)


def _sweep(folder: Path) -> None:
    """Remove a folder if it belongs to this user and is not in use."""
    try:
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            return
        held = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        return
    except OSError:
        return
    try:
        if lock.lock(held, wait=False):  # otherwise it is in use, or the file system has no locks
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
