"""A folder in which nothing half-written can be mistaken for finished.

The protocol asks for one thing only: a put that creates a name or fails because it exists. On a local disk that
is a temporary file in the same folder, fsync, `os.link`, fsync of the folder. Object stores offer the same as a
conditional put, so a second store needs these few methods and nothing else.
"""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import IO

import blake3

from ..schemas.errors import IntegrityError, StoreError, UnwritableError
from ..schemas.names import check_found

_TEMPORARY = ".tmp-"
_READ = 1 << 22


@dataclass(frozen=True, slots=True)
class Put:
    """What was written: its size and the BLAKE3 of the bytes as they were handed over."""

    bytes: int
    hash: str
    sha256: str = field(default="", compare=False)
    """Where it was asked for."""


class HashingFile:
    """A file opened for writing that hashes what passes through. pyarrow writes to it like to any file."""

    def __init__(self, raw: IO[bytes], sha256: bool = False) -> None:
        self._raw = raw
        self._hash = blake3.blake3()
        self._sha256 = hashlib.sha256() if sha256 else None
        self.bytes = 0

    def write(self, data: "bytes | memoryview") -> int:
        view = memoryview(data)
        self._hash.update(view)
        if self._sha256 is not None:
            self._sha256.update(view)
        written = self._raw.write(view)
        self.bytes += view.nbytes
        return written

    def flush(self) -> None:
        self._raw.flush()

    def tell(self) -> int:
        return self.bytes

    def close(self) -> None:
        """Left to the store, which must fsync first."""

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

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest() if self._sha256 is not None else ""


class Draft:
    """A file under a temporary name, to be put under its real one when it is whole."""

    def __init__(self, path: Path, file: HashingFile) -> None:
        self.path = path
        self.file = file

    @property
    def result(self) -> Put:
        return Put(self.file.bytes, self.file.hexdigest(), self.file.sha256)


class LocalStore:
    """A store in a local folder. Cheap to make and to pickle; holds no open file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return str(self.root)

    def where(self, name: str) -> str:
        """Where a name is, for people."""
        return str(self.path(name))

    def path(self, name: str) -> Path:
        """The file behind a name."""
        return self.root / name

    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        """The file behind a name, to be mapped into memory; nothing is checked. See `stores.Store`."""
        return self.path(name)

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def size(self, name: str) -> int | None:
        """Bytes, or None where there is no such name."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes | None:
        """The whole content, or None where there is no such name."""
        try:
            with open_regular(self.path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"{self.path(name)} cannot be read: {error.strerror}; mend that, and run the same command again"
            ) from error

    def top(self) -> list[str]:
        """What stands at the top: names without a folder, and folders."""
        return [path.name for path in self.root.iterdir()] if self.root.is_dir() else []

    def hash(self, name: str, *, sha256: bool = False) -> Put | None:
        """Size and hash of what is there, read anew; None where there is no such name."""
        try:
            return hash_file(self.path(name), sha256=sha256)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"{self.path(name)} cannot be read: {error.strerror}; mend that, and run the same command again"
            ) from error

    def names(self, folder: str = "") -> list[str]:
        """Names below a folder, sorted, temporary files left out."""
        return list(self.sizes(folder))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names below a folder and their bytes, sorted, temporary files left out."""
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
    def draft(self, folder: str, *, sha256: bool = False) -> Iterator[Draft]:
        """A file to write in `folder`; gone at the end of the block unless it was put.

        Args:
            sha256: hash it twice: BLAKE3 is fast, SHA-256 can be checked where only Python's own library is.

        Raises:
            StoreError: the folder cannot be written, or the disk is full.
        """
        target = self.path(folder) if folder else self.root
        path = target / f"{_TEMPORARY}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            try:
                target.mkdir(parents=True, exist_ok=True)
                # Unbuffered: pyarrow hands over whole column buffers, another copy would only cost memory.
                with path.open("xb", buffering=0) as raw:
                    yield Draft(path, HashingFile(_Whole(raw), sha256))  # type: ignore[arg-type]
            except OSError as error:  # named as the person named it, if not even the root can be made
                raise explain(error, target if os.access(self.root, os.W_OK) else self.root) from error
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def put(self, draft: Draft, name: str, *, mend: bool = False) -> bool:
        """Give a draft its name. False when the name exists already.

        The draft is read back and must have the bytes that were written.

        Args:
            mend: for names under which only these bytes can stand, those that carry a hash above all. Where other
                bytes stand there, they are damaged, and the draft takes their place.

        Raises:
            IntegrityError: what the disk holds is not what was written.
            StoreError: the disk is full or refuses.
        """
        target = self.path(name)
        try:
            with draft.path.open("rb") as file:
                os.fsync(file.fileno())
            expected = read_back(draft, str(target))
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(draft.path, target)
            except FileExistsError:
                if not mend or hash_file(target) == expected:
                    return False
                draft.path.replace(target)
            sync_folder(target.parent)
        except OSError as error:
            raise explain(error, target.parent) from error
        return True

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create `name` with this content. False when the name exists already."""
        folder, _, _ = name.rpartition("/")
        with self.draft(folder) as draft:
            draft.file.write(data)
            return self.put(draft, name)

    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write `name` whatever stood there: only for notes beside the data, such as progress and reports."""
        folder, _, _ = name.rpartition("/")
        with self.draft(folder) as draft:
            draft.file.write(data)
            try:
                draft.path.replace(self.path(name))
            except OSError as error:
                raise explain(error, self.root) from error

    def remove(self, name: str) -> None:
        """Take a name away; it may be gone already."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise explain(error, self.path(name).parent) from error

    def sweep(self, folder: str = "") -> None:
        """Remove what processes that were killed on this machine left half-written."""
        base = self.path(folder) if folder else self.root
        self._sweep(base.rglob(f"{_TEMPORARY}*"))

    def sweep_top(self) -> None:
        """The same, without looking into folders, of which a cache may have a million files."""
        self._sweep(self.root.glob(f"{_TEMPORARY}*"))

    def _sweep(self, drafts: Iterable[Path]) -> None:
        mine = f"{_TEMPORARY}{os.uname().nodename}-"
        for path in drafts:
            writer = path.name.removeprefix(mine).partition("-")[0]
            if path.name.startswith(mine) and writer.isdecimal() and not _runs(int(writer)):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Room on the disk, in bytes."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize


