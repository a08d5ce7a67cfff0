"""A file being downloaded into the cache: locked by its writer, and hashed as it is written."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...schemas.errors import StoreError
from ...schemas.files import lock

SUFFIX = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class PartialDownload:
    """The open file `{target}.part`, which only this object writes until it is closed.

    Made by `open_partial`. The cache sets `squeeze`, which is called with a number of bytes when the disk is full, and
    returns whether it freed any.
    """

    def __init__(self, target: Path, path: Path, descriptor: int) -> None:
        self.target, self.path = target, path
        self.size = 0
        self.written = 0
        self.squeeze: Callable[[int], bool] = lambda _: False
        self._descriptor: int | None = descriptor
        self._digest = hashlib.sha256()
        lock.own(descriptor)

    @property
    def descriptor(self) -> int:
        """File descriptor of the open file."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    @property
    def sha256(self) -> str:
        """SHA-256 of the data written so far."""
        return self._digest.hexdigest()

    def reserve(self, size: int) -> None:
        """Give the file its final length, so that other processes count it."""
        self.size = size
        try:
            os.ftruncate(self.descriptor, 0)  # frees the blocks that a killed process wrote
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise explain(error, self.target.parent, size) from error

    def restart(self) -> None:
        """Discard what has been written."""
        self.written = 0
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append data.

        Raises:
            StoreError: the disk is full and nothing can be evicted, or writing failed.
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
        """Write the data to the disk (fsync)."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise explain(error, self.target.parent, self.size) from error

    def publish(self) -> int | None:
        """Give the file its name. Returns its descriptor, with a shared lock; the caller closes it. Returns None if the
        file was evicted before it was locked again.
        """
        descriptor = self.descriptor
        try:
            self.path.replace(self.target)
        except OSError as error:
            raise explain(error, self.target.parent, self.size) from error
        lock.lock(descriptor, shared=True)
        if not lock.stands_at(descriptor, self.target):
            return None
        lock.disown(descriptor)
        self._descriptor = None
        return descriptor

    def close(self) -> None:
        """Remove the file, unless it was published."""
        if self._descriptor is None:
            return
        if lock.stands_at(self._descriptor, self.path):
            with suppress(OSError):
                self.path.unlink()
        lock.release(self._descriptor)
        self._descriptor = None


def open_partial(target: Path) -> PartialDownload | None:
    """Open the part of a file. Returns None while another process or thread writes it.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = target.with_name(target.name + SUFFIX)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
        mine = lock.lock(descriptor, wait=False)
        if mine is None:
            os.close(descriptor)
            with suppress(OSError):
                path.unlink()
            path = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}{SUFFIX}")
            descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise explain(error, target.parent, 0) from error
    if mine is False:
        os.close(descriptor)
        return None
    if not lock.stands_at(descriptor, path):  # removed or published between opening and locking
        lock.release(descriptor)
        return None
    return PartialDownload(target, path, descriptor)


def explain(error: OSError, folder: Path, size: int) -> StoreError:
    """Turn an operating system's error into one that says what to do."""
    if isinstance(error, StoreError):
        return error
    fix = "point cache=... or PACKTRAIN_CACHE at another folder"
    if error.errno in _FULL:
        return StoreError(
            f"the disk that holds the cache {folder} is full, and no file in it can be removed: a file of {size:,} "
            f"bytes does not fit; free some space, or {fix}"
        )
    if error.errno == errno.EFBIG:
        return StoreError(
            f"a file of {size:,} bytes in the cache {folder} is larger than this process or file system allows "
            f"(see ulimit -f); raise the limit, or {fix}"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(f"the cache {folder} cannot be written: {error.strerror}; {fix}, or make it writable")
    return StoreError(f"the cache {folder}: {error.strerror or error}; if this persists, {fix}")
