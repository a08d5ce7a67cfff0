"""What the run asks of a place to keep things, and which places there are.

A run writes to two stores, `out` and the cache of encoded parts. Tasks carry stores, not paths: a store pickles as its
address, and opens nothing before it is used. What must be mapped into memory is asked for with `local`.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .store import Draft, LocalStore


class Store(Protocol):
    """Names and their contents. `LocalStore` has the meaning of each method in full."""

    @property
    def url(self) -> str:
        """Where it is, for people: a folder, or a URL."""
        ...

    def where(self, name: str) -> str:
        """Where a name is, for people."""
        ...

    def exists(self, name: str) -> bool: ...

    def size(self, name: str) -> int | None:
        """Bytes, or None where there is no such name."""
        ...

    def read(self, name: str) -> bytes | None:
        """The whole content, or None where there is no such name."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Names below a folder, sorted; nothing half-written is among them."""
        ...

    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        """A file of this machine with the content of a name: itself, or a copy that is fetched once.

        Args:
            bytes, hash: what the content must be, where that is known (BLAKE3). A copy is checked against them.

        Raises:
            FileNotFoundError: there is no such name.
            IntegrityError: the content is another.
        """
        ...

    def draft(self, folder: str, *, sha256: bool = False) -> AbstractContextManager[Draft]:
        """A file to write; gone at the end of the block unless it was put."""
        ...

    def put(self, draft: Draft, name: str, *, mend: bool = False) -> bool:
        """Give a draft its name. False when the name exists already."""
        ...

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create a name with this content. False when the name exists already."""
        ...

    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write a name whatever stood there: only for notes beside the data."""
        ...

    def remove(self, name: str) -> None:
        """Take a name away; it may be gone already."""
        ...

    def sweep(self, folder: str = "") -> None:
        """Remove what processes that were killed left half-written."""
        ...

    def __hash__(self) -> int:
        """Stores at the same address are equal."""
        ...

    def free_bytes(self) -> int | None:
        """Room, in bytes; None where there is no end of it."""
        ...


def scratch_of(store: Store) -> LocalStore:
    """Where this machine keeps copies and other work that can be made again: in the store itself, if it is local."""
    assert isinstance(store, LocalStore)
    return store


def open_store(place: str | Path) -> Store:
    """The store at a place: a folder of this machine.

    Args:
        place: absolute.
    """
    return LocalStore(Path(place))
