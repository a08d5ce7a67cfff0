"""A folder of immutable files named by their content, shared by all processes of a machine and bounded in size.

    {folder}/shards/{sha256[:2]}/{sha256}        whole, checked when it was written
    {folder}/shards/{sha256[:2]}/{sha256}.part   being written; as long as the whole file from the start
    {folder}/shards/room.lock                    held while room is made

Nothing but the kernel's locks says who does what, so nothing is stale after a `kill -9`:

- A `.part` is locked by the one who writes it; the others wait for the file. One that nobody has locked is garbage,
  or is taken over by the next process that wants the same content.
- A file that is in use is locked, shared, by everyone who uses it. Room is made by removing what nobody has locked,
  least recently used first.

A process checks the hash of a file once, when it first meets it. When a file was last used is kept as its access time:
its time of modification is a part of what tells a process that it has checked this very file.

Where a file system has no `flock`, several processes may download the same content, and a file that another process
uses may be removed. Both are harmless: a file gets its name when it is whole, and memory that is mapped outlives the
name.
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

from ..schemas.errors import IntegrityError, StoreError
from . import locks
from .part import Part, explain, open_part
from .room import Room

CACHE_BYTES = 64 << 30
_LOG = logging.getLogger(__name__)
_SHA256 = re.compile("[0-9a-f]{64}")
_POLL = 0.05
"""Seconds between two looks at what another process does."""
_OWN_PATIENCE = 5.0
"""Seconds to wait where this process alone leaves no room: other threads may let go of files, but it may be that none
does."""

Identity = tuple[int, int, int, int]
"""Device, inode, time of modification and size."""


class Held:
    """A local file that stays where it is until `close`, the end of this object, or the end of the process."""

    def __init__(self, path: Path, close: Callable[[], None] | None = None) -> None:
        self.path = path
        self._finish = weakref.finalize(self, close) if close else None
        if self._finish:
            self._finish.atexit = False  # the kernel does it

    def close(self) -> None:
        """Let it go. Memory that is mapped from it stays valid."""
        if self._finish:
            self._finish()

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _State:
    """What a process knows of one cache folder. A forked child begins anew."""

    def __init__(self) -> None:
        self.verified: dict[str, Identity] = {}
        self.held: dict[int, tuple[str, int]] = {}
        """Descriptor → content and size. Changed by single operations only: a finalizer may run at any moment."""
        self._gates: dict[str, threading.Lock] = {}
        self._mutex = threading.Lock()

    def gate(self, sha256: str) -> threading.Lock:
        """Lets one thread at a time check or download a content."""
        with self._mutex:
            return self._gates.setdefault(sha256, threading.Lock())

    def held_bytes(self) -> int:
        """Of all contents in use in this process."""
        return sum(dict(self.held.copy().values()).values())


_STATES: dict[tuple[Path, int], _State] = {}
"""By folder and process."""


class ShardCache:
    """See the module. Safe in threads and after a fork; pickles as its arguments.

    Args:
        folder: by default `$PACKTRAIN_CACHE`, else `$XDG_CACHE_HOME/packtrain`, else `~/.cache/packtrain`.
        limit: bytes that all files together may have.
        patience: seconds to wait for others to let go of files when there is no room.
    """

    def __init__(self, folder: str | Path | None = None, limit: int = CACHE_BYTES, *, patience: float = 60.0) -> None:
        self.folder = (Path(folder) if folder is not None else default_folder()).expanduser().absolute()
        self.limit, self.patience = limit, patience
        self._room = Room(self.folder / "shards", limit)

    def hold(
        self, sha256: str, size: int, download: Callable[[Part], None], note: Callable[[str], None] = lambda _: None
    ) -> Held:
        """The file with this content, downloaded if it is not there.

        Args:
            sha256: 64 hexadecimal digits.
            size: in bytes.
            download: fills a `Part` with exactly this content, or raises.
            note: is told what is being done, in a few words.

        Raises:
            IntegrityError: `sha256` is not a hash.
            StoreError: the folder cannot be written, the disk is full, or what is in use leaves no room.
        """
        if not _SHA256.fullmatch(sha256):
            raise IntegrityError(
                f"{sha256!r} is not a SHA-256 in hexadecimal digits; the manifest is damaged; "
                "packtrain repair makes it again"
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
                part = open_part(self.path(sha256))
                if part is None:
                    note("waiting for another process that downloads it")
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
                        with self._room.alone():  # nobody counts it twice, or not at all
                            descriptor = part.publish()
                        if descriptor is not None:
                            state.verified[sha256] = identity(os.fstat(descriptor))
                            return self._held(state, descriptor, sha256, size)
                        continue
                finally:
                    part.close()
                note("waiting until files that are in use leave room")
                now = time.monotonic()
                began = now if began is None else began
                alone = state.held_bytes() + size > self.limit
                if size > self.limit or now - began > (min(self.patience, _OWN_PATIENCE) if alone else self.patience):
                    raise self._no_room(state, size)
                time.sleep(_POLL)

    def path(self, sha256: str) -> Path:
        """Where the file with this content stands, if it is there."""
        return self.folder / "shards" / sha256[:2] / sha256

    def used(self) -> int:
        """Bytes of all files, those being written included."""
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
    ) -> tuple[Held | None, Identity | None]:
        """The file, locked and checked; or None, and the identity of a damaged file that stands in its place."""
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
                with suppress(locks.NoLocksError):
                    locks.share(descriptor)
                if not locks.stands_at(descriptor, path):
                    continue  # removed or replaced before it was locked
                found = identity(os.fstat(descriptor))
                if found == damaged:
                    return None, damaged
                if state.verified.get(sha256) != found:
                    if not _has_content(descriptor, sha256, size):
                        _LOG.warning("%s is damaged: its content is not what its name says; it is fetched again", path)
                        return None, found
                    state.verified[sha256] = found
                kept = True
                return self._held(state, descriptor, sha256, size), None
            finally:
                if not kept:
                    os.close(descriptor)

    def _absent(self, sha256: str, damaged: Identity | None) -> bool:
        """Whether there is still no file. The damaged one is removed: its part is locked, so nobody replaces it now."""
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

    def _held(self, state: _State, descriptor: int, sha256: str, size: int) -> Held:
        table = state.held
        table[descriptor] = (sha256, size)

        def close() -> None:
            table.pop(descriptor, None)
            os.close(descriptor)

        with suppress(OSError):  # another person's file, or a disk that is read-only
            os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))
        return Held(self.path(sha256), close)

    def _no_room(self, state: _State, size: int) -> StoreError:
        return StoreError(
            f"the cache {self.folder} has no room for a file of {size:,} bytes: it may hold {self.limit:,}, of which "
            f"{self.used():,} are in use or being written, {state.held_bytes():,} of them by this process; raise "
            "cache_bytes, or use another cache folder for other jobs"
        )


def default_folder() -> Path:
    """Where files are cached unless told otherwise."""
    if own := os.environ.get("PACKTRAIN_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "packtrain"


def identity(stat: os.stat_result) -> Identity:
    """What changes when a file is written or replaced, and not when it is read."""
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _has_content(descriptor: int, sha256: str, size: int) -> bool:
    if os.fstat(descriptor).st_size != size:
        return False
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False  # what cannot be read is damaged
