"""Opens a place, a path or a URL, as a store."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from ...schemas.errors import ConfigError, OutputError
from ...schemas.files.clients import STORES, shown
from .local import LocalStore
from .object_store import ObjectStore
from .store import Put
from .store import Store as Store
from .store import StoredFile as StoredFile

ASKED_AT_ONCE = 32
"""Number of parallel requests to a remote store; each takes some hundredths of a second."""
_THREADS = 4
"""Files hashed at once; hashing and reading leave the interpreter to other threads."""
_CACHE = ".packtrain-cache"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def is_url(text: str) -> bool:
    """Whether a place is a URL, not a path."""
    return _URL.match(text) is not None


def resolve_place(text: str, base: Path) -> str:
    """Make a configured place absolute: URLs stay, relative paths start at `base`.

    Raises:
        ConfigError: the URL has no bucket.
    """
    if not is_url(text):
        return str((base / text).absolute())
    if text.startswith("file://"):
        return str(Path(unquote(urlsplit(text).path)).absolute())
    bare = not text.partition("://")[2].strip("/")
    if bare or (urlsplit(text).scheme in STORES and not urlsplit(text).netloc):
        raise ConfigError(f"{text} has no bucket; write it as s3://bucket/folder")
    return text.rstrip("/")


def cache_root(cache: str | None, out: str, base: Path) -> str:
    """Return the path or URL of the cache: the configuration's `cache`, or a place beside the output.

    Args:
        out: as returned by `resolve_place`.

    Raises:
        ConfigError: the output is a whole bucket, which has nothing beside it.
    """
    if cache is not None:
        return resolve_place(cache, base)
    if not is_url(out):
        return str(Path(out).parent / _CACHE)
    above, _, last = out.rpartition("/")
    if not last or above.endswith((":/", "//")):
        raise ConfigError(f"out: {out} is a whole bucket; name a folder in it, such as {out.rstrip('/')}/packed")
    return f"{above}/{_CACHE}"


def scratch_of(store: Store) -> LocalStore:
    """Return the local folder for copies and other temporary files: the store itself if it is local."""
    if isinstance(store, LocalStore):
        return store
    assert isinstance(store, ObjectStore)
    return store.scratch


def open_store(place: str | Path, *, scratch: Path | None = None, keep: bool = False) -> Store:
    """The store at a place.

    Args:
        place: as returned by `resolve_place`.
        scratch: for URLs: the local folder for drafts and copies; by default `user_folder`.
        keep: for URLs: keep put objects as local copies. Useful for stores that are read on the machine that writes
        them.
    """
    text = str(place)
    if not is_url(text):
        return LocalStore(Path(place))
    return ObjectStore(text, scratch, keep=keep)


def require_writable(place: str) -> None:
    """Refuse a URL that can only be read. Does not ask the server.

    Raises:
        OutputError: the message says what to use instead.
    """
    protocol = urlsplit(place).scheme
    if is_url(place) and protocol not in STORES:
        raise OutputError(
            f"{shown(place)}: {protocol}:// can be read, but not written. Use a local or shared folder, or a bucket of "
            "S3, Google Cloud or Azure, or of a store that speaks S3, such as MinIO, Ceph or Cloudflare R2"
        )


def ask_all(store: Store, question: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Ask the store about each item, in parallel if it is remote; yield the answers in order.

    Args:
        question: asks the store about one item; called in threads.
    """
    if isinstance(store, LocalStore):
        return [question(item) for item in items]
    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="packtrain-store") as pool:
        return list(pool.map(question, items))


def damaged(store: Store, files: Iterable[StoredFile]) -> set[str]:
    """The names of the files that earlier runs left, and that do not match their hash: disks and memory flip bits.

    Files of remote stores are not read here, because copies are checked when they are fetched.
    """
    if not isinstance(store, LocalStore):
        return set()
    some = list(files)
    with ThreadPoolExecutor(_THREADS, "packtrain-check") as pool:
        puts = pool.map(lambda one: store.hash(one.name), some)
        return {file.name for file, put in zip(some, puts, strict=True) if put != Put(file.bytes, file.hash)}
