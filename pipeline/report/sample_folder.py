"""Where a sample lies for as long as it is looked at, and how what a killed plan left there goes away.

A killed process removes nothing, and a sample may have gigabytes. So each lies beside a lock that the kernel takes from
whoever ends, and the next plan removes those that nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "packtrain-sample-"
_LOCK = ".in-use"
_YOUNG_SECONDS = 60.0
"""A folder without a lock may be one that is just made."""


@contextmanager
def sample_folder() -> Iterator[Path]:
    """A folder for a sample, in the system's temporary one; gone afterwards."""
    home = Path(tempfile.gettempdir())
    for left in home.glob(f"{_PREFIX}*"):
        _sweep(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        # Closed where another program is started; workers that are forked are gone with their driver.
        lock = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # who finds it finds it taken
            yield folder
        finally:
            os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove a folder if it is ours and nobody uses it."""
    try:
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            return
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        return
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # in use, or nobody can tell
    finally:
        os.close(lock)
