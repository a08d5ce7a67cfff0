"""The interface of stores, which map names to contents, and the store in a local or shared folder.

A run writes to two stores, `out` and the cache of encoded parts. Tasks carry stores, not paths: a store is pickled as
its address, and opens nothing before its first use.

A name appears when its content is complete, so a half-written file cannot be mistaken for a finished one. On a local
disk that is a temporary file in the store's folder (a draft), fsync, a new name for it, and fsync of the name's folder.
A name that could get different contents is created or found taken: by `os.link` here, by a conditional put in an object
store. A name that can only have one content, such as one that contains its hash, is replaced: by `os.replace` here.
"""

import errno
import os
import secrets
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from ...schemas.dataset.manifest import FileRecord
from ...schemas.errors import IntegrityError, OutputError, StoreError, UnwritableError
from ...schemas.files.foreign import LISTING_BYTES, map_regular, open_regular, read_regular
from ...schemas.fingerprint import hash_bytes, hash_stream

TEMPORARY = ".tmp-"
"""The prefix of a draft's name."""


@dataclass(frozen=True, slots=True)
class SizeAndHash:
    """By which two contents are compared."""

    bytes: int
    hash: str
    """In full; see `schemas.fingerprint.hash_bytes`."""


@dataclass(frozen=True)
class Draft:
    """A file under a temporary name, until it is complete and gets its real name."""

    path: Path
    file: IO[bytes]

    @cached_property
    def size_and_hash(self) -> SizeAndHash:
        """Of the whole content: ask when all is written."""
        self.file.flush()
        # Hashed once it is complete, from a memory map, so that Arrow writes into the file itself, not through a file
        # object that hashes.
        return SizeAndHash(self.path.stat().st_size, hash_bytes(map_regular(self.path)))


