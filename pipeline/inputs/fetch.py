"""Remote files: read through fsspec, and copied into the cache, named by their hash, before they are cut."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import blake3
import msgspec

from ...schemas.errors import ConfigError, InputError
from ...schemas.files.http_errors import describe
from ...schemas.files.remote import CutError, Remote, RemoteError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.names import check_name
from ..store.local import LocalStore
from .blocks import split_name
from .detect import is_data, is_mds, is_text

_CHUNK = 4 << 20
_COPIES = "remote"
"""The cache folder of copies and notes about them."""
_MOST = 1 << 40
"""Most bytes that are read of a file whose size the server does not say."""
_WEB = ("http", "https")
_LOOKS = 3
"""Attempts to find a file; few, so that a misspelt name is reported quickly."""
_MARKS = ("ETag", "etag", "e_tag", "md5Hash", "md5", "sha256", "version_id", "VersionId", "mtime", "LastModified",
          "last_modified", "updated", "created", "Last-Modified", "oid")  # fmt: skip


def find_urls(text: str, where: str) -> list[tuple[str, int, int]]:
    """(URL, size, stamp) of each file of a URL: of itself, of the matches of a pattern, or of a folder's files.

    Raises:
        ConfigError: there is none, or fsspec does not know the protocol.
        InputError: the store cannot be reached.
    """
    remote = Remote(text, attempts=_LOOKS, shared=True)

    def look(fs: Any, path: str, limit: dict[str, float]) -> list[tuple[str, int, int]]:
        found = []
        for info in _infos(fs, path, web):
            size = info.get("size")
            url = info["name"] if web else fs.unstrip_protocol(info["name"])
            found.append((url, -1 if size is None else int(size), _stamp(info)))
        return found

    web = remote.protocol in _WEB
    try:
        found = remote.ask("", look, parts=True)
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {text}; check the spelling") from None
    except RemoteError as error:
        raise InputError(
            f"{where}: {text} cannot be reached ({describe(error.__cause__ or error)}); check the connection, the name "
            "and the rights, or copy the file and name the copy"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not found:
        raise ConfigError(f"{where}: no data files match {text}; check the pattern")
    return found


def _infos(fs: Any, path: str, web: bool) -> list[dict[str, Any]]:
    """The store's metadata of each file."""
    if set("*?[") & set(path) and not web:
        return [info for info in map(fs.info, sorted(fs.glob(path))) if info["type"] == "file"]
    info = fs.info(path)
    if info["type"] == "file":
        return [info]
    if info["type"] != "directory":
        raise ConfigError(f"{path} is not a regular file; write its rows to a file, and name that")
    every = fs.find(path, detail=True)
    names = [name for name in sorted(every) if not _hidden(name, path)]
    if any(is_mds(name) for name in names):
        raise ConfigError(f"{path} holds MDS shards; docs/exchange.md shows how to convert them to Parquet")
    names = [name for name in names if is_data(name)] or [name for name in names if is_text(name)]
    return [every[name] for name in names]


def fetch(url: str, size: int, stamp: int, cache: Path) -> Path:
    """The cache's copy of a URL's file, made if it is missing.

    Raises:
        InputError: it cannot be read, keeps changing, or does not have the size that the store says.
    """
    store = LocalStore(cache)
    note = f"{_COPIES}/{fingerprint([url, size, stamp])}.json"
    if stamp and (kept := store.read(note)) is not None:
        with suppress(ValueError):  # a damaged note; the file is copied again
            name, length = decode_note(kept, tuple[str, int])
            copy = copy_of(name.removeprefix(f"{_COPIES}/"), store)
            if store.size(name) == length:
                return copy
    suffix = split_name(url.partition("?")[0].rpartition("/")[2])[1]
    remote = Remote(url, shared=True)
    try:
        if remote.protocol in _WEB and size >= 0:  # a server may send more than it announced
            name, length = _put(url, remote.pieces("", size), size, suffix, store)
        else:
            name, length = remote.ask("", lambda fs, path, limit: _copy(url, fs, path, size, suffix, store), parts=True)
    except (FileNotFoundError, RemoteError) as error:
        raise InputError(
            f"{url} cannot be read ({describe(error.__cause__ or error)}); check the connection and the rights, or "
            "copy the file and name the copy"
        ) from error
    if stamp:
        store.replace_bytes(note, msgspec.json.encode((name, length)))
    return store.path(name)


def copy_of(file: str, store: LocalStore) -> Path:
    """The path of a copy with this name in the cache.

    Raises:
        ValueError: the name, or a link there, leads elsewhere.
    """
    check_name(file)
    copy = store.path(f"{_COPIES}/{file}")
    if copy.is_symlink():
        raise ValueError(f"{copy} is a link")
    return copy


class _FarError(Exception):
    """The remote store failed with an error that could also come from the local disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _copy(url: str, fs: Any, path: str, size: int, suffix: str, store: LocalStore) -> tuple[str, int]:
    """Copy a file from the beginning; returns (name in the cache, bytes)."""
    try:
        return _put(url, _pieces(fs, path), size, suffix, store)
    except _FarError as error:
        raise error.error  # noqa: B904  # its own cause says more


def _put(url: str, pieces: Iterator[bytes], size: int, suffix: str, store: LocalStore) -> tuple[str, int]:
    """Put the content of a file into the cache; returns (name there, bytes)."""
    with store.draft(_COPIES) as draft:
        for data in pieces:
            draft.file.write(data)
            if draft.file.bytes > (size if size >= 0 else _MOST):
                break  # it may never end
        put = draft.result
        if size < 0 and put.bytes > _MOST:
            raise InputError(f"{url} sends more than {_MOST:,} bytes, and does not say how many; copy it yourself")
        if size >= 0 and put.bytes != size:
            received = f"more than {size:,}" if put.bytes > size else f"{put.bytes:,}"
            raise CutError(f"received {received} bytes, but the store announced {size:,}")
        name = f"{_COPIES}/{put.hash[:40]}{suffix}"
        store.put(draft, name, replace_damaged=True)
    return name, put.bytes


def _pieces(fs: Any, path: str) -> Iterator[bytes]:
    try:
        with fs.open(path, "rb", cache_type="readahead", block_size=_CHUNK) as file:
            while data := file.read(_CHUNK):
                yield data
    except OSError as error:
        raise _FarError(error) from error


def _hidden(name: str, root: str) -> bool:
    below = name.removeprefix(root.rstrip("/"))
    return any(part.startswith((".", "_")) for part in below.split("/") if part)


def _stamp(info: dict[str, Any]) -> int:
    """A number that changes with the store's metadata of the content; 0 if there is none."""
    marks = [f"{key}={info[key]}" for key in _MARKS if info.get(key) is not None]
    return int.from_bytes(blake3.blake3("\n".join(marks).encode()).digest(7)) if marks else 0
