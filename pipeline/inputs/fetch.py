"""Remote files: found, and copied into the cache before they are cut."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import blake3

from ...schemas.errors import ConfigError, InputError
from ...schemas.files.clients import WEB, filesystem, shown, web
from ...schemas.files.copy_cache import Copies
from ...schemas.files.remote import Remote, RemoteError, describe
from ...schemas.fingerprint import fingerprint
from .file_kinds import is_data, is_text
from .found import Found

_LOOKS = 3
"""Attempts to find a file; few, so that a misspelt name is reported quickly."""
_MARKS = ("ETag", "etag", "e_tag", "md5Hash", "md5", "sha256", "version_id", "VersionId", "mtime", "LastModified",
          "last_modified", "updated", "created", "Last-Modified", "oid")  # fmt: skip


def find_urls(text: str, where: str) -> list[Found]:
    """The files of a URL: itself, the matches of a pattern, or a folder's files.

    Raises:
        ConfigError: there is none, or fsspec does not know the protocol.
        InputError: the store cannot be reached.
    """
    try:
        found = Remote(text, attempts=_LOOKS).ask("", lambda: _look(text))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {text}; check the spelling") from None
    except RemoteError as error:
        raise _unreachable(f"{where}: {text}", error) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not found:
        raise ConfigError(f"{where}: no data files match {text}; check the pattern")
    return found


def _unreachable(what: str, error: Exception) -> InputError:
    return InputError(
        f"{what} cannot be reached or read ({describe(error.__cause__ or error)}); check the connection, the name and "
        "the rights, or copy the file and name the copy"
    )


def _look(url: str) -> list[Found]:
    """See `find_urls`."""
    if urlsplit(url).scheme in WEB:
        with web(url, {}) as answer:
            return [_found(url, answer.length, dict(answer.headers))]
    fs, path = filesystem(url)
    return [_found(fs.unstrip_protocol(name), info.get("size"), info) for name, info in _infos(fs, path).items()]


def _found(url: str, size: int | None, about: dict[str, Any]) -> Found:
    return Found(url, -1 if size is None else int(size), _stamp(about), origin=shown(url))


def _stamp(info: dict[str, Any]) -> int:
    """A number that changes with the store's metadata of the content; 0 if there is none."""
    marks = [f"{key}={info[key]}" for key in _MARKS if info.get(key) is not None]
    return int.from_bytes(blake3.blake3("\n".join(marks).encode()).digest(7)) if marks else 0


def _infos(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    """The store's metadata of each file, by its path."""
    if set("*?[") & set(path):
        return {name: info for name, info in sorted(fs.glob(path, detail=True).items()) if info["type"] == "file"}
    info = fs.info(path)
    if info["type"] == "file":
        return {path: info}
    if info["type"] != "directory":
        raise ConfigError(f"{path} is not a regular file; write its rows to a file, and name that")
    every, above = fs.find(path, detail=True), len(path.rstrip("/"))
    names = [name for name in sorted(every) if not any(part.startswith((".", "_")) for part in name[above:].split("/"))]
    names = [name for name in names if is_data(name)] or [name for name in names if is_text(name)]
    return {name: every[name] for name in names}


def fetch(url: str, size: int, stamp: int, cache: Path) -> Path:
    """The cache's copy of a URL's file, made if it is missing.

    Raises:
        InputError: it cannot be read, or its server does not say how large it is and when it changed.
        StoreError: the cache cannot be written, or the disk is full.
    """
    if size < 0 or not stamp:
        raise InputError(
            f"{shown(url)}: its server does not say how large it is and when it changed, so that a copy cannot be "
            "checked; download it, and name the copy"
        )
    try:
        return Copies(cache).copy(
            fingerprint([url, size, stamp]), size, lambda path: Remote(url).download("", path, size, None)
        )
    except (FileNotFoundError, RemoteError) as error:
        raise _unreachable(shown(url), error) from error
