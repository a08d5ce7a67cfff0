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
    largest_first = sorted(set(files), key=lambda file: (-file.bytes, file.name))  # so that the threads end together
    with ThreadPoolExecutor(_THREADS, "packtrain-check") as pool:
        whole = list(pool.map(lambda file: is_whole(store, file), largest_first))
    return {file.name for file, good in zip(largest_first, whole, strict=True) if not good}


def is_whole(store: Store, file: StoredFile) -> bool:
    """Whether a file matches its hash.

    Raises:
        StoreError: it cannot be read, and making it again would not help.
    """
    try:
        put = hash_file(file.path(store))
    except (FileNotFoundError, IntegrityError):
        return False
    except PermissionError as error:
        raise StoreError(
            f"{store.where(file.name)} cannot be read: {error.strerror}; fix its permissions, and run again"
        ) from error
    except OSError:  # the disk has an unreadable block
        return False
    return (put.bytes, put.hash) == (file.bytes, file.hash)
