"""Lists the old files of a cache, and removes them. A run makes again what it needs.

Files are removed only below a folder that packtrain has marked as its cache, and in the folders that it makes there.
Links are neither followed nor removed. Parts are as old as their last use by a run, other files as their writing.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import BusyError, ConfigError
from ..store.cache_lock import FOLDERS, TAG, CacheAlone, is_cache
from ..store.local import LocalStore, explain

DAYS = 7.0
"""Newer files are kept by default."""


@dataclass(frozen=True, slots=True)
class Item:
    """One file to remove."""

    path: Path
    bytes: int


class Cleaning:
    """Finds and removes old files of a cache. While its context is open, no run can start on the cache.

    Args:
        days: newer files are kept; 0 keeps none.

    Raises:
        ConfigError: the folder is not a cache of packtrain.
        BusyError: a run or a stream is using the cache.
    """

    def __init__(self, cache: LocalStore, *, days: float = DAYS) -> None:
        if cache.root.is_dir() and not is_cache(cache.root):
            raise ConfigError(
                f"{cache.root} has no {TAG} by packtrain, so nothing is removed from it. Every run marks its cache "
                "with this file, unless the folder has other content"
            )
        self._cache = cache
        self._before = time.time() - days * 86_400
        self._alone = CacheAlone(cache)

    def __enter__(self) -> "Cleaning":
        if not self._alone.take():
            who = ", ".join(f"process {pid}" for pid in self._alone.users) or "a run or a stream"
            raise BusyError(f"the cache {self._cache.url} is in use by {who}; let it finish, then clean again")
        return self

    def __exit__(self, *exc: object) -> None:
        self._alone.release()

    def find(self) -> list[Item]:
        """The files to remove, largest first."""
        return sorted(self._old(), key=lambda item: (-item.bytes, str(item.path)))

    def remove(self, items: Iterable[Item]) -> None:
        """Remove files, records before their parts, and what killed processes left half-written.

        Raises:
            StoreError: a file cannot be removed.
        """
        for item in sorted(items, key=lambda item: item.path.suffix != ".json"):
            try:
                item.path.unlink(missing_ok=True)
            except OSError as error:
                raise explain(error, item.path.parent) from error
        self._cache.sweep()

    def _old(self) -> Iterator[Item]:
        for folder in FOLDERS:
            above = self._cache.root / folder
            for where, _, names in os.walk(above) if not above.is_symlink() else ():
                for name in names:
                    path = Path(where, name)
                    with suppress(OSError):
                        found = path.lstat()
                        if stat.S_ISREG(found.st_mode) and found.st_mtime <= self._before:
                            yield Item(path, found.st_size)
