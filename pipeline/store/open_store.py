"""Opens a place, a path or a URL, as a store, and marks caches as such: only a marked folder is cleaned."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from ...schemas.errors import ConfigError, OutputError
from ...schemas.escape import without_secrets
from ...schemas.files.foreign import open_regular
from ...schemas.files.remote_clients import STORE_PROTOCOLS
from .local import LocalStore
from .local import Store as Store
from .object_store import ObjectStore

_CONCURRENT_REQUESTS = 32
"""To a remote store; each takes some hundredths of a second."""
_CACHE_FOLDER = ".packtrain-cache"
CACHE_TAG = "CACHEDIR.TAG"
"""Marks a cache. Backup and search programs also know this name: https://bford.info/cachedir/"""
CACHE_FOLDERS = (
    "blocks",
    "copies",
    "data",
    "encoded",
    "engines",
    "hub",
    "contamination",
    "scans",
    "specs",
    "tokenizers",
)
"""The folders that packtrain makes in a cache. A folder with anything else is not marked."""
# The first line is what the convention of CACHEDIR.TAG asks for; the second says that the cache is ours.
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of packtrain."
_ADVICE = b" Everything in it can be made again: packtrain clean removes what is old.\n"
# At least two letters, so that `C://` is no URL.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def is_url(text: str) -> bool:
    """Whether a place is a URL, not a path."""
    return _URL.match(text) is not None


def resolve_place(text: str, base: Path) -> str:
    """Make a configured place absolute: URLs stay, relative paths start at `base`.

    Args:
        text: a path or a URL.
        base: the folder at which relative paths begin.

    Raises:
        ConfigError: the URL has no bucket, or the path has a NUL character.
    """
    if "\0" in text:
        raise ConfigError(f"{text!r} has a NUL character, which no file's name has; check the spelling")
    if not is_url(text):
        return str((base / text).absolute())
    if text.startswith("file://"):
        return str(Path(unquote(urlsplit(text).path)).absolute())
    has_no_path = not text.partition("://")[2].strip("/")
    # `s3:///folder` has a path, and no bucket.
    has_no_bucket = urlsplit(text).scheme in STORE_PROTOCOLS and not urlsplit(text).netloc
    if has_no_path or has_no_bucket:
        raise ConfigError(f"{text} has no bucket; write it as s3://bucket/folder")
    return text.rstrip("/")


def cache_root(cache: str | None, out: str, base: Path) -> str:
    """Return the path or URL of the cache: the configuration's `cache`, or a place beside the output.

    Args:
        cache: as configured; None if it is not.
        out: the absolute path or the URL of the output, as `resolve_place` returns it.
        base: the folder at which relative paths begin.

    Raises:
        ConfigError: the output is a whole bucket, which has nothing beside it.
    """
    if cache is not None:
        return resolve_place(cache, base)
    if not is_url(out):
        return str(Path(out).parent / _CACHE_FOLDER)
    parent, _, name = out.rpartition("/")
    # Of `s3://bucket`, the parent is `s3:/`; of `s3://bucket/`, the name is empty.
    if not name or parent.endswith((":/", "//")):
        raise ConfigError(f"out: {out} is a whole bucket; name a folder in it, such as {out.rstrip('/')}/packed")
    return f"{parent}/{_CACHE_FOLDER}"


def is_cache(folder: Path) -> bool:
    """Whether packtrain has marked a folder as its cache."""
    try:
        with open_regular(folder / CACHE_TAG) as file:
            return bool(file.read(len(_SIGNATURE)) == _SIGNATURE)
    except OSError:
        return False


def mark_cache(cache: LocalStore) -> None:
    """Mark the cache folder, unless it contains anything else. Does nothing if it is read-only."""
    with suppress(OSError):
        names = [path.name for path in cache.root.glob("*")]
        # A folder of the user's, named as `cache` by mistake, must never be cleaned.
        if CACHE_TAG not in names and all(name in CACHE_FOLDERS or name.startswith(".") for name in names):
            cache.put_bytes(CACHE_TAG, _SIGNATURE + _ADVICE)


WRITABLE_STORES: dict[str, Callable[[str], Store]] = dict.fromkeys(STORE_PROTOCOLS, ObjectStore)
"""Protocol of URLs that can be written → what opens a store there. `ObjectStore` opens other URLs, too, but can
only read them."""


def open_store(place: str | Path) -> Store:
    """The store at a place, as returned by `resolve_place`."""
    if not is_url(str(place)):
        return LocalStore(Path(place))
    return WRITABLE_STORES.get(urlsplit(str(place)).scheme, ObjectStore)(str(place))


def require_writable(place: str) -> None:
    """Refuse a URL that can only be read. Does not ask the server.

    Raises:
        OutputError: the message says what to use instead.
    """
    protocol = urlsplit(place).scheme
    if is_url(place) and protocol not in WRITABLE_STORES:
        raise OutputError(
            f"{without_secrets(place)}: {protocol}:// can be read, but not written. Use a local or shared folder, or a "
            "bucket of S3, Google Cloud or Azure, or of a store that speaks S3, such as MinIO, Ceph or Cloudflare R2"
        )


def ask_all(store: Store, question: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Ask the store about each item, in parallel if it is remote. Returns the answers in order.

    Args:
        question: asks the store about one item; called in threads.
    """
    if isinstance(store, LocalStore):
        return [question(item) for item in items]
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS, thread_name_prefix="packtrain-store") as pool:
        return list(pool.map(question, items))
