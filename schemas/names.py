"""Names of files inside a dataset: they lead nowhere else, whoever wrote them."""

import re

from .errors import IntegrityError

_PART = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_HASH = re.compile("[0-9a-f]{64}")


def check_name(name: object) -> None:
    """Refuse a name that is not a plain path below a folder: `..`, an absolute path, a backslash, a URL.

    Raises:
        ValueError: says which name.
    """
    if not isinstance(name, str) or not all(map(_PART.fullmatch, name.split("/"))) or len(name) > 1000:
        raise ValueError(f"{str(name)[:80]!r} is not a name below the folder")


def check_hash(hash: object) -> None:
    """Refuse what is not a hash of 256 bits in hexadecimal: files are called so.

    Raises:
        ValueError: says which.
    """
    if not isinstance(hash, str) or not _HASH.fullmatch(hash):
        raise ValueError(f"{str(hash)[:80]!r} is not a hash")


def check_found(path: object, real: str, folder: str, *, regular: bool) -> None:
    """Refuse what stands behind a name, if it is not a regular file of its folder.

    Args:
        path: as it was named, for messages.
        real, folder: where file and folder are when all links are resolved.
        regular: whether it is a regular file.

    Raises:
        IntegrityError: a link out of the folder; a named pipe, a device, a folder.
    """
    if not real.startswith(f"{folder.rstrip('/')}/"):
        raise IntegrityError(
            f"{path} is a link that leads out of {folder}, and is not followed; put what it leads to in its place"
        )
    if not regular:
        raise IntegrityError(
            f"{path} is not a regular file, and is not opened; remove it, then packtrain repair makes it again"
        )
