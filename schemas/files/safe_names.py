"""Names of files inside a dataset or a cache, which must not lead out of its folder."""

import re

# No leading dot, so neither `..` nor a hidden file; no colon, so neither a URL nor a drive of Windows.
_PART = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_HASH = re.compile("[0-9a-f]{64}")


def check_name(name: object) -> None:
    """Refuse a name that is not a plain path below a folder, such as `..`, an absolute path or a URL.

    Raises:
        ValueError: the name is refused; shows it.
    """
    if not isinstance(name, str) or not all(map(_PART.fullmatch, name.split("/"))) or len(name) > 1000:
        raise ValueError(f"{str(name)[:80]!r} is not a name below the folder")


def check_hash(hash: object) -> None:
    """Refuse anything but a 256-bit hash in hexadecimal, because hashes are used as file names.

    Raises:
        ValueError: the value is refused; shows it.
    """
    if not isinstance(hash, str) or not _HASH.fullmatch(hash):
        raise ValueError(f"{str(hash)[:80]!r} is not a hash")