class Store(ABC):
    """Maps names to contents. Stores with the same address are equal."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The folder or URL, for messages and for `open_store`."""

    @property
    @abstractmethod
    def scratch(self) -> "LocalStore":
        """The local folder for copies and other temporary files: the store itself if it is local, else `user_folder()`
        of the machine that uses it."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The path or URL of a name, for messages."""

    @property
    def lists_names(self) -> bool:
        """Whether `names` can be asked; a web server has no list."""
        return True

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Size in bytes, or None if there is no such name."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a small file (at most `LISTING_BYTES`), or None if there is no such name."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """The names of complete files below a folder, sorted. The listing of a remote store may be outdated, so a run
        checks the names that it relies on."""

    @abstractmethod
    def hash(self, name: str) -> SizeAndHash | None:
        """Size and hash of the content, read from the store, not from a copy; None if there is no such name."""

    @abstractmethod
    def local(self, file: str | FileRecord) -> Path:
        """A local file with the content of a name, for mapping into memory: the file itself, unchecked, or a copy that
        is fetched once, and compared with its record if one is given.

        Raises:
            FileNotFoundError: there is no such name.
            IntegrityError: the content differs.
        """

    @abstractmethod
    def draft(self) -> AbstractContextManager[Draft]:
        """A file for writing; deleted at the end of the block unless it was put.

        Raises:
            StoreError: the folder cannot be written, or the disk is full.
        """

    @abstractmethod
    def put(self, draft: Draft, name: str) -> None:
        """Give a draft its name, which can only have these bytes: an older file of this name is replaced.

        Raises:
            StoreError: the disk is full, or writing failed.
        """

    def put_checked(self, draft: Draft, name: str) -> None:
        """As `put`, for a file that a later run compares with its hash before it uses it, such as an encoded part. If a
        power failure damages the file, it is made again, so nothing waits until it is on the disk.

        Raises:
            StoreError: the disk is full, or writing failed.
        """
        self.put(draft, name)

    @abstractmethod
    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create a name with this content. False if the name already exists."""

    @abstractmethod
    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write a name, replacing any content: only for notes beside the data, such as progress and reports."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""

    def sweep(self) -> None:
        """Remove drafts of killed processes of this machine."""
        self.scratch.sweep()

    def exists(self, name: str) -> bool:
        """Whether there is such a name."""
        return self.size(name) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)


class LocalStore(Store):
    """A store in a local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def scratch(self) -> "LocalStore":
        return self

    def where(self, name: str) -> str:
        return str(self.path(name))

    def path(self, name: str) -> Path:
        """The file behind a name. Raises IntegrityError if the name leads out of the folder."""
        # Names also come from manifests and notes, which somebody else may have written.
        if name.startswith("/") or ".." in name.split("/"):
            raise IntegrityError(f"{name[:80]!r} is not a name below {self.root}")
        return self.root / name

    def local(self, file: str | FileRecord) -> Path:
        """The file itself. Only opening it shows whether it is there."""
        return self.path(file if isinstance(file, str) else file.name)

    def size(self, name: str) -> int | None:
        try:
            return self.path(name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # a link that leads to itself
            raise self._unreadable(name, error) from error

    def read(self, name: str) -> bytes | None:
        try:
            return read_regular(self.path(name), LISTING_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def hash(self, name: str) -> SizeAndHash | None:
        try:
            return hash_file(self.path(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: OSError) -> StoreError:
        """The error for a name that is there, and cannot be read."""
        return StoreError(f"{self.path(name)} cannot be read: {error.strerror}; fix that, or remove it, then run again")

    def names(self, folder: str = "") -> list[str]:
        names = []
        for path in self.path(folder).rglob("*"):
            # A draft is not complete, and will get another name.
            if path.is_file() and not path.name.startswith(TEMPORARY):
                names.append(path.relative_to(self.root).as_posix())
        return sorted(names)

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """A file for writing, in the store's folder; deleted at the end of the block unless it was put."""
        # The machine and the process: `sweep` removes drafts whose process is gone.
        path = self.root / f"{TEMPORARY}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with writing_to(self.root):
                self.root.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    yield Draft(path, file)
        finally:
            # `put` has renamed the file, and nothing is left to remove. `create` has given it a second name, and this
            # one is removed.
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def put(self, draft: Draft, name: str) -> None:
        """Give a draft its name, which can only have these bytes: an older file of this name is replaced."""
        target = self.path(name)
        with writing_to(target.parent):
            # First the bytes, then the name: a power failure between the two leaves no name without its content.
            draft.file.flush()
            os.fsync(draft.file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.path.replace(target)
            sync_folder(target.parent)

    def put_checked(self, draft: Draft, name: str) -> None:
        """As `put`, for a file whose hash is compared before it is used: it may get lost in a power failure."""
        # Waiting for the disk took workers 0.2 of the 8 seconds of a run on 189 MB.
        target = self.path(name)
        with writing_to(target.parent):
            draft.file.flush()
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.path.replace(target)

    def create(self, draft: Draft, name: str) -> bool:
        """As `put`, unless the name exists: then False."""
        target = self.path(name)
        with writing_to(target.parent):
            draft.file.flush()
            os.fsync(draft.file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.hardlink_to(draft.path)
            except FileExistsError:
                return False
            sync_folder(target.parent)
        return True

    def put_bytes(self, name: str, data: bytes) -> bool:
        with self.draft() as draft:
            draft.file.write(data)
            return self.create(draft, name)

    def replace_bytes(self, name: str, data: bytes) -> None:
        with self.draft() as draft:
            draft.file.write(data)
            self.put_checked(draft, name)  # a note that is lost in a power failure is written again

    def remove(self, name: str) -> None:
        path = self.path(name)
        with writing_to(path.parent):
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove drafts of killed processes of this machine."""
        # A draft is named `.tmp-MACHINE-PROCESS-RANDOM`. Drafts of other machines stay, because nothing here tells
        # whether their process runs. A machine's name may contain "-": on `node`, a draft of `node-12` must stay.
        for path in self.root.glob(f"{TEMPORARY}*"):
            machine_and_process = path.name.removeprefix(TEMPORARY).rpartition("-")[0]
            machine, _, process_id = machine_and_process.rpartition("-")
            if machine == os.uname().nodename and process_id.isdecimal() and not _is_running(process_id):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _is_running(process_id: str) -> bool:
    """Whether a process of this machine runs; a zombie does not."""
    try:
        status = Path("/proc", process_id, "stat").read_bytes()
    except OSError:
        return False
    # "12 (name) S …": the name may contain anything, so the state is what follows the last parenthesis.
    return status.rpartition(b")")[2].split()[0] != b"Z"


def hash_file(path: Path) -> SizeAndHash:
    """Size and hash of a file, which is read in pieces."""
    with open_regular(path) as file:
        hash = hash_stream(file)
        return SizeAndHash(file.tell(), hash)  # what was read: the file may grow meanwhile


def sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk (fsync): a synced file may still lose its name in a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system into a StoreError that says what to do about the folder."""
    try:
        yield
    except OSError as error:
        raise store_error(error, folder) from error


def store_error(error: OSError, folder: Path) -> StoreError:
    """The StoreError to raise in place of an operating system's error. It says what to do.

    Args:
        folder: in which writing failed.
    """
    if isinstance(error, StoreError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk that holds {folder} is full; free some space, or choose a folder on another "
            "disk, then run the same command again"
        )
    cannot_be_made = error.errno == errno.ENOENT and not folder.exists()  # for example below /proc
    if cannot_be_made or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UnwritableError(
            f"{folder} cannot be written: {error.strerror}; choose another folder, or make this one writable"
        )
    return StoreError(f"{folder}: {error.strerror or error}")


def require_no_file_above(path: Path, option: str) -> None:
    """Refuse, before any work, a path that leads through a file.

    Args:
        option: where the user named it, such as `--out`.

    Raises:
        OutputError: a parent of the path is a file.
    """
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise OutputError(f"{option} {path}: {nearest} is a file, not a folder; choose another place")


def open_unnamed_file(folder: Path, size: int = 0) -> IO[bytes]:
    """Open a file without a name in a folder, or in the system's temporary folder if the folder is read-only: for data
    too large for memory. It disappears with the process.

    Args:
        size: bytes to allocate and fill with zeros, because writing to a memory map on a full disk would crash the
        process.

    Raises:
        StoreError: the disk is full.
    """
    with writing_to(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # the caller closes it
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            file = tempfile.TemporaryFile()  # noqa: SIM115
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
    return file


def check_tree(folder: Path) -> None:
    """Refuse a folder with something below it by which a name in it could open a file outside, or wait without end.

    Raises:
        IntegrityError: a link leads out of the folder; something is a named pipe or a device.
    """
    # With "/" behind it: the folder /data/a does not hold /data/ab.
    inside = f"{os.path.realpath(folder).rstrip('/')}/"
    # A folder that cannot be read is skipped here, and reported by the code that reads its files.
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # removed meanwhile
                mode = path.lstat().st_mode
                # A link to nothing is a missing file, which the code that reads it reports.
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or not path.exists():
                    continue
                if not os.path.realpath(path).startswith(inside):
                    raise IntegrityError(
                        f"{path} is a link that leads out of {inside.rstrip('/')}, and is not followed; replace it by "
                        "the file that it leads to"
                    )
                if not path.is_file():
                    raise IntegrityError(
                        f"{path} is not a regular file, and is not opened; remove it, then packtrain verify --repair "
                        "rebuilds it"
                    )
