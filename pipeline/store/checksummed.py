"""Adds checksums to notes, so that damaged ones are recognised.

A note with a checksum is still a JSON object. Its first key, `check`, holds the hash of the bytes that follow. Notes
whose name says what they are about include the name, so that a note under the name of another counts as damaged.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ...schemas.errors import StoreError
from ...schemas.files.copy_cache import user_folder
from ...schemas.fingerprint import fingerprint, hash_bytes
from ...schemas.jsontext import decode_note
from .local import LocalStore
from .store import Store

_HEAD = b'{"check":"'
_DIGITS = 32
_BODY = len(_HEAD) + _DIGITS + 2
_MOST_BYTES = 1 << 28
About = Mapping[str, str | int]
"""Everything that a note's value depends on."""
_Note = TypeVar("_Note")


def seal(content: bytes, name: str = "") -> bytes:
    """Add the checksum to a JSON object.

    Args:
        content: an object with at least one key, without white space before it.
        name: the only name under which `unseal` accepts it.
    """
    return _HEAD + hash_bytes(content + name.encode())[:_DIGITS].encode() + b'",' + content[1:]


def unseal(sealed: bytes | None, name: str = "") -> bytes | None:
    """Return the object without its checksum; None if it is missing or damaged, or was sealed with another name."""
    if sealed is None or not sealed.startswith(_HEAD):
        return None
    content = b"{" + sealed[_BODY:]
    return content if sealed == seal(content, name) else None


def put_note(store: Store, name: str, value: object) -> None:
    """Write a note: a struct or dataclass, which may hold paths."""
    store.replace_bytes(name, seal(msgspec.json.encode(value, enc_hook=str), name))


def create_note(store: Store, name: str, value: object) -> bool:
    """As `put_note`, unless the name exists: then False."""
    return store.put_bytes(name, seal(msgspec.json.encode(value, enc_hook=str), name))


def get_note(store: Store, name: str, kind: type[_Note]) -> _Note | None:
    """A note of this kind; None if it is missing, damaged or from another version."""
    data = unseal(store.read(name), name)
    try:
        return msgspec.json.decode(data or b"", type=kind, dec_hook=lambda _, text: Path(text))
    except (ValueError, TypeError, RecursionError):
        return None


class _About(msgspec.Struct):
    about: dict[str, str | int]
    value: msgspec.Raw


class UserCache:
    """Notes of one kind that do not depend on a dataset, in the user's cache folder (`$PACKTRAIN_CACHE`, else
    `~/.cache/packtrain`).

    A note has a checksum and a description. It is used if both match and no other user could have written it. If the
    folder is unreadable or read-only, values are computed again.

    Args:
        kind: name of the folder in the user's cache.
        folder: a folder to use instead.
    """

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self._store: LocalStore | None = None
        with suppress(RuntimeError):  # no home folder, as in some containers
            self._store = LocalStore(folder or user_folder() / kind)

    def read(self, about: About) -> bytes | None:
        """Return the stored JSON; None if it is missing or damaged, or if another user may have written it."""
        if self._store is None:
            return None
        path = self._store.path(_name(about))
        try:
            found = path.lstat()
            if not (_is_own(path.parent.lstat()) and _is_own(found) and stat.S_ISREG(found.st_mode)):
                return None
            if found.st_size > _MOST_BYTES:
                return None
            note = decode_note(unseal(path.read_bytes()), _About)
        except (OSError, msgspec.MsgspecError):
            return None
        return bytes(note.value) if note.about == about else None

    def keep(self, about: About, value: bytes) -> None:
        """Store a JSON text, replacing the previous one, unless the folder is a link or another user's."""
        if self._store is None:
            return
        with suppress(StoreError, OSError):
            if not os.path.lexists(self._store.root) or _is_own(self._store.root.lstat()):
                note = _About(dict(about), msgspec.Raw(value))
                self._store.replace_bytes(_name(about), seal(msgspec.json.encode(note)))


def _is_own(found: os.stat_result) -> bool:
    """Whether only this user may have made it; a link never is."""
    return found.st_uid == os.geteuid() and not (stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_IWOTH)


def _name(about: About) -> str:
    return f"{fingerprint(about)}.json"
