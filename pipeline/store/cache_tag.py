"""The file that marks a folder as a cache of packtrain: only marked folders are cleaned, or written by other runs."""

from contextlib import suppress
from pathlib import Path

from .local import LocalStore, open_regular

TAG = "CACHEDIR.TAG"
"""Backup and search programs also know this name: https://bford.info/cachedir/"""
FOLDERS = (
    *("blocks", "copies", "data", "drafts", "encoded", "engines", "hub"),
    *("locks", "overlaps", "scans", "specs", "tokenizers"),
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
    """Mark the cache folder, unless it contains anything else. Does nothing if it is read-only."""
    with suppress(OSError):
        top = cache.top()
        if TAG not in top and all(name in FOLDERS or name.startswith(".") for name in top):
            cache.put_bytes(TAG, _TEXT)
