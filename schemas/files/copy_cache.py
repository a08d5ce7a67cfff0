"""Copies of remote files, named by their hash, shared by all processes of a machine and bounded in size.

    {folder}/copies/{hash[:2]}/{hash}        complete, and compared with its name by every process that opens it
    {folder}/copies/{hash[:2]}/{hash}.tmp    a draft, which the process that holds the lock writes
    {folder}/copies/{hash[:2]}.lock          the lock of a folder

The kernel releases the lock of a process that dies, and the next one writes the draft again; a file gets its name when
it is complete. Mapped memory stays valid when the name is removed, so nothing protects a file in use, and the disk may
hold, besides what the cache may, what processes have mapped. Without locks (some network file systems),
several processes may download the same file.
"""

import errno
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import IntegrityError, StoreError
from ..fingerprint import hash_stream
from . import lock
from .safe_names import check_hash

FOLDER = "copies"
"""Name of the folder in the cache. It may be deleted while nothing runs, because everything can be fetched again."""
_ABANDONED_SECONDS = 86_400.0
"""Without a change for so long, a draft is taken to be abandoned."""
_LOG = logging.getLogger(__name__)
_VERIFIED: set[tuple[str, int, int, int, int]] = set()
"""Files that this process has compared with their hash: hash, device, inode, modification time and size of each. So a
loader that opens a shard in every epoch hashes it only once."""


def user_folder() -> Path:
    """The cache folder of the user: `$PACKTRAIN_CACHE`, else `$XDG_CACHE_HOME/packtrain`, else `~/.cache/packtrain`."""
    configured = os.environ.get("PACKTRAIN_CACHE")
    if configured:
        return Path(configured).expanduser().absolute()
    home = Path(os.environ.get("HOME") or Path.home())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "packtrain").absolute()


class Copies:
    """The copies in a cache folder; see the module.

    Args:
        folder: the cache; by default `user_folder()`.
        limit: maximum bytes of all copies together; None for as many as the disk holds.
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
            key: the name of the copy.
            size: its bytes.
            download: writes exactly this content into a file, or raises.
            named: whether `key` is the hash of the content, with which the copy is compared. If False, `key` is a hash
                of something that changes with the content.

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
            descriptor = _open_existing(target, key, size, named=named)
            if descriptor is not None:
                return descriptor
            with lock.exclusive(target.parent.with_suffix(".lock")) as locked:
                # Again: another process may have made it while this one waited.
                descriptor = _open_existing(target, key, size, named=named)
                if descriptor is not None:
                    return descriptor
                # Without locks, several may download it at once, each into a draft of its own.
                writer = "" if locked else f".{os.getpid()}-{threading.get_ident()}"
                return self._download(target, size, download, writer)
        except (StoreError, FileNotFoundError):  # both are an OSError; the second says that the remote file is missing
            raise
        except OSError as error:
            raise StoreError(
                f"the cache {self.folder} cannot be used: {error.strerror or error}; free space on its disk, or point "
                "cache=... or PACKTRAIN_CACHE at another folder"
            ) from error

    def copy(self, key: str, size: int, download: Callable[[Path], None], *, named: bool = False) -> Path:
        """The path of a copy, which is downloaded if it is not there; for readers that cannot use a descriptor.
        Takes the arguments of `open`, but by default compares only the size.
        """
        os.close(self.open(key, size, download, named=named))
        return self.path(key)

    def _download(self, target: Path, size: int, download: Callable[[Path], None], writer: str) -> int:
        """Download a file into a draft, give that its name, and return its descriptor.

        Args:
            writer: a part of the draft's name; empty if no other process can be writing it.
        """
        draft = target.with_name(f"{target.name}{writer}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # a killed process may have left it
        self._make_room(target, size)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            # At its full size from the beginning, so that other processes that make room count all of it.
            os.truncate(descriptor, size)
            download(draft)
            os.utime(descriptor)
            # Where its hash is known, `download` has compared it.
            _VERIFIED.add(_identity(descriptor, target.name))
            draft.replace(target)
            # Again: drafts that others write at the same time are not removed, so together they may be too large.
            self._make_room(target)
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        return descriptor

    def _make_room(self, new_file: Path, size: int = 0) -> None:
        """Remove the least recently used files besides `new_file`, as far as the limit and the disk need it.

        Args:
            size: bytes of `new_file` that will be written; 0 when it is complete.

        Raises:
            StoreError: the disk is too small even without them; then none is removed.
        """
        disk = shutil.disk_usage(new_file.parent)
        excess = 0  # bytes to remove
        if disk.total:  # some network file systems do not say how large they are
            excess = size - disk.free
        if self.limit is None and excess <= 0:
            return  # as nearly always: with many copies, looking at each would take long
        kept_bytes, removable = self._removable_files(new_file)
        if excess > sum(file_bytes for _, _, file_bytes in removable):
            raise StoreError(
                f"the disk that holds {self.folder} is too small for a file of {size:,} bytes; free some space, or "
                "point cache=... or PACKTRAIN_CACHE at a folder on another"
            )
        if self.limit is not None:
            excess = max(excess, kept_bytes + size - self.limit)
        for _, path, file_bytes in removable:
            if excess <= 0:
                break
            with suppress(OSError):  # removed meanwhile, or another user's
                path.unlink()
                excess -= file_bytes

    def _removable_files(self, new_file: Path) -> tuple[int, list[tuple[int, Path, int]]]:
        """The bytes of all files, drafts included, and (last use in ns, path, bytes) of each that may be removed, the
        least recently used first.
        """
        total_bytes = 0
        removable: list[tuple[int, Path, int]] = []
        for path in (self.folder / FOLDER).glob("??/*"):  # `ab/…`: the first two digits of a hash, then a file
            with suppress(FileNotFoundError):
                status = path.lstat()
                total_bytes += status.st_size
                # A draft has a suffix. Its writer changes it while it lives.
                is_draft_in_use = bool(path.suffix) and time.time() - status.st_mtime < _ABANDONED_SECONDS
                if path != new_file and not is_draft_in_use:
                    removable.append((status.st_atime_ns, path, status.st_size))
        return total_bytes, sorted(removable)


def _open_existing(path: Path, key: str, size: int, *, named: bool) -> int | None:
    """The descriptor of a copy; None if it is missing or damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # as O_NOFOLLOW gives it for a link
            raise IntegrityError(f"{path} is a link, and is not followed; remove it") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(f"{path} is not a regular file, and is not opened; remove it")
        # The size first: a file that was cut short need not be read to be refused.
        if status.st_size != size or (named and not _has_content(descriptor, key)):
            _LOG.warning("%s is damaged: its content does not match its name; it is downloaded again", path)
            os.close(descriptor)
            return None
        with suppress(OSError):  # another user's file, or a read-only disk
            # The last use is the access time: the modification time is part of how a compared file is recognised.
            os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _has_content(descriptor: int, hash: str) -> bool:
    """Whether an open file has this hash. A file is read once in a process."""
    identity = _identity(descriptor, hash)
    if identity not in _VERIFIED:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            if hash_stream(file) != hash:
                return False
        _VERIFIED.add(identity)
    return True


def _identity(descriptor: int, hash: str) -> tuple[str, int, int, int, int]:
    """The entry of `_VERIFIED` for an open file: it changes if the file is written or replaced."""
    status = os.fstat(descriptor)
    return hash, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
