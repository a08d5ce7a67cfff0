"""Names of files inside a dataset: they lead nowhere else, whoever wrote them."""

import os
import re
import stat
from pathlib import Path

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


def check_file(folder: Path, name: str) -> None:
    """Refuse a name behind which something else than a regular file of this folder stands. It may be missing.

    Args:
        folder: where a link may lead, and not beyond. It may be a link itself.

    Raises:
        IntegrityError: a link out of the folder; a named pipe, a device, a folder.
    """
    path = folder / name
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise IntegrityError(
                f"{path} is a link that leads out of {folder}, and is not followed; put what it leads to in its place"
            )
        regular = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror or error}") from error
    if not regular:
        raise IntegrityError(
            f"{path} is not a regular file, and is not opened; remove it, then packtrain repair makes it again"
        )


def check_tree(folder: Path) -> None:
    """`check_file` of everything below a folder, so that whatever is opened there by a plain name is a file of its own.

    Raises:
        IntegrityError: see `check_file`.
    """
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = os.scandir(folder / below)
        except OSError:
            continue  # whoever wants something from there says that it cannot be read
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{below}{entry.name}/")
                elif entry.is_symlink() or not entry.is_file(follow_symlinks=False):
                    check_file(folder, f"{below}{entry.name}")
