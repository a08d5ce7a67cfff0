"""Checks that files of earlier runs are intact before they are used.

A matching size does not prove that a file is intact, because disks and memory flip bits. Hashing takes a fraction of
the time of packing the same bytes, and each file is read once.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from ...schemas.errors import IntegrityError, StoreError
from ..store.local import LocalStore, hash_file
from ..store.open_store import Store, StoredFile

_THREADS = 4
"""Maximum number of threads. Hashing and reading leave the interpreter to other threads."""


def damaged(store: Store, files: Iterable[StoredFile]) -> set[str]:
    """Return the names of the files that do not match their hash.

    Files of remote stores are not read here, because copies are checked when they are fetched.

    Raises:
        StoreError: a file cannot be read, and making it again would not help.
    """
    if not isinstance(store, LocalStore):
        return set()

    def is_whole(file: StoredFile) -> bool:
        try:
            put = hash_file(file.path(store))
        except PermissionError as error:
            raise StoreError(
                f"{store.where(file.name)} cannot be read: {error.strerror}; fix its permissions, and run again"
            ) from error
        except (OSError, IntegrityError):  # it is gone, or the disk has an unreadable block
            return False
        return (put.bytes, put.hash) == (file.bytes, file.hash)

    some = list(files)
    with ThreadPoolExecutor(_THREADS, "packtrain-check") as pool:
        return {file.name for file, good in zip(some, pool.map(is_whole, some), strict=True) if not good}
