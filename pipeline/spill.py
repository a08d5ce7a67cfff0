"""Files without a name, for what memory should not hold: they are gone with whoever opened them, however that ends."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .store import explain


def nameless(folder: Path, size: int = 0) -> IO[bytes]:
    """An open file in a folder; in the system's temporary one where that folder can only be read.

    Args:
        size: bytes to have at once, zeros: a map of them must not meet a full disk, which would end the process.

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
    """The system's errors in sentences that say what to do.

    Raises:
        StoreError: the disk that holds the folder is full, say.
    """
    try:
        yield
    except OSError as error:
        raise explain(error, folder) from error
