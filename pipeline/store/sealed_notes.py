"""Notes: small JSON objects with a checksum, so that a damaged one counts as missing.

The first key, `check`, holds the hash of the bytes that follow and of the note's name, so that a note that was copied
to another name counts as damaged. A note reads: `{"check":"32 hexadecimal digits","first key":…}`.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ...schemas.errors import StoreError
from ...schemas.files.copy_cache import user_folder
from ...schemas.fingerprint import hash_bytes
from .local import LocalStore, Store

_PREFIX = b'{"check":"'
_DIGITS = 32
_BODY_START = len(_PREFIX) + _DIGITS + len(b'",')
_Note = TypeVar("_Note")


def seal(content: bytes, name: str) -> bytes:
    """Add the checksum to a JSON object.

    Args:
        content: an object with at least one key, without white space before it.
        name: the only name under which `unseal` accepts it.
    """
    check = hash_bytes(content + name.encode())[:_DIGITS].encode()
    return _PREFIX + check + b'",' + content[1:]  # without its brace


def unseal(sealed: bytes | None, name: str) -> bytes | None:
    """Return the object without its checksum; None if it is missing or damaged, or was sealed with another name."""
    content = b"{" + (sealed or b"")[_BODY_START:]
    return content if sealed == seal(content, name) else None


def put_note(store: Store, name: str, value: object) -> None:
    """Write a note: a struct or dataclass, which may hold paths."""
    store.replace_bytes(name, seal(msgspec.json.encode(value, enc_hook=str), name))


def get_note(store: Store, name: str, kind: type[_Note]) -> _Note | None:
    """A note of this kind; None if it is missing, damaged or from another version."""
    data = unseal(store.read(name), name)
    try:
        # Without data, decoding fails, as it does if the keys are those of another version. Paths, which `put_note`
        # wrote as texts, become paths again.
        return msgspec.json.decode(data or b"", type=kind, dec_hook=lambda _, text: Path(text))
    except (ValueError, TypeError, RecursionError):
        return None


# Notes that do not depend on a dataset, in the user's own cache folder


def get_user_note(name: str, kind: type[_Note]) -> _Note | None:
    """A note of this kind in the user's cache folder; None if it is missing or damaged, if another user may have
    written it, or if there is no folder.
    """
    with suppress(StoreError, OSError, RuntimeError):
        store = LocalStore(user_folder())
        path = store.path(name)
        if _is_users_own(path) and _is_users_own(path.parent):
            return get_note(store, name, kind)
    return None


def put_user_note(name: str, value: object) -> None:
    """Write a note into the user's cache folder. If it cannot be written, the value is computed again the next time."""
    with suppress(StoreError, OSError, RuntimeError):
        put_note(LocalStore(user_folder()), name, value)


def _is_users_own(path: Path) -> bool:
    """Whether a file or folder is this user's, and not writable by everybody; a link never is."""
    status = path.lstat()
    writable_by_everybody = bool(status.st_mode & stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and not writable_by_everybody
