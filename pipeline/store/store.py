"""The interface of stores, which map names to contents.

A run writes to two stores, `out` and the cache of encoded parts. Each is a local or shared folder (`LocalStore`), or a
folder in an object store (`ObjectStore`). Tasks carry stores, not paths: a store is pickled as its address, and opens
nothing before its first use.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import blake3


@dataclass(frozen=True, slots=True)
class Put:
    """What was written: size and BLAKE3 of the bytes."""

    bytes: int
    hash: str


@dataclass(frozen=True)
class Draft:
    """A file under a temporary name, until it is complete and gets its real name."""

    path: Path
    file: IO[bytes]

    @cached_property
    def result(self) -> Put:
        """What was written, once all is."""
        self.file.flush()
        return Put(self.path.stat().st_size, blake3.blake3().update_mmap(self.path).hexdigest())


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A name in a store, with its expected content."""

    name: str
    bytes: int
    hash: str
    """BLAKE3 of the content."""

    def path(self, store: "Store") -> Path:
        """A local file with its content."""
        return store.local(self.name, bytes=self.bytes, hash=self.hash)


class Store(ABC):
    """Maps names to contents. Stores with the same address are equal."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The folder or URL, for messages and for `open_store`."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The path or URL of a name, for messages."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Size in bytes, or None if there is no such name."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a small file, or None if there is no such name."""

    @abstractmethod
    def sizes(self, folder: str = "") -> dict[str, int]:
        """Size in bytes of each complete file below a folder, sorted by name. The listing of a remote store may be
        outdated, so a run checks the names that it relies on."""

    @abstractmethod
    def hash(self, name: str) -> Put | None:
        """Size and hash of the content, read from the store, not from a copy; None if there is no such name."""

    @abstractmethod
    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        """A local file with the content of a name, for mapping into memory: the file itself, unchecked, or a copy that
        is fetched once.

        Args:
            bytes, hash: the expected size and BLAKE3, if known. A copy is checked against them.

        Raises:
            FileNotFoundError: there is no such name.
            IntegrityError: the content differs.
        """

    @abstractmethod
    def draft(self, folder: str) -> AbstractContextManager[Draft]:
        """A file for writing in a folder; deleted at the end of the block unless it was put.

        Raises:
            StoreError: the folder cannot be written, or the disk is full.
        """

    @abstractmethod
    def put(self, draft: Draft, name: str) -> None:
        """Give a draft its name, which can only have these bytes: what it may have had is replaced.

        Raises:
            StoreError: the disk is full, or writing failed.
        """

    @abstractmethod
    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create a name with this content. False if the name already exists."""

    @abstractmethod
    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write a name, replacing any content: only for notes beside the data, such as progress and reports."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""

    @abstractmethod
    def sweep(self, folder: str = "") -> None:
        """Remove temporary files of killed processes of this machine."""

    def exists(self, name: str) -> bool:
        """Whether there is such a name."""
        return self.size(name) is not None

    def names(self, folder: str = "") -> list[str]:
        """Names of complete files below a folder. See `sizes`."""
        return list(self.sizes(folder))

    def top(self) -> list[str]:
        """Top-level entries: names without a folder, and folders."""
        return list(dict.fromkeys(name.partition("/")[0] for name in self.sizes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)
