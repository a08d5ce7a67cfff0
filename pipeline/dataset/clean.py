"""Lists the old files of a cache, and removes them. A run makes again what it needs.

Files are removed only from a folder that packtrain has marked as its cache: drafts, and what is in the folders that it
makes there. Links are neither followed nor removed. A file is as old as its last use; a run says so of the parts that
it finds.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ...schemas.errors import ConfigError
from ..store.local import TEMPORARY, LocalStore, store_error
from ..store.open_store import CACHE_FOLDERS, CACHE_TAG, is_cache


def old_files(cache: LocalStore, *, days: float) -> dict[Path, int]:
    """Path of a file to remove → its bytes, largest first.

    Args:
        days: files that were used in the last so many days are kept; 0 keeps none.

    Raises:
        ConfigError: the folder is not a cache of packtrain.
    """
    if cache.root.is_dir() and not is_cache(cache.root):
        raise ConfigError(
            f"{cache.root} has no {CACHE_TAG} by packtrain, so nothing is removed from it. Every run marks its cache "
            "with this file, unless the folder has other content"
        )
    sizes = _sizes_of_old(cache.root, time.time() - days * 86_400)
    return dict(sorted(sizes, key=lambda item: (-item[1], str(item[0]))))


def remove_files(cache: LocalStore, paths: Iterable[Path]) -> None:
    """Remove files of a cache, records before their parts, and what killed processes left half-written.

    Raises:
        StoreError: a file cannot be removed.
    """
    # In this order, because a record says that its part is whole: without a record, a part is only made again.
    for path in sorted(paths, key=lambda path: path.suffix != ".json"):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise store_error(error, path.parent) from error
    cache.sweep()


def _sizes_of_old(cache: Path, before: float) -> Iterator[tuple[Path, int]]:
    """Yield (path, bytes) of the files that were last used before a time, in seconds since 1970."""
    for path in _files_of(cache):
        with suppress(OSError):  # removed meanwhile, by a run or another cleaning
            status = path.lstat()
            # A run sets both times of the parts that it finds; reading alone may set the time of access.
            last_used = max(status.st_mtime, status.st_atime)
            if stat.S_ISREG(status.st_mode) and last_used <= before:
                yield path, status.st_size


def _files_of(cache: Path) -> Iterator[Path]:
    """Yield all names in the folders that packtrain makes in a cache, and the drafts of all machines: the sweep of a
    store removes only drafts of this machine.
    """
    for folder in CACHE_FOLDERS:
        if (cache / folder).is_symlink():
            continue
        for where, _, names in os.walk(cache / folder):
            for name in names:
                yield Path(where, name)
    yield from cache.glob(f"{TEMPORARY}*")
