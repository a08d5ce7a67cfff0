"""The lock on a cache: shared by runs and streams, exclusive for cleaning.

It is a kernel lock (flock on `.in-use`), so it ends with the process that holds it.
"""

import os
from contextlib import suppress
from pathlib import Path

from ...schemas.files import lock
from .local import LocalStore, open_regular

NAME = ".in-use"
TAG = "CACHEDIR.TAG"
"""Content of the file that marks a folder as a cache; backup and search programs also know it:
https://bford.info/cachedir/
"""
FOLDERS = (
    *("blocks", "copies", "data", "drafts", "encoded", "engines", "evaluations", "history", "hub"),
    *("locks", "overlaps", "remote", "scans", "specs", "tokenizers", "windows"),
)
"""The folders that packtrain makes in a cache. A cache folder with anything else is not marked as a cache."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of packtrain."
_TEXT = (
    _SIGNATURE
    + b""" Everything in it can be made again: packtrain clean --cache removes what is not needed.
"""
)


def is_cache(folder: Path) -> bool:
    """Whether packtrain has marked a folder as its cache."""
    try:
        with open_regular(folder / TAG) as file:
            return bool(file.read(len(_SIGNATURE)) == _SIGNATURE)
    except OSError:
        return False


def mark_cache(cache: LocalStore) -> None:
    """Mark the cache folder, if it exists and contains nothing else."""
    with suppress(OSError):
        top = cache.top()
        if TAG not in top and top and all(name in FOLDERS or name.startswith(".") for name in top):
            cache.put_bytes(TAG, _TEXT)


class CacheUse:
    """Marks a cache, and keeps it from being cleaned during its lifetime or until `release`. A context manager.

    Does nothing if the file system has no locks or is read-only.
    """

    def __init__(self, cache: LocalStore) -> None:
        self._file = _open(cache, make=True)
        if self._file is not None:
            lock.lock(self._file, shared=True)  # waits until a running `clean` ends
            cache.sweep_top()  # a run may have been killed while marking the cache
            mark_cache(cache)

    def __enter__(self) -> "CacheUse":
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - where Python ends, suppress is gone as well
            self.release()
        except TypeError:  # at exit, Python has already cleared the modules; the kernel releases the lock
            pass

    def release(self) -> None:
        """Allow cleaning."""
        file, self._file = getattr(self, "_file", None), None
        if file is not None:
            lock.release(file)


class CacheAlone:
    """Exclusive access to a cache, as long as no process uses it."""

    def __init__(self, cache: LocalStore) -> None:
        self.cache = cache
        self._file: int | None = None
        self.users: list[int] = []
        """Processes that use the cache, as far as the kernel lists them."""

    def take(self) -> bool:
        """Take the lock. False if the cache is in use; never waits."""
        self._file = _open(self.cache, make=self.cache.root.is_dir())
        if self._file is None:
            return True
        if lock.lock(self._file, wait=False) is not False:
            return True
        self.users = _holders(self._file)
        self.release()
        return False

    def release(self) -> None:
        """Release the lock."""
        file, self._file = self._file, None
        if file is not None:
            lock.release(file)


def _open(cache: LocalStore, *, make: bool) -> int | None:
    try:
        if make:
            cache.root.mkdir(parents=True, exist_ok=True)
        return os.open(cache.root / NAME, os.O_RDWR | (os.O_CREAT if make else 0), 0o666)
    except OSError:
        return None


def _holders(file: int) -> list[int]:
    """Return the processes with a lock on an open file, from the kernel's list; empty if the kernel has no such
    list.
    """
    inode = os.fstat(file).st_ino
    found = []
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
                found.append(int(words[4]))
    return sorted(set(found))
