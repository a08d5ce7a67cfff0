"""A cache of immutable files named by their hash, shared by all processes of a machine and bounded in size.

    {folder}/shards/{sha256[:2]}/{sha256}        complete, checked when it was written
    {folder}/shards/{sha256[:2]}/{sha256}.part   being written, with its final length from the start
    {folder}/shards/room.lock                    held while files are evicted

All state is in the kernel's locks, so nothing is stale after a `kill -9`:

- A `.part` is locked by its writer, and others wait for the file. An unlocked `.part` is garbage, or is taken over by
the next process that needs the same content.
- A file in use has a shared lock from each user. Unlocked files are evicted, least recently used first.

A process checks the hash of a file once, on first use. The last use is stored as the access time, because the
modification time is part of how a process recognises a file that it has checked.

Without `flock`, several processes may download the same content, and a file that another process uses may be removed.
Both are harmless: a file gets its name when it is complete, and mapped memory stays valid when the name is removed.
"""

import hashlib
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...schemas.errors import IntegrityError, StoreError
from ...schemas.files import lock
from ...schemas.files.user_folder import user_folder
from .cache_bound import CacheBudget
from .partial_download import PartialDownload, explain, open_partial

CACHE_BYTES = 64 << 30
_LOG = logging.getLogger(__name__)
_SHA256 = re.compile("[0-9a-f]{64}")
_POLL = 0.05
"""Seconds between checks on another process."""
_OWN_PATIENCE = 5.0
"""Seconds to wait if this process's own files fill the cache, because other threads may release some."""

Identity = tuple[int, int, int, int]
"""Identity of a file: device, inode, modification time and size."""


class CachedFile:
    """A local file that is not evicted before `close`, the end of this object, or the end of the process."""

    def __init__(self, path: Path, close: Callable[[], None] | None = None) -> None:
        self.path = path
        self._finish = weakref.finalize(self, close) if close else None
        if self._finish:
            self._finish.atexit = False  # the kernel releases the lock

    def close(self) -> None:
        """Release the file. Mapped memory stays valid."""
        if self._finish:
            self._finish()

    def __enter__(self) -> "CachedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _State:
    """A process's state of one cache folder. A forked child starts with an empty state."""

    def __init__(self) -> None:
        self.verified: dict[str, Identity] = {}
        self.held: dict[int, tuple[str, int]] = {}
        """Content and size of each open file, by descriptor. Changed only by single operations, because a finalizer may
        run at any moment.
        """
        self._gates: dict[str, threading.Lock] = {}
        self._mutex = threading.Lock()

    def gate(self, sha256: str) -> threading.Lock:
        """Return the file's lock, with which only one thread checks or downloads it at a time."""
        with self._mutex:
            return self._gates.setdefault(sha256, threading.Lock())

    def held_bytes(self) -> int:
        """Bytes of all files in use in this process."""
        return sum(dict(self.held.copy().values()).values())


_STATES: dict[tuple[Path, int], _State] = {}
"""States by folder and process."""


