"""Who uses a cache: runs and streams share a lock on it, and what removes things from it needs it alone.

The lock is the kernel's (flock on `.in-use`), so it is gone when its holder is, however that ended.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from .store import LocalStore, open_regular

NAME = ".in-use"
TAG = "CACHEDIR.TAG"
"""Marks a folder as a cache, also for programs that back up or search: https://bford.info/cachedir/"""
FOLDERS = (
    *("blocks", "copies", "drafts", "encoded", "engines", "history", "hub"),
    *("locks", "remote", "scans", "shards", "specs", "tokenizers", "windows"),
)
"""What packtrain makes in a cache. A folder that holds anything else is used as a cache, but never marked as one."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of packtrain."
_TEXT = (
    _SIGNATURE
    + b""" Everything in it can be made again: packtrain clean --cache removes what is not needed.
"""
)


def is_cache(folder: Path) -> bool:
    """Whether packtrain has marked a folder as a cache of its own."""
    try:
        with open_regular(folder / TAG) as file:
            return bool(file.read(len(_SIGNATURE)) == _SIGNATURE)
    except OSError:
        return False


def mark_cache(cache: LocalStore) -> None:
    """Mark the cache of a configuration, if there is one and it holds nothing else."""
    with suppress(OSError):
        top = cache.top()
        if TAG not in top and top and all(name in FOLDERS or name.startswith(".") for name in top):
            cache.put_bytes(TAG, _TEXT)


class CacheUse:
    """Keeps a cache from being cleaned, as long as it lives or until `release`; and marks it as one. Also a context.

    Where the file system has no locks, or nothing can be written, it does nothing.
    """

    def __init__(self, cache: LocalStore) -> None:
        self._file = _open(cache, make=True)
        if self._file is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_SH)  # waits for a cleaning that is under way
            cache.sweep_top()  # a run may have been killed while it marked the cache
            mark_cache(cache)

    def __enter__(self) -> "CacheUse":
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """It may be cleaned from now on."""
        file, self._file = getattr(self, "_file", None), None
        if file is not None:
            _close(file)


class CacheAlone:
    """A cache that nobody uses, kept so while the context lasts."""

    def __init__(self, cache: LocalStore) -> None:
        self.cache = cache
        self._file: int | None = None
        self.users: list[int] = []
        """Processes that use it, as far as the kernel tells, where it is not alone."""

    def take(self) -> bool:
        """Whether nobody uses it. Never waits."""
        self._file = _open(self.cache, make=self.cache.root.is_dir())
        if self._file is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.users = _holders(self._file)
            _close(self._file)
            self._file = None
            return False
        except OSError:
            pass  # a file system without locks
        return True

    def release(self) -> None:
        """Others may use it again."""
        file, self._file = self._file, None
        if file is not None:
            _close(file)


def _open(cache: LocalStore, *, make: bool) -> int | None:
    try:
        if make:
            cache.root.mkdir(parents=True, exist_ok=True)
        return os.open(cache.root / NAME, os.O_RDWR | (os.O_CREAT if make else 0), 0o666)
    except OSError:
        return None


def _close(file: int) -> None:
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)  # by name: a child forked meanwhile holds the open file, too
    with suppress(OSError):
        os.close(file)


def _holders(file: int) -> list[int]:
    """Processes with a lock on an open file, from the kernel's list; empty where it has none."""
    inode = os.fstat(file).st_ino
    found = []
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
                found.append(int(words[4]))
    return sorted(set(found))
