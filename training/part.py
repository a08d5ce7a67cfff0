"""A file on its way into the cache: locked by the one who writes it, hashed as it is written."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..schemas.errors import StoreError
from . import locks

SUFFIX = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Part:
    """`{target}.part`, which nobody else writes while this object is not closed.

    Get one from `open_part`. `squeeze` is set by the cache: called with a number of bytes when the disk is full, it
    says whether it could make any room.
    """

    def __init__(self, target: Path, path: Path, descriptor: int) -> None:
        self.target, self.path = target, path
        self.size = 0
        self.written = 0
        self.squeeze: Callable[[int], bool] = lambda _: False
        self._descriptor: int | None = descriptor
        self._digest = hashlib.sha256()
        locks.own(descriptor)

    @property
    def descriptor(self) -> int:
        """Of the open file."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    @property
    def sha256(self) -> str:
        """Of what has been written."""
        return self._digest.hexdigest()

    def reserve(self, size: int) -> None:
        """Give the file the length that it will have, so that others count it."""
        self.size = size
        try:
            os.ftruncate(self.descriptor, 0)  # what a killed process wrote gives its blocks back
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise explain(error, self.target.parent, size) from error

    def restart(self) -> None:
        """Forget what has been written."""
        self.written = 0
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append.

        Raises:
            StoreError: the disk is full, and nothing in the cache can make room; or it refuses.
        """
        self._digest.update(data)
        view = memoryview(data)
        while view:
            try:
                done = os.pwrite(self.descriptor, view, self.written)
            except OSError as error:
                if error.errno in _FULL and self.squeeze(self.size - self.written):
                    continue
                raise explain(error, self.target.parent, self.size) from error
            self.written += done
            view = view[done:]

    def sync(self) -> None:
        """Make what was written durable."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise explain(error, self.target.parent, self.size) from error

    def publish(self) -> int | None:
        """Give the file its name. Its descriptor, with a shared lock; closing it is the caller's.

        None if the file was removed to make room before it was locked anew.
        """
        descriptor = self.descriptor
        try:
            self.path.replace(self.target)
        except OSError as error:
            raise explain(error, self.target.parent, self.size) from error
        with suppress(locks.NoLocksError):
            locks.share(descriptor)
        if not locks.stands_at(descriptor, self.target):
            return None
        locks.disown(descriptor)
        self._descriptor = None
        return descriptor

    def close(self) -> None:
        """Remove the file, unless it was published."""
        if self._descriptor is None:
            return
        if locks.stands_at(self._descriptor, self.path):
            with suppress(OSError):
                self.path.unlink()
        locks.release(self._descriptor)
        self._descriptor = None


def open_part(target: Path) -> Part | None:
    """The part of a file. None while another process or thread writes it.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = target.with_name(target.name + SUFFIX)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
        try:
            mine = locks.try_exclusive(descriptor)
        except locks.NoLocksError:
            os.close(descriptor)
            with suppress(OSError):
                path.unlink()
            path = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}{SUFFIX}")
            descriptor = os.open(path, flags, 0o644)
            mine = True
    except OSError as error:
        raise explain(error, target.parent, 0) from error
    if not mine:
        os.close(descriptor)
        return None
    if not locks.stands_at(descriptor, path):  # removed or published between opening and locking
        locks.release(descriptor)
        return None
    return Part(target, path, descriptor)


def explain(error: OSError, folder: Path, size: int) -> StoreError:
    """An operating system's error as a sentence that says what to do."""
    if isinstance(error, StoreError):
        return error
    mend = "point cache=... or PACKTRAIN_CACHE at another folder"
    if error.errno in _FULL:
        return StoreError(
            f"the disk that holds the cache {folder} is full, and no file in it can be spared: a file of {size:,} "
            f"bytes has no room; free some, or {mend}"
        )
    if error.errno == errno.EFBIG:
        return StoreError(
            f"a file of {size:,} bytes in the cache {folder} is larger than this process or file system allows "
            f"(see ulimit -f); raise the limit, or {mend}"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(f"the cache {folder} cannot be written: {error.strerror}; {mend}, or change its rights")
    return StoreError(f"the cache {folder}: {error.strerror or error}; if it stays so, {mend}")
