"""Copies of remote files, named by their hash, shared by all processes of a machine and bounded in size.

    {folder}/copies/{hash[:2]}/{hash}        whole, and compared with its name by every process that opens it
    {folder}/copies/{hash[:2]}/{hash}.tmp    being written, by the process that holds the lock of {hash[:2]}

The kernel releases the lock of a process that dies, and what it wrote is written again by the next one; a file gets its
name when it is whole. Mapped memory stays valid when the name is removed, so nothing protects a file in use, and the
disk may hold, besides what the cache may, what processes have mapped. Without locks (some network file systems),
several processes may download the same file.
"""

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from ..errors import IntegrityError, StoreError
from ..names import check_hash
from . import lock

FOLDER = "copies"
"""Name of the folder in the cache. It may be deleted while nothing runs, because everything can be fetched again."""
_DAY = 86_400.0
"""Seconds without a change after which a draft is taken to be abandoned."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ = 4 << 20
_LOG = logging.getLogger(__name__)
_VERIFIED: set[tuple[Path, str, int, int, int, int]] = set()
"""What this process has compared: path, hash, device, inode, modification time and size."""


def user_folder() -> Path:
    """The cache folder of the user: `$PACKTRAIN_CACHE`, else `$XDG_CACHE_HOME/packtrain`, else `~/.cache/packtrain`."""
    if own := os.environ.get("PACKTRAIN_CACHE"):
        return Path(own).expanduser().absolute()
    home = Path(os.environ.get("HOME") or Path.home())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "packtrain").absolute()


class Copies:
    """The copies in a cache folder; see the module.

    Args:
        folder: the cache; by default `user_folder()`.
        limit: maximum bytes of all copies together, if there is one.
    """

    def __init__(self, folder: str | Path | None, limit: int | None = None) -> None:
        self.folder = (Path(folder) if folder is not None else user_folder()).expanduser().absolute()
        self.limit = limit

    def path(self, key: str) -> Path:
        """The path of a copy, whether or not it exists. Raises ValueError if the key is no hash."""
        check_hash(key)
        return self.folder / FOLDER / key[:2] / key

    def open(self, key: str, size: int, download: Callable[[Path], None], *, named: bool = True) -> int:
        """The descriptor of a copy, which is downloaded if it is not there.

        Args:
            key: BLAKE3 of the content.
            download: writes exactly this content into a file, or raises.
            named: False if the hash is not known, and `key` is a hash of something that changes with the content.

        Raises:
            StoreError: the folder cannot be written, the disk is full, or the file is larger than the cache.
            IntegrityError: something else than a file has its name.
            Whatever `download` raises; an OSError of the disk becomes a StoreError.
        """
        if self.limit is not None and size > self.limit:
            raise StoreError(
                f"the cache {self.folder} may hold {self.limit:,} bytes, and a file has {size:,}; raise cache_bytes"
            )
        target = self.path(key)
        try:
            found = self._find(target, key, size, named)
            while found is None:
                with self._turn(target) as part:
                    # Another process may have made it while this one waited.
                    found = self._find(target, key, size, named)
                    if found is None:
                        self._fill(part, size, download)
                        os.utime(part)
                        _VERIFIED.add(_identity(target, key, part.stat()))
                        part.replace(target)
                        self._make_room(self.limit, part)  # others may have been written meanwhile
                        found = self._find(target, key, size, named)
            return found
        except (StoreError, FileNotFoundError):
            raise
        except OSError as error:
            raise self._explained(error, size) from error

    def copy(self, key: str, size: int, download: Callable[[Path], None], *, named: bool = False) -> Path:
        """As `open`, for readers that need a path."""
        os.close(self.open(key, size, download, named=named))
        return self.path(key)

    def keep(self, file: Path, key: str) -> None:
        """Keep a file that this machine wrote as a copy, so that it need not be fetched. Failure is ignored."""
        target = self.path(key)
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
            _VERIFIED.add(_identity(target, key, target.stat()))

    def _find(self, path: Path, key: str, size: int, named: bool) -> int | None:
        """The descriptor of a copy; None if it is missing or damaged."""
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
            if found.st_size != size or (named and not _has_content(path, descriptor, key)):
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
    def _turn(self, target: Path) -> Iterator[Path]:
        """An empty file to write, once no other process writes it."""
        with lock.alone(self.folder / "locks" / f"{FOLDER}-{target.name[:2]}") as locked:
            own = "" if locked else f".{os.getpid()}-{threading.get_ident()}"
            part = target.with_name(f"{target.name}{own}.tmp")
            target.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)  # a killed process may have left it
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            try:
                yield part
            finally:
                part.unlink(missing_ok=True)  # it has another name if all went well

    def _fill(self, part: Path, size: int, download: Callable[[Path], None]) -> None:
        """Make room for a file, and download it; once more if the disk is full and something can be removed."""
        self._make_room(None if self.limit is None else self.limit - size, part)
        os.truncate(part, size)  # so that other processes count it
        try:
            download(part)
        except OSError as error:
            used = self._used(part)
            if error.errno not in _FULL or not self._make_room(max(0, sum(used.values()) - size), part):
                raise
            download(part)

    def _make_room(self, most: int | None, part: Path) -> bool:
        """Remove the least recently used files until the others hold at most so many bytes; whether any was removed."""
        if most is None:
            return False
        files = self._used(part)
        excess, removed = sum(files.values()) - most, False
        for path in files:
            with suppress(OSError):  # removed meanwhile, or another user's
                if excess > 0 and not (path.suffix and time.time() - path.stat().st_mtime < _DAY):
                    path.unlink()
                    excess, removed = excess - files[path], True
        return removed

    def _used(self, part: Path) -> dict[Path, int]:
        """The bytes of all files but this one, the least recently used first."""
        found = []
        for path in (self.folder / FOLDER).glob("??/*"):
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


def _has_content(path: Path, descriptor: int, hash: str) -> bool:
    """Whether an open file has this hash. A file is read once in a process."""
    identity = _identity(path, hash, os.fstat(descriptor))
    if identity in _VERIFIED:
        return True
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            digest = blake3()
            while data := file.read(_READ):
                digest.update(data)
    except OSError:
        return False  # an unreadable file counts as damaged
    found = digest.hexdigest()
    if found == hash:
        _VERIFIED.add(identity)
    return found == hash


def _identity(path: Path, hash: str, info: os.stat_result) -> tuple[Path, str, int, int, int, int]:
    return path, hash, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
