"""Limits the size of a cache folder by evicting files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...schemas.files import lock
from .partial_download import SUFFIX, PartialDownload, explain

_ORPHAN_SECONDS = 86_400
"""Age at which a part counts as garbage if the file system has no locks."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file in the cache, complete or being written."""

    path: Path
    bytes: int
    used: int
    """Time of the last use, in nanoseconds since 1970."""


class CacheBudget:
    """The size limit of a cache folder. Files in use or being written are locked, and are never evicted.

    Args:
        folder: the folder; the files are in subfolders.
        limit: maximum bytes of all files together.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def files(self) -> list[CacheEntry]:
        """Return all files, including those being written; least recently used first."""
        found = []
        with suppress(FileNotFoundError):
            for prefix in self.folder.iterdir():
                with suppress(FileNotFoundError, NotADirectoryError), os.scandir(prefix) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            stat = entry.stat(follow_symlinks=False)
                            found.append(CacheEntry(Path(entry.path), stat.st_size, stat.st_atime_ns))
        return sorted(found, key=lambda file: file.used)

    def reserve(self, part: PartialDownload, size: int) -> bool:
        """Evict files until a part fits, and reserve its size. False if locked files leave too little."""
        with self.alone():
            others = [file for file in self._swept() if file.path != part.path]
            excess = sum(file.bytes for file in others) + size - self.limit
            if excess > 0 and self._evict(others, excess) < excess:
                return False
            part.reserve(size)
            return True

    def squeeze(self, need: int) -> bool:
        """Evict files of about `need` bytes. False if none can be evicted."""
        with self.alone():
            return self._evict(self._swept(), need) > 0

    def _swept(self) -> list[CacheEntry]:
        """Return `files`, after removing parts of dead processes."""
        kept = []
        for file in self.files():
            if file.path.name.endswith(SUFFIX) and lock.remove_unused(file.path, age=_ORPHAN_SECONDS):
                continue
            kept.append(file)
        return kept

    def _evict(self, files: list[CacheEntry], need: int) -> int:
        """Remove unlocked files, in order, until `need` bytes are freed. Returns the bytes freed."""
        gone = 0
        for file in files:
            if gone >= need:
                break
            if not file.path.name.endswith(SUFFIX) and lock.remove_unused(file.path):
                gone += file.bytes
        return gone

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock counting and evicting, so that two processes do not fill the same space."""
        with ExitStack() as stack:
            try:
                stack.enter_context(lock.alone(self.folder / "room.lock"))
            except OSError as error:
                raise explain(error, self.folder, 0) from error
            yield
