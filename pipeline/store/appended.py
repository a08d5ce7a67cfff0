"""A file of lines that one process at a time appends to, and that the same command continues after a kill.

It is opened once, without following links, so that nothing but this file is ever cut or written.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

from ...schemas.errors import BusyError, OutputError
from ...schemas.files import lock
from .local import explain, sync_folder


class AppendedFile:
    """A file in the place that `--out` names, made with its folder if it is missing. A context manager.

    Raises:
        OutputError: something else is in its place, or a file in that of its folder.
        BusyError: another process is writing it.
        StoreError: it cannot be written, or the disk is full. Every method may raise it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        irregular = OutputError(f"--out {path} is not a regular file; choose another place")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o666)
        except (FileExistsError, NotADirectoryError) as error:
            raise OutputError(f"--out {path}: {error.filename} is not a folder; choose another place") from None
        except OSError as error:
            raise (irregular if error.errno in (errno.ELOOP, errno.EISDIR) else explain(error, path)) from error
        lock.own(self._descriptor)
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise irregular
            if lock.lock(self._descriptor, wait=False) is False:
                raise BusyError(f"--out {path}: another process is writing it; let it finish, or choose another place")
            sync_folder(path.absolute().parent)
        except OSError as error:
            lock.release(self._descriptor)
            raise explain(error, path) from error
        except BaseException:
            lock.release(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let another process write it."""
        lock.release(self._descriptor)

    def reader(self) -> BufferedReader:
        """What it holds, from its beginning."""
        file = os.fdopen(os.dup(self._descriptor), "rb")
        file.seek(0)
        return file

    def cut(self, size: int) -> None:
        """Keep its first bytes alone, as after a kill in the middle of a line."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise explain(error, self.path) from error

    def append(self, data: bytes) -> None:
        """Write whole lines, and sync them."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise explain(error, self.path.parent) from error
