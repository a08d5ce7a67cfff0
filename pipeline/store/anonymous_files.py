"""Anonymous files, for data too large for memory. They disappear with the process that opened them."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .local import explain


def nameless(folder: Path, size: int = 0) -> IO[bytes]:
    """Open a file without a name in a folder, or in the system's temporary folder if the folder is read-only.

    Args:
        size: bytes to allocate and fill with zeros, because writing to a memory map on a full disk would crash the
        process.

    Raises:
        StoreError: the disk is full.
    """
    with explained(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # lives as long as its map
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            file = tempfile.TemporaryFile()  # noqa: SIM115
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
    return file


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the system's errors into ones that say what to do.

    Raises:
        StoreError: writing failed, for example because the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise explain(error, folder) from error