class _Whole:
    """Writes everything it is given: a raw file may take less, at 2 GiB or on a disk that fills up."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def write(self, data: memoryview) -> int:
        view = data.cast("B") if data.nbytes else data
        done = 0
        while done < view.nbytes:
            done += self._raw.write(view[done:])
        return done

    def flush(self) -> None:
        self._raw.flush()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another person's
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state != "Z"  # dead, but in a container nobody may have taken note


def open_regular(path: Path) -> FileIO:
    """A file to read. A named pipe or a device, which could keep its reader waiting for ever, is an OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return FileIO(descriptor, "rb")


def hash_file(path: Path, *, sha256: bool = False) -> Put:
    """Size and BLAKE3 of a file, read in pieces; its SHA-256 too where that is asked for."""
    digest = blake3.blake3()
    second = hashlib.sha256() if sha256 else None
    size = 0
    buffer = bytearray(_READ)
    view = memoryview(buffer)
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            if second is not None:
                second.update(view[:count])
            size += count
    return Put(size, digest.hexdigest(), second.hexdigest() if second is not None else "")


def read_back(draft: Draft, where: str) -> Put:
    """What was written to a draft, after a look at whether the disk gives it back.

    Raises:
        IntegrityError: it does not.
    """
    expected = draft.result
    actual = hash_file(draft.path)
    if actual != expected:
        raise IntegrityError(
            f"{where}: {expected.bytes:,} bytes were written, but reading them back gave "
            f"{actual.bytes:,} bytes of another content; the disk or its memory is failing: write to another one"
        )
    return expected


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(error: OSError, folder: Path) -> StoreError:
    """An operating system's error as a sentence that says what to do."""
    if isinstance(error, StoreError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk that holds {folder} is full; free some room, or point `out` and `cache` elsewhere, "
            "then run the same command again: it goes on where it stopped"
        )
    unmade = error.errno == errno.ENOENT and not folder.exists()  # such as below /proc
    if unmade or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UnwritableError(
            f"{folder} cannot be written: {error.strerror}; choose another folder, or make this one writable"
        )
    return StoreError(f"{folder}: {error.strerror or error}")


def check_tree(folder: Path) -> None:
    """`check_found` of everything below a folder: whatever is opened there by a plain name is a file of its own.

    Raises:
        IntegrityError: see `check_found`.
    """
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = os.scandir(folder / below)
        except OSError:
            continue  # whoever wants something from there says that it cannot be read
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{below}{entry.name}/")
                elif entry.is_symlink() or not entry.is_file(follow_symlinks=False):
                    path = folder / below / entry.name
                    if path.exists():
                        real = os.path.realpath(path)
                        check_found(path, real, os.path.realpath(folder), regular=path.is_file())
