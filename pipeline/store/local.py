"""A store in a local folder, in which half-written files cannot be mistaken for finished ones.

The protocol needs only one operation: a put that creates a name, or fails because the name exists. On a local disk that
is a temporary file in the same folder, fsync, `os.link`, and fsync of the folder. Object stores offer this as a
conditional put.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO

import blake3

from ...schemas.errors import StoreError, UnwritableError
from ...schemas.files.lock import process_runs
from ...schemas.names import check_found

_TEMPORARY = ".tmp-"
_READ, _LARGEST_NOTE = 1 << 22, 1 << 32


@dataclass(frozen=True, slots=True)
class Put:
    """What was written: size and BLAKE3 of the bytes."""

    bytes: int
    hash: str


class HashingFile:
    """A file for writing that hashes its data. pyarrow can write to it."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._hash = blake3.blake3()
        self.bytes = 0

    def write(self, data: "bytes | memoryview") -> int:
        view = memoryview(data)
        self._hash.update(view)
        written = self._raw.write(view)
        self.bytes += view.nbytes
        return written

    def flush(self) -> None:
        self._raw.flush()

    def tell(self) -> int:
        return self.bytes

    def close(self) -> None:
        """Does nothing, because the store closes the file after fsync."""

    @property
    def closed(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class Draft:
    """A file under a temporary name, until it is complete and gets its real name."""

    def __init__(self, path: Path, file: HashingFile) -> None:
        self.path = path
        self.file = file

    @property
    def result(self) -> Put:
        return Put(self.file.bytes, self.file.hexdigest())


class LocalStore:
    """A store in a local folder. Cheap to make and to pickle; keeps no file open."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    @property
    def url(self) -> str:
        """The folder, for messages."""
        return str(self.root)

    def where(self, name: str) -> str:
        """The path of a name, for messages."""
        return str(self.path(name))

    def path(self, name: str) -> Path:
        """The file behind a name."""
        return self.root / name

    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        """The file behind a name, for mapping into memory, unchecked. See `Store.local`."""
        return self.path(name)

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def size(self, name: str) -> int | None:
        """Size in bytes, or None if there is no such name."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:  # a link that leads to itself
            raise self._unreadable(name, error) from error

    def read(self, name: str) -> bytes | None:
        """The content, or None if there is no such name. Raises StoreError if it cannot be read, or is too large."""
        try:
            with open_regular(self.path(name)) as file:
                if os.fstat(file.fileno()).st_size > _LARGEST_NOTE:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def top(self) -> list[str]:
        """Top-level entries: names without a folder, and folders."""
        return [path.name for path in self.root.iterdir()] if self.root.is_dir() else []

    def hash(self, name: str) -> Put | None:
        """Size and hash of the content, read again; None if there is no such name."""
        try:
            return hash_file(self.path(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: OSError) -> StoreError:
        return StoreError(f"{self.path(name)} cannot be read: {error.strerror}; fix that, or remove it, then run again")

    def names(self, folder: str = "") -> list[str]:
        """Names below a folder, sorted, without temporary files."""
        return list(self.sizes(folder))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names below a folder with their sizes, sorted, without temporary files."""
        base = self.path(folder) if folder else self.root
        if not base.is_dir():
            return {}
        found = {}
        for path in base.rglob("*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                if path.is_file() and not path.name.startswith(_TEMPORARY):
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return {name: found[name] for name in sorted(found)}

    @contextmanager
    def draft(self, folder: str) -> Iterator[Draft]:
        """A file for writing in `folder`; deleted at the end of the block unless it was put.

        Raises:
            StoreError: the folder cannot be written, or the disk is full.
        """
        target = self.path(folder) if folder else self.root
        path = target / f"{_TEMPORARY}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            try:
                target.mkdir(parents=True, exist_ok=True)
                # Unbuffered: pyarrow writes whole column buffers, and another copy would only cost memory.
                with path.open("xb", buffering=0) as raw:
                    yield Draft(path, HashingFile(_Whole(raw)))  # type: ignore[arg-type]
            except OSError as error:  # if the root cannot be created, the error names the user's path
                raise explain(error, target if os.access(self.root, os.W_OK) else self.root) from error
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def put(self, draft: Draft, name: str, *, replace_damaged: bool = False) -> bool:
        """Give a draft its name. False if the name already exists.

        Args:
            replace_damaged: for names that can only have these bytes, such as those with a hash. If the name has other
                bytes, they are damaged, and the draft replaces them.

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        target = self.path(name)
        try:
            with draft.path.open("rb") as file:
                os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(draft.path, target)
            except FileExistsError:
                if not replace_damaged or _holds(target, draft.result):
                    return False
                draft.path.replace(target)
            sync_folder(target.parent)
        except OSError as error:
            raise explain(error, target.parent) from error
        return True

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create `name` with this content. False if the name already exists."""
        folder, _, _ = name.rpartition("/")
        with self.draft(folder) as draft:
            draft.file.write(data)
            return self.put(draft, name)

    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write `name`, replacing any content: only for notes beside the data, such as progress and reports."""
        folder, _, _ = name.rpartition("/")
        with self.draft(folder) as draft:
            draft.file.write(data)
            try:
                draft.path.replace(self.path(name))
            except OSError as error:
                raise explain(error, self.root) from error

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise explain(error, self.path(name).parent) from error

    def sweep(self, folder: str = "") -> None:
        """Remove temporary files of killed processes of this machine."""
        base = self.path(folder) if folder else self.root
        self._sweep(base.rglob(f"{_TEMPORARY}*"))

    def sweep_top(self) -> None:
        """Like `sweep`, but only for the top folder, because a cache may have a million files."""
        self._sweep(self.root.glob(f"{_TEMPORARY}*"))

    def _sweep(self, drafts: Iterable[Path]) -> None:
        mine = f"{_TEMPORARY}{os.uname().nodename}-"
        for path in drafts:
            writer = path.name.removeprefix(mine).partition("-")[0]
            if path.name.startswith(mine) and writer.isdecimal() and not process_runs(int(writer)):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Return the free bytes on the disk."""
        folder = next(one for one in (self.root, *self.root.parents) if one.exists())
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize


def _holds(path: Path, expected: Put) -> bool:
    """Whether a path is a regular file with this content. Reads only files of the right size."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_size == expected.bytes and hash_file(path) == expected


class _Whole:
    """Write all data; a raw file may write less at once, above 2 GiB or on a nearly full disk."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def write(self, data: memoryview) -> int:
        view = data.cast("B") if data.nbytes else data
        while view.nbytes:
            view = view[self._raw.write(view) :]
        return data.nbytes

    def flush(self) -> None:
        self._raw.flush()


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading. Raises OSError for a named pipe or a device, which could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return FileIO(descriptor, "rb")


def hash_file(path: Path) -> Put:
    """Size and BLAKE3 of a file, read in pieces."""
    digest = blake3.blake3()
    size = 0
    with open_regular(path) as file:
        buffer = bytearray(min(_READ, os.fstat(file.fileno()).st_size + 1))
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
    return Put(size, digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(error: OSError, folder: Path) -> StoreError:
    """Turn an operating system's error into one that says what to do."""
    if isinstance(error, StoreError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk that holds {folder} is full; free some space, or choose a folder on another "
            "disk, then run the same command again"
        )
    unmade = error.errno == errno.ENOENT and not folder.exists()  # for example below /proc
    if unmade or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UnwritableError(
            f"{folder} cannot be written: {error.strerror}; choose another folder, or make this one writable"
        )
    return StoreError(f"{folder}: {error.strerror or error}")


def check_tree(folder: Path) -> None:
    """Apply `check_found` to everything below a folder, so that names in it cannot open files outside it.

    Raises:
        IntegrityError: see `check_found`.
    """
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = os.scandir(folder / below)
        except OSError:
            continue  # reading it reports the error
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{below}{entry.name}/")
                elif entry.is_symlink() or not entry.is_file(follow_symlinks=False):
                    path = folder / below / entry.name
                    if path.exists():
                        real = os.path.realpath(path)
                        check_found(path, real, os.path.realpath(folder), regular=path.is_file())
