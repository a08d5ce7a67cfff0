"""Local copies of remote objects: fetched once, checked, then mapped."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ...schemas.errors import IntegrityError
from ...schemas.files.lock import alone
from ...schemas.fingerprint import fingerprint
from ...schemas.names import check_hash
from .local import LocalStore, Put, hash_file

FOLDER = "copies"
"""Name of the copies' folder in the scratch folder. It may be deleted while no run is active, because everything can be
fetched again.
"""
_LOCKS = f"{FOLDER}/locks"
_TRIES = 3
_checked: dict[Path, tuple[int, int, int]] = {}
"""Copies whose hash this process has checked, with the identity of each file."""


class Copies:
    """Copies named by their hash. Processes may share a scratch folder."""

    def __init__(self, scratch: LocalStore) -> None:
        self._scratch = scratch

    def path(self, key: str) -> Path:
        """The path of a copy, whether or not it exists.

        Args:
            key: BLAKE3 of its content, or `key_of` if the hash is unknown.

        Raises:
            ValueError: it is not a hash.
        """
        check_hash(key)
        return self._scratch.path(f"{FOLDER}/{key[:2]}/{key}")

    def keep(self, draft: Path, key: str) -> None:
        """Keep a file that this machine wrote as a copy, so that it need not be fetched. Failure is ignored."""
        target = self.path(key)
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(draft, target)
            _checked[target] = _identity(target)

    def fetch(self, key: str, size: int, hash: str | None, pieces: Callable[[], Iterator[bytes]], where: str) -> Path:
        """Return the path of the copy; fetch it if it is missing. Of several processes, only one fetches it.

        Args:
            pieces: reads the object.
            where: its address, for messages.

        Raises:
            IntegrityError: the object in the store has another size or hash.
        """
        path = self.path(key)
        if _is(path, size, hash):
            return path
        # Copies share a few locks. Without locks, a copy may be fetched twice.
        with alone(self._scratch.path(f"{_LOCKS}/{key[:2]}")):
            if _is(path, size, hash):
                return path
            found = Put(0, "")
            for _ in range(_TRIES):
                with self._scratch.draft(f"{FOLDER}/{key[:2]}") as draft:
                    for data in pieces():
                        draft.file.write(data)
                    found = draft.result
                    if found.bytes == size and hash in (None, found.hash):
                        # the existing copy is damaged, for example by a crash
                        self._scratch.put(draft, path.relative_to(self._scratch.root).as_posix(), replace_damaged=True)
                        _checked[path] = _identity(path)
                        return path
        raise IntegrityError(
            f"{where} is damaged: {size:,} bytes with the BLAKE3 {hash} were put there, but {found.bytes:,} with "
            f"{found.hash} were read back, {_TRIES} times in a row; delete it there, and run the same command again "
            "to rebuild it"
        )


def key_of(url: str, name: str, size: int, mark: str) -> str:
    """Return the name for a copy of an object whose hash is unknown.

    Args:
        mark: the store's ETag, which changes with the content.
    """
    return fingerprint([url, name, size, mark])


def _is(path: Path, size: int, hash: str | None) -> bool:
    """Whether there is an intact copy. Each process checks its hash on first use."""
    try:
        found = _identity(path)
        if found[2] != size or hash is None or _checked.get(path) == found:
            return found[2] == size
        whole = hash_file(path).hash == hash
    except OSError:  # gone, or unreadable
        return False
    if whole:
        _checked[path] = found
    return whole


def _identity(path: Path) -> tuple[int, int, int]:
    """Return the file's inode, modification time and size."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
