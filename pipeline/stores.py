"""What the run asks of a place to keep things, and which places there are.

A run writes to two stores, `out` and the cache of encoded parts. Each is a folder of this machine or of one that all
machines share (`LocalStore`), or a folder in an object store (`objectstore.ObjectStore`). Tasks carry stores, not
paths: a store pickles as its address, and opens nothing before it is used. What must be mapped into memory is asked
for with `local`.
"""

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from ..schemas.errors import ConfigError, OutputError
from .objectstore import CONDITIONAL, ObjectStore
from .store import Draft, LocalStore, Put

ASKED_AT_ONCE = 32
"""Requests to a store far away, where many are to be made: each takes some hundredths of a second."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


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
        """Names below a folder, sorted; nothing half-written is among them. A store far away may be behind with it:
        what a run relies on is asked for by name."""
        ...

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The same, with the bytes of each."""
        ...

    def top(self) -> list[str]:
        """What stands at the top: names without a folder, and folders."""
        ...

    def hash(self, name: str, *, sha256: bool = False) -> Put | None:
        """Size and hash of the content, read anew from the store itself, not from a copy; None where there is no such
        name."""
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


def is_url(text: str) -> bool:
    """Whether a place is a URL, and no path."""
    return _URL.match(text) is not None


def resolve_place(text: str, base: Path) -> str:
    """A place of the configuration, absolute: a URL as it is, a relative path from `base` on.

    Raises:
        ConfigError: a URL that names no folder.
    """
    if not is_url(text):
        return str((base / text).absolute())
    if text.startswith("file://"):
        return str(Path(unquote(urlsplit(text).path)).absolute())
    bare = not text.partition("://")[2].strip("/")
    if bare or (urlsplit(text).scheme in CONDITIONAL and not urlsplit(text).netloc):
        raise ConfigError(f"{text} is no place: it names no bucket; write it as s3://bucket/folder")
    return text.rstrip("/")


def beside(place: str, name: str) -> str:
    """A place next to another one: in the folder above.

    Raises:
        ConfigError: it is a whole bucket, which has none.
    """
    if not is_url(place):
        return str(Path(place).parent / name)
    above, _, last = place.rpartition("/")
    if not last or above.endswith((":/", "//")):
        raise ConfigError(f"out: {place} is a whole bucket; name a folder in it, such as {place.rstrip('/')}/packed")
    return f"{above}/{name}"


def cache_beside(out: str) -> str:
    """Where the cache is unless a configuration says otherwise.

    Raises:
        ConfigError: the output is a whole bucket.
    """
    return beside(out, ".packtrain-cache")


def default_scratch() -> Path:
    """Where this machine keeps copies of what is far away, unless `run.scratch` says otherwise."""
    if own := os.environ.get("PACKTRAIN_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return ((Path(base) if base else Path.home() / ".cache") / "packtrain").absolute()


def scratch_of(store: Store) -> LocalStore:
    """Where this machine keeps copies and other work that can be made again: in the store itself, if it is local."""
    if isinstance(store, LocalStore):
        return store
    assert isinstance(store, ObjectStore)
    return store.scratch


def open_store(place: str | Path, *, scratch: Path | None = None, keep: bool = False) -> Store:
    """The store at a place.

    Args:
        place: an absolute path, or a URL.
        scratch: of a URL, the folder of this machine for drafts and copies; by default `default_scratch`.
        keep: of a URL, what is put stays as a copy: for stores that are read on the machine that writes them.
    """
    text = str(place)
    if not is_url(text):
        return LocalStore(Path(place))
    if text.startswith("file://"):
        return LocalStore(Path(resolve_place(text, Path("/"))))
    return ObjectStore(text, scratch, keep=keep)


def require_writable(place: str) -> None:
    """Refuse a URL on which two runs could overwrite one another, whatever the server: nothing is asked of it.

    Raises:
        OutputError: says what to use instead.
    """
    protocol = urlsplit(place).scheme
    if is_url(place) and not place.startswith("file://") and protocol not in CONDITIONAL:
        raise OutputError(
            f"{ObjectStore(place).where('')}: {protocol}:// has no conditional put, by which alone two runs, or a "
            "run and its own repetition, cannot overwrite one another. Use a local or shared folder, or a bucket of S3 "
            "or of a store like it, such as MinIO or Cloudflare R2"
        )


def require_conditional(*stores: Store) -> None:
    """Refuse stores on which two runs could overwrite one another, before any work.

    Raises:
        OutputError: says which, and what to use instead.
    """
    for store in stores:
        if isinstance(store, ObjectStore):
            require_writable(store.url)
            store.require_conditional()


def ask_all(store: Store, question: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """One answer an item, in their order: many at once where the store is far away.

    Args:
        question: asks the store; in threads.
    """
    if isinstance(store, LocalStore):
        return [question(item) for item in items]
    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="packtrain-store") as pool:
        return list(pool.map(question, items))
