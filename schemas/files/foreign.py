"""The one way to open a file that somebody else may have written: of a dataset, a cache, a tokenizer or model folder, a
checkpoint, an adapter, samples, problems, inputs.

Every read of such a file has a limit of

- kind: a regular file, of no file system whose files the kernel makes while they are read. A named pipe, a device or
  `/proc/kmsg` would hang the process, or never end;
- size: a file that is read as a whole has a maximum. It is applied to what is read, whatever size the file says it has;
- place: where a folder is not the user's own, a link may not lead out of it;
- time: a regular file ends. What is computed from its content has limits of its own where that can take long: a
  tokenizer is loaded, and a pattern tried, in another process.

Everything raises OSError, whose `strerror` is a clause for messages, with `{path} cannot be read: ` before it.
"""

import errno
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from functools import cache, partial
from io import BufferedReader, FileIO
from pathlib import Path

SETTINGS_BYTES = 16 << 20
"""Most bytes of a file of settings: a configuration, a chat template, a note about a run."""
LISTING_BYTES = 1 << 30
"""Most bytes of a file that lists others or a vocabulary: a manifest, an index of weights, a tokenizer.json."""
_CHUNK_BYTES = 1 << 24
"""Most bytes that are read at once."""
READ_AHEAD = getattr(mmap, "MAP_POPULATE", 0)
"""Linux's flag that reads a mapped file at once; other systems read it page by page."""


def open_regular(path: str | Path, *, limit: int | None = None, inside: Iterable[Path] = ()) -> FileIO:
    """Open a regular file for reading.

    Args:
        limit: most bytes that it may have; None where it is read in pieces or mapped.
        inside: folders of which one must hold the file, with all links resolved; none if it may lie anywhere.

    Raises:
        OSError: there is none; it is a folder, a named pipe, a device, or made by the kernel; it is too large; it is a
            link that leads out of the folders; its name has a NUL character.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for somebody who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise OSError(errno.EINVAL, "its name has a NUL character", str(path)) from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_dev in kernel_devices():
            raise OSError(errno.EINVAL, "it is made by the kernel while it is read", str(path))
        if limit is not None and status.st_size > limit:
            raise _too_large(path, f"{status.st_size:,}", limit)
        _require_inside(path, inside)
    except BaseException:
        os.close(descriptor)
        raise
    return FileIO(descriptor, "rb")


def read_regular(path: str | Path, limit: int, *, inside: Iterable[Path] = ()) -> bytes:
    """The content of a regular file.

    Args:
        limit: most bytes that it may have.
        inside: folders of which one must hold the file, with all links resolved; none if it may lie anywhere.

    Raises:
        OSError: there is none, it is not a regular file, it is too large or outside of the folders; or reading fails.
    """
    with open_regular(path, limit=limit, inside=inside) as file:
        content = bytearray()
        # The size that the file system gives may be wrong, or change. One byte more than allowed is asked for: if it
        # comes, the file is too large.
        while chunk := file.read(min(limit + 1 - len(content), _CHUNK_BYTES)):
            content += chunk
        if len(content) > limit:
            raise _too_large(path, f"more than {limit:,}", limit)
        return bytes(content)


def read_regular_text(path: str | Path, limit: int = SETTINGS_BYTES) -> str:
    """The content of a regular file as a text in UTF-8, with line ends as `\\n`.

    Raises:
        OSError: it is not a regular file, it has more than `limit` bytes, or reading fails.
        UnicodeDecodeError: it is not UTF-8.
    """
    text = read_regular(path, limit).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: str | Path, max_bytes: int = SETTINGS_BYTES) -> Iterator[bytes]:
    """The lines of a regular file, with their ends, one at a time.

    Args:
        max_bytes: of a line; a longer one comes in parts of this length.

    Raises:
        OSError: see `open_regular`.
    """
    with BufferedReader(open_regular(path)) as file:
        yield from iter(partial(file.readline, max_bytes), b"")  # until it gives b"", behind the last line


def map_regular(path: str | Path, *, ahead: bool = True) -> memoryview:
    """The content of a regular file, mapped into memory, not copied.

    Args:
        ahead: let the kernel read all of it now, because all will be used; else it reads each page when it is touched.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:  # which cannot be mapped
            return memoryview(b"")
        flags = mmap.MAP_SHARED | (READ_AHEAD if ahead else 0)
        return memoryview(mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ))


@cache
def kernel_devices() -> frozenset[int]:
    """The devices whose files the kernel makes while they are read; some are regular files without an end."""
    return frozenset(folder.stat().st_dev for folder in (Path("/proc"), Path("/sys")) if folder.is_dir())


def _require_inside(path: str | Path, folders: Iterable[Path]) -> None:
    """Refuse a file that, with all links resolved, lies in none of the folders. Without any, it may lie anywhere."""
    real_folders = [os.path.realpath(folder) for folder in folders]
    real_path = os.path.realpath(path)
    # With "/" behind it, the folder /data/a does not hold /data/ab.
    if real_folders and not any(real_path.startswith(f"{folder.rstrip('/')}/") for folder in real_folders):
        raise OSError(
            errno.ELOOP,
            f"it is a link that leads out of {real_folders[0]}, and is not followed; replace it by the file that it "
            "leads to",
            str(path),
        )


def _too_large(path: str | Path, size: str, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has {size} bytes, and may have {limit:,}", str(path))
