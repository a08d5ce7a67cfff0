"""Copies, on this machine, of what stands in a store far away: fetched once, checked, and mapped from then on."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..schemas.errors import IntegrityError
from ..schemas.fingerprint import fingerprint
from ..schemas.names import check_hash
from .store import LocalStore, Put, hash_file

FOLDER = "copies"
"""Below the scratch folder. Everything in it can be fetched again: it may be deleted when no run is at work."""
_LOCKS = f"{FOLDER}/locks"
_TRIES = 3
_checked: dict[Path, tuple[int, int, int]] = {}
"""Copies that this process has hashed, and which file each was."""


class Copies:
    """Copies named by their content. Any number of processes may share a scratch folder."""

    def __init__(self, scratch: LocalStore) -> None:
        self._scratch = scratch

    def path(self, key: str) -> Path:
        """Where a copy stands, if it is there.

        Args:
            key: BLAKE3 of its content; or what `key_of` says of an object of which that is not known.

        Raises:
            ValueError: it is not a hash, and could lead anywhere.
        """
        check_hash(key)
        return self._scratch.path(f"{FOLDER}/{key[:2]}/{key}")

    def keep(self, draft: Path, key: str) -> None:
        """Take a file for a copy that was written here and need not be fetched; it is as good without."""
        target = self.path(key)
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(draft, target)
            _checked[target] = _identity(target)

    def fetch(self, key: str, size: int, hash: str | None, pieces: Callable[[], Iterator[bytes]], where: str) -> Path:
        """The copy; made first where it is not there. Of many processes that want it, one fetches it.

        Args:
            pieces: reads the object.
            where: it is, for messages.

        Raises:
            IntegrityError: what the store gives has another size or hash.
        """
        path = self.path(key)
        if _is(path, size, hash):
            return path
        with self._alone(key):
            if _is(path, size, hash):
                return path
            found = Put(0, "")
            for _ in range(_TRIES):
                with self._scratch.draft(f"{FOLDER}/{key[:2]}") as draft:
                    for data in pieces():
                        draft.file.write(data)
                    found = draft.result
                    if found.bytes == size and hash in (None, found.hash):
                        # What stands there is damaged: cut short by a crash of the machine, say.
                        self._scratch.put(draft, path.relative_to(self._scratch.root).as_posix(), mend=True)
                        _checked[path] = _identity(path)
                        return path
        raise IntegrityError(
            f"{where} is damaged: {size:,} bytes with the BLAKE3 {hash} were put there, but {found.bytes:,} with "
            f"{found.hash} come back, {_TRIES} times in a row; delete it there and run the same command again, which "
            "makes it anew"
        )

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Hold the lock of a copy, which the kernel frees when this process ends. It is shared with a few others."""
        path = self._scratch.path(f"{_LOCKS}/{key[:2]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            with suppress(OSError):  # a file system without locks: it may be fetched twice
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def key_of(url: str, name: str, size: int, mark: str) -> str:
    """What names the copy of an object whose hash is not known.

    Args:
        mark: changes with the content: the store's ETag.
    """
    return fingerprint([url, name, size, mark])


def _is(path: Path, size: int, hash: str | None) -> bool:
    """Whether there is a copy, and it is what it should be. It is hashed when a process first meets it."""
    try:
        found = _identity(path)
        if found[2] != size or hash is None or _checked.get(path) == found:
            return found[2] == size
        whole = hash_file(path).hash == hash
    except OSError:  # gone, or a block of the disk that cannot be read any more
        return False
    if whole:
        _checked[path] = found
    return whole


def _identity(path: Path) -> tuple[int, int, int]:
    """Inode, time of the last change, bytes."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