class ShardCache:
    """The cache; see the module. Safe to use in threads and after a fork; pickled as its arguments.

    Args:
        folder: by default `user_folder()`.
        limit: maximum bytes of all files together.
        patience: seconds to wait for others to release files if the cache is full.
    """

    def __init__(self, folder: str | Path | None = None, limit: int = CACHE_BYTES, *, patience: float = 60.0) -> None:
        self.folder = (Path(folder) if folder is not None else user_folder()).expanduser().absolute()
        self.limit, self.patience = limit, patience
        self._room = CacheBudget(self.folder / "shards", limit)

    def hold(
        self,
        sha256: str,
        size: int,
        download: Callable[[PartialDownload], None],
        note: Callable[[str], None] = lambda _: None,
    ) -> CachedFile:
        """Return the file with this hash; download it if it is missing.

        Args:
            sha256: 64 hexadecimal digits.
            size: size in bytes.
            download: writes exactly this content into the part, or raises.
            note: called with the current activity in a few words.

        Raises:
            IntegrityError: `sha256` is not a hash.
            StoreError: the folder cannot be written, the disk is full, or files in use fill the cache.
        """
        if not _SHA256.fullmatch(sha256):
            raise IntegrityError(
                f"{sha256!r} is not a SHA-256 in hexadecimal digits; the manifest is damaged; "
                "packtrain repair rebuilds it"
            )
        state = self._state()
        began: float | None = None
        damaged: Identity | None = None
        with state.gate(sha256):
            while True:
                note("checking the cache")
                held, damaged = self._find(state, sha256, size, damaged)
                if held:
                    return held
                part = open_partial(self.path(sha256))
                if part is None:
                    note("waiting for another process that is downloading it")
                    time.sleep(_POLL)
                    continue
                try:
                    if not self._absent(sha256, damaged):
                        continue
                    if self._room.reserve(part, size):
                        note("downloading")
                        part.squeeze = self._room.squeeze
                        download(part)
                        part.sync()
                        with self._room.alone():  # so that other processes count the file exactly once
                            descriptor = part.publish()
                        if descriptor is not None:
                            state.verified[sha256] = identity(os.fstat(descriptor))
                            return self._held(state, descriptor, sha256, size)
                        continue
                finally:
                    part.close()
                note("waiting for space, because other files are in use")
                now = time.monotonic()
                began = now if began is None else began
                alone = state.held_bytes() + size > self.limit
                if size > self.limit or now - began >= (min(self.patience, _OWN_PATIENCE) if alone else self.patience):
                    raise self._no_room(state, size)
                time.sleep(_POLL)

    def path(self, sha256: str) -> Path:
        """The path of the file with this hash, whether or not it exists."""
        return self.folder / "shards" / sha256[:2] / sha256

    def used(self) -> int:
        """Bytes of all files, including those being written."""
        if not self._room.folder.exists():
            return 0
        with self._room.alone():
            return sum(file.bytes for file in self._room.files())

    def __getstate__(self) -> tuple[Path, int, float]:
        return self.folder, self.limit, self.patience

    def __setstate__(self, state: tuple[Path, int, float]) -> None:
        self.__init__(state[0], state[1], patience=state[2])  # type: ignore[misc]

    def _state(self) -> _State:
        key = (self.folder, os.getpid())
        return _STATES.get(key) or _STATES.setdefault(key, _State())

    def _find(
        self, state: _State, sha256: str, size: int, damaged: Identity | None
    ) -> tuple[CachedFile | None, Identity | None]:
        """Return the file, locked and checked; or None, with the identity of a damaged file in its place."""
        path = self.path(sha256)
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None, None
            except OSError as error:
                raise explain(error, self.folder, size) from error
            kept = False
            try:
                lock.lock(descriptor, shared=True)
                if not lock.stands_at(descriptor, path):
                    continue  # removed or replaced before it was locked
                found = identity(os.fstat(descriptor))
                if found == damaged:
                    return None, damaged
                if state.verified.get(sha256) != found:
                    if not _has_content(descriptor, sha256, size):
                        _LOG.warning("%s is damaged: its content does not match its name; it is downloaded again", path)
                        return None, found
                    state.verified[sha256] = found
                kept = True
                return self._held(state, descriptor, sha256, size), None
            finally:
                if not kept:
                    os.close(descriptor)

    def _absent(self, sha256: str, damaged: Identity | None) -> bool:
        """Whether the file is still missing, after removing a damaged one. The part is locked, so no other process
        replaces the file meanwhile.
        """
        path = self.path(sha256)
        try:
            if identity(path.stat()) != damaged:
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise explain(error, self.folder, 0) from error
        return True

    def _held(self, state: _State, descriptor: int, sha256: str, size: int) -> CachedFile:
        table = state.held
        table[descriptor] = (sha256, size)

        def close() -> None:
            table.pop(descriptor, None)
            os.close(descriptor)

        with suppress(OSError):  # another user's file, or a read-only disk
            os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))
        return CachedFile(self.path(sha256), close)

    def _no_room(self, state: _State, size: int) -> StoreError:
        return StoreError(
            f"the cache {self.folder} has no room for a file of {size:,} bytes: it may hold {self.limit:,}, of which "
            f"{self.used():,} are in use or being written, {state.held_bytes():,} of them by this process; raise "
            "cache_bytes, or use another cache folder for other jobs"
        )


def identity(stat: os.stat_result) -> Identity:
    """Values that change when a file is written or replaced, but not when it is read."""
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _has_content(descriptor: int, sha256: str, size: int) -> bool:
    if os.fstat(descriptor).st_size != size:
        return False
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False  # an unreadable file counts as damaged
