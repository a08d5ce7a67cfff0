"""A bound for the cache of encoded parts: what was used longest ago makes room, what is needed stays.

A process that needs a part until it has mapped it holds a shared lock (flock) on the part's file; one that removes a
part takes the lock for itself first, and leaves the part alone where it cannot. What is mapped lives on without its
name. A part that is gone is encoded again by whoever needs it.
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .encode import record_name
from .store import LocalStore


class Held:
    """Parts that are not removed as long as this lives, or until `release`."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def release(self) -> None:
        """They may be removed from now on."""
        while self.files:
            _unlock(self.files.pop())

    def __del__(self) -> None:
        self.release()


class Room:
    """The encoded parts of a cache, of at most `limit` bytes; None for no bound, which costs nothing."""

    def __init__(self, cache: LocalStore, limit: int | None) -> None:
        self._cache = cache
        self._limit = limit

    def make(self) -> None:
        """Remove parts, those used longest ago first, until the rest keeps the bound. Parts that are held stay."""
        if self._limit is None:
            return
        parts = []
        for path in self._cache.path("encoded").glob("*/*.arrow"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                parts.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in parts)
        for _, size, path in sorted(parts):
            if total <= self._limit:
                return
            if self._remove(path):
                total -= size

    def hold(self, paths: Sequence[Path]) -> "Held | None":
        """Keep parts from being removed; None where one of them is gone already."""
        held = Held()
        if self._limit is None:
            return held
        for path in paths:
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            held.files.append(file)
            with suppress(OSError):  # a file system without locks: a part may be encoded once more
                fcntl.flock(file, fcntl.LOCK_SH)
            if not os.fstat(file).st_nlink:  # removed between opening and locking
                return None
            with suppress(OSError):
                os.utime(path)
        return held

    def _remove(self, path: Path) -> bool:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return True  # somebody else was faster
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError:
            pass  # without locks, see `hold`
        key = path.name.partition("-")[0]
        self._cache.path(record_name(key)).unlink(missing_ok=True)  # first: a record vouches for its part
        path.unlink(missing_ok=True)
        _unlock(file)
        return True


def _unlock(file: int) -> None:
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)  # by name: a child forked meanwhile holds the open file, too
    os.close(file)
