"""Limits the size of the cache of encoded parts by removing the least recently used ones.

A process holds a shared lock (flock) on a part's file until it has mapped it. Removing a part needs the exclusive lock,
and skips parts that are locked. Mapped memory stays valid after removal, and a removed part is encoded again when
needed.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...schemas.files import lock
from .local import LocalStore


class HeldParts:
    """Keeps parts from being removed during its lifetime, or until `release`."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def release(self) -> None:
        """Allow removing the parts."""
        while self.files:
            lock.release(self.files.pop())

    def __del__(self) -> None:
        try:  # noqa: SIM105 - where Python ends, suppress is gone as well
            self.release()
        except TypeError:  # at exit, Python may already have cleared the modules; the kernel releases the lock
            pass


class PartCacheBudget:
    """Keeps the encoded parts of a cache within `limit` bytes; None for no limit."""

    def __init__(self, cache: LocalStore, limit: int | None) -> None:
        self._cache = cache
        self._limit = limit

    def make(self) -> None:
        """Remove the least recently used parts until the rest is within the limit. Held parts stay."""
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
            record = path.with_name(f"{path.name.partition('-')[0]}.json")
            if lock.remove_unused(path, record):  # remove the record first, because it declares the part complete
                total -= size

    def hold(self, paths: Sequence[Path]) -> "HeldParts | None":
        """Keep parts from being removed; None if a part is already gone."""
        held = HeldParts()
        if self._limit is None:
            return held
        for path in paths:
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            held.files.append(file)
            lock.lock(file, shared=True)  # without locks, parts may be removed and encoded again
            if not os.fstat(file).st_nlink:  # removed between opening and locking
                return None
            with suppress(OSError):
                os.utime(path)
        return held
