"""How much a cache folder holds, and what may leave it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import locks
from .part import SUFFIX, Part, explain

_ORPHAN_SECONDS = 86_400
"""Age at which a part is garbage where there are no locks to tell."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file in the cache, whole or being written."""

    path: Path
    bytes: int
    used: int
    """When it was last used: nanoseconds since 1970."""


class Room:
    """The bound of a cache folder. What anyone uses or writes is locked, and stays.

    Args:
        folder: holds the files in folders of their own.
        limit: bytes that all of them together may have.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def files(self) -> list[CachedFile]:
        """All files, those being written included; least recently used first."""
        found = []
        with suppress(FileNotFoundError):
            for prefix in self.folder.iterdir():
                with suppress(FileNotFoundError, NotADirectoryError), os.scandir(prefix) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            stat = entry.stat(follow_symlinks=False)
                            found.append(CachedFile(Path(entry.path), stat.st_size, stat.st_atime_ns))
        return sorted(found, key=lambda file: file.used)

    def reserve(self, part: Part, size: int) -> bool:
        """Make room for a part, and let it count from now on. False where what is locked leaves none."""
        with self.alone():
            others = [file for file in self._swept() if file.path != part.path]
            excess = sum(file.bytes for file in others) + size - self.limit
            if excess > 0 and self._evict(others, excess) < excess:
                return False
            part.reserve(size)
            return True

    def squeeze(self, need: int) -> bool:
        """Give back up to `need` bytes or a little more. False where nothing can go."""
        with self.alone():
            return self._evict(self._swept(), need) > 0

    def _swept(self) -> list[CachedFile]:
        """`files`, after the parts that dead processes left were removed."""
        kept = []
        for file in self.files():
            if file.path.name.endswith(SUFFIX) and _remove(file.path):
                continue
            kept.append(file)
        return kept

    def _evict(self, files: list[CachedFile], need: int) -> int:
        """Remove the first of the files that nobody has locked until `need` bytes are gone. Bytes that are gone."""
        gone = 0
        for file in files:
            if gone >= need:
                break
            if not file.path.name.endswith(SUFFIX) and _remove(file.path):
                gone += file.bytes
        return gone

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time counts and makes room; otherwise two could fill the same gap."""
        path = self.folder / "room.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise explain(error, self.folder, 0) from error
        locks.own(descriptor)
        try:
            with suppress(locks.NoLocksError):
                locks.wait_exclusive(descriptor)
            yield
        finally:
            locks.release(descriptor)


def _remove(path: Path) -> bool:
    """Remove a file that nobody has locked. False where somebody has, or where it is another person's."""
    try:
        descriptor = _open(path)
    except OSError:
        return False
    try:
        try:
            if not locks.try_exclusive(descriptor):
                return False
        except locks.NoLocksError:
            if path.name.endswith(SUFFIX) and time.time() - os.fstat(descriptor).st_mtime < _ORPHAN_SECONDS:
                return False
        if not locks.stands_at(descriptor, path):
            return False
        path.unlink()
        return True
    except OSError:
        return False
    finally:
        locks.release(descriptor)


def _open(path: Path) -> int:
    """For an exclusive lock; network file systems want the file writable for one."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
