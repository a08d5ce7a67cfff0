"""A cache of immutable files named by their hash, shared by all processes of a machine and bounded in size.

    {folder}/shards/{sha256[:2]}/{sha256}        whole, and compared with its name by every process that opens it
    {folder}/shards/{sha256[:2]}/{sha256}.tmp    being written, by the process that holds its lock

The kernel releases the lock of a process that dies, and what it wrote is written again by the next one; a file gets its
name when it is whole. Mapped memory stays valid when the name is removed, so nothing protects a file in use, and the
disk may hold, besides what the cache may, what processes have mapped. Without locks (some network file systems),
several processes may download the same file.
"""

import errno
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..schemas.errors import IntegrityError, StoreError
from ..schemas.files import lock
from ..schemas.files.user_folder import user_folder

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOG = logging.getLogger(__name__)
_VERIFIED: set[tuple[Path, str, int, int, int, int]] = set()
"""What this process has compared: path, hash, device, inode, modification time and size."""


class ShardCache:
    """The cache; see the module.

    Args:
        folder: by default `user_folder()`.
        limit: maximum bytes of all files together.
    """

    def __init__(self, folder: str | Path | None, limit: int) -> None:
        self.folder = (Path(folder) if folder is not None else user_folder()).expanduser().absolute()
        self.limit = limit

    def open(self, sha256: str, size: int, download: Callable[[Path], None]) -> int:
        """The descriptor of the file with this hash, which is downloaded if it is not there.

        Args:
            download: writes exactly this content into a file, or raises.

        Raises:
            StoreError: the folder cannot be written, the disk is full, or the file is larger than the cache.
            IntegrityError: something else than a file has its name.
        """
        if size > self.limit:
            raise StoreError(
                f"the cache {self.folder} may hold {self.limit:,} bytes, and a file has {size:,}; raise cache_bytes"
            )
        target = self.folder / "shards" / sha256[:2] / sha256
        try:
            while True:
                found = self._find(target, sha256, size)
                if found is not None:
                    return found
                with self._turn(target) as part:
                    # Another process may have made it while this one waited.
                    found = None if part is None else self._find(target, sha256, size)
                    if found is not None:
                        return found
                    if part is not None:
                        self._fill(part, size, download)
                        os.utime(part)
                        _VERIFIED.add(_identity(target, sha256, part.stat()))
                        part.replace(target)
                        self._make_room(self.limit, part)  # others may have been written meanwhile
        except StoreError:
            raise
        except OSError as error:
            raise self._explained(error, size) from error

    def _find(self, path: Path, sha256: str, size: int) -> int | None:
        """The descriptor of a file of the cache; None if it is missing or damaged."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise IntegrityError(f"{path} is a link, and is not followed; remove it") from error
            raise
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise IntegrityError(f"{path} is not a regular file, and is not opened; remove it")
            if found.st_size != size or not has_content(path, descriptor, sha256):
                _LOG.warning("%s is damaged: its content does not match its name; it is downloaded again", path)
                os.close(descriptor)
                return None
            with suppress(OSError):  # another user's file, or a read-only disk
                # The last use is the access time: the modification time is part of how a compared file is recognised.
                os.utime(descriptor, ns=(time.time_ns(), found.st_mtime_ns))
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise

    @contextmanager
    def _turn(self, target: Path) -> Iterator[Path | None]:
        """The file to write, once no other process writes it; None if one has finished or given up meanwhile."""
        part = target.with_name(f"{target.name}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(part, flags, 0o644)
        lock.own(descriptor)
        if lock.lock(descriptor) is None:  # no locks: a file of this thread's own
            part.unlink(missing_ok=True)
            lock.release(descriptor)
            part = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
            descriptor = os.open(part, flags, 0o644)
            lock.own(descriptor)
        try:
            yield part if lock.stands_at(descriptor, part) else None
        finally:
            if lock.stands_at(descriptor, part):  # it has another name if all went well
                part.unlink()
            lock.release(descriptor)

    def _fill(self, part: Path, size: int, download: Callable[[Path], None]) -> None:
        """Make room for a file, and download it; once more if the disk is full and something can be removed."""
        os.truncate(part, 0)  # frees what a killed process wrote
        self._make_room(self.limit - size, part)
        os.truncate(part, size)  # so that other processes count it
        try:
            download(part)
        except OSError as error:
            used = self._used(part)
            if error.errno not in _FULL or not self._make_room(max(0, sum(used.values()) - size), part):
                raise
            download(part)

    def _make_room(self, most: int, part: Path) -> bool:
        """Remove the least recently used files until the others hold at most so many bytes; whether any was removed."""
        files = self._used(part)
        excess, removed = sum(files.values()) - most, False
        for path in files:
            if excess > 0 and lock.remove_unused(path, age=86_400.0 if path.suffix else 0.0):
                excess, removed = excess - files[path], True
        return removed

    def _used(self, part: Path) -> dict[Path, int]:
        """The bytes of all files but this one, the least recently used first."""
        found = []
        for path in (self.folder / "shards").glob("??/*"):
            with suppress(FileNotFoundError):
                info = path.lstat()
                if path != part:
                    found.append((info.st_atime_ns, path, info.st_size))
        return {path: size for _, path, size in sorted(found)}

    def _explained(self, error: OSError, size: int) -> StoreError:
        """An operating system's error that says what to do."""
        fix = "point cache=... or PACKTRAIN_CACHE at another folder"
        if error.errno in _FULL:
            return StoreError(
                f"the disk that holds the cache {self.folder} is full, and nothing in it can be removed: a file of "
                f"{size:,} bytes does not fit; free some space, or {fix}"
            )
        return StoreError(f"the cache {self.folder} cannot be used: {error.strerror or error}; {fix}")


def has_content(path: Path, descriptor: int, sha256: str) -> bool:
    """Whether an open file has this hash. A file is read once in a process."""
    identity = _identity(path, sha256, os.fstat(descriptor))
    if identity in _VERIFIED:
        return True
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return False  # an unreadable file counts as damaged
    if found == sha256:
        _VERIFIED.add(identity)
    return found == sha256


def _identity(path: Path, sha256: str, info: os.stat_result) -> tuple[Path, str, int, int, int, int]:
    return path, sha256, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
