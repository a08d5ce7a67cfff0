"""Notes in the cache folder of the user, for what depends on no dataset: `$PACKTRAIN_CACHE`, else `~/.cache/packtrain`.

A note carries a checksum and says itself what it is about. It is believed where both fit and nobody else could have
written it. A folder that cannot be read or written only costs time.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ..schemas.errors import StoreError
from ..schemas.fingerprint import fingerprint
from .sealed import seal, unseal
from .store import LocalStore
from .stores import default_scratch

_MOST_BYTES = 1 << 28
About = Mapping[str, str | int]
"""All that a note's value depends on."""


class _Note(msgspec.Struct):
    about: dict[str, str | int]
    value: msgspec.Raw


class UserCache:
    """Notes of one kind.

    Args:
        kind: the folder's name in the user's cache.
        folder: another folder instead.
    """

    _store: LocalStore | None

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        try:
            self._store = LocalStore(folder or default_scratch() / kind)
        except RuntimeError:  # a user without a home folder, as in some containers
            self._store = None

    def read(self, about: About) -> bytes | None:
        """The JSON that was kept; None where there is none, it is damaged, or others may have written it."""
        if self._store is None:
            return None
        path = self._store.path(_name(about))
        try:
            for place in (path.parent, path):
                found = place.lstat()
                if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
                    return None
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
                return None
            note = msgspec.json.decode(unseal(path.read_bytes()) or b"", type=_Note)
        except (OSError, msgspec.MsgspecError):
            return None
        return bytes(note.value) if note.about == about else None

    def keep(self, about: About, value: bytes) -> None:
        """Keep a JSON text, in place of what was kept."""
        if self._store is None:
            return
        with suppress(StoreError):
            note = _Note(dict(about), msgspec.Raw(value))
            self._store.replace_bytes(_name(about), seal(msgspec.json.encode(note)))


def _name(about: About) -> str:
    return f"{fingerprint(about)}.json"
