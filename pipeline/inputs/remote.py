"""Files behind a URL: whatever fsspec reads. They are copied into the cache, by their content, before they are cut."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blake3
import msgspec

from ...schemas.errors import ConfigError, InputError, PacktrainError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.names import check_name
from ..store import LocalStore
from .blocks import split_name
from .containers import is_data, is_text

TRIES = 3
_CHUNK = 4 << 20
_CONNECT, _READ = 10, 60
"""Seconds: nobody waits for minutes to hear that a name is misspelt."""
_MARKS = ("ETag", "etag", "e_tag", "md5Hash", "md5", "sha256", "version_id", "VersionId", "mtime", "LastModified",
          "last_modified", "updated", "created", "Last-Modified", "oid")  # fmt: skip
_EXTRAS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


def find_urls(text: str, where: str) -> Iterator[tuple[str, int, int]]:
    """(URL, size, stamp) of each file that a URL names: itself, what a pattern matches, or what a folder holds.

    Raises:
        ConfigError: there is none, or fsspec knows no such protocol.
        InputError: the store cannot be reached.
    """
    protocol = text.partition("://")[0]
    with _explained(text, where):
        fs, path = _open(text)
        if set("*?[") & set(path) and protocol not in ("http", "https"):
            names = sorted(fs.glob(path))
            infos = [info for info in (fs.info(name) for name in names) if info["type"] == "file"]
        else:
            info = fs.info(path)
            if info["type"] == "directory":
                every = fs.find(path, detail=True)
                names = [name for name in sorted(every) if not _hidden(name, path)]
                names = [name for name in names if is_data(name)] or [name for name in names if is_text(name)]
                infos = [every[name] for name in names]
            elif info["type"] != "file":
                raise ConfigError(f"{where}: {text} is not a regular file; write its rows to a file, and name that")
            else:
                infos = [info]
        if not infos:
            raise ConfigError(f"{where}: no data file is like {text}; check the pattern")
        for info in infos:
            url = info["name"] if protocol in ("http", "https") else fs.unstrip_protocol(info["name"])
            size = info.get("size")
            yield url, -1 if size is None else int(size), _stamp(info)


def fetch(url: str, size: int, stamp: int, cache: Path) -> Path:
    """The file in the cache that holds what a URL does; copied if it is not there yet.

    Raises:
        InputError: it cannot be read, changes all the time, or is not as long as the store says.
    """
    store = LocalStore(cache)
    note = f"remote/{fingerprint([url, size, stamp])}.json"
    if stamp and (kept := store.read(note)) is not None:
        name, length = decode_note(kept, tuple[str, int])
        check_name(name)
        if store.size(name) == length:
            return store.path(name)
    suffix = split_name(url.partition("?")[0].rpartition("/")[2])[1]
    for number in range(TRIES):
        try:
            name, length = _copy(url, size, suffix, store)
            break
        except _ReadError as error:
            if number + 1 == TRIES:
                raise InputError(
                    f"{url} cannot be read, after {TRIES} tries ({error}); check the connection and the rights, or "
                    "copy the file and name the copy"
                ) from error
            time.sleep(0.5 * 3**number)
    if stamp:
        store.replace_bytes(note, msgspec.json.encode((name, length)))
    return store.path(name)


class _ReadError(Exception):
    """The store failed, or gave fewer or more bytes than it says there are."""


def _copy(url: str, size: int, suffix: str, store: LocalStore) -> tuple[str, int]:
    with store.draft("remote") as draft:
        for data in _pieces(url):
            draft.file.write(data)
        put = draft.result
        if size >= 0 and put.bytes != size:
            raise _ReadError(f"{put.bytes:,} bytes came, {size:,} were announced")
        name = f"remote/{put.hash[:40]}{suffix}"
        store.put(draft, name, mend=True)
    return name, put.bytes


def _pieces(url: str) -> Iterator[bytes]:
    """What a URL holds. Errors of the far side are told from those of our own disk."""
    try:
        fs, path = _open(url)
        with fs.open(path, "rb", cache_type="readahead", block_size=_CHUNK) as file:
            while data := file.read(_CHUNK):
                yield data
    except Exception as error:  # each file system of fsspec has errors of its own
        raise _ReadError(f"{type(error).__name__}: {error}") from error


def _open(text: str) -> tuple[Any, str]:
    import fsspec

    protocol = text.partition("://")[0]
    options: dict[str, Any] = {}
    if protocol in ("http", "https"):
        import aiohttp

        options["client_kwargs"] = {
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_READ),
            "trust_env": True,
        }
    elif protocol in ("s3", "s3a"):
        options["config_kwargs"] = {
            "connect_timeout": _CONNECT,
            "read_timeout": _READ,
            "retries": {"max_attempts": 2},
        }
    options["use_listings_cache"] = False
    fs, path = fsspec.core.url_to_fs(text, **options)
    return fs, path


def _hidden(name: str, root: str) -> bool:
    below = name.removeprefix(root.rstrip("/"))
    return any(part.startswith((".", "_")) for part in below.split("/") if part)


def _stamp(info: dict[str, Any]) -> int:
    """A number that changes with what the store says of the content; 0 where it says nothing."""
    marks = [f"{key}={info[key]}" for key in _MARKS if info.get(key) is not None]
    return int.from_bytes(blake3.blake3("\n".join(marks).encode()).digest(7)) if marks else 0


@contextmanager
def _explained(text: str, where: str) -> Iterator[None]:
    protocol = text.partition("://")[0]
    try:
        yield
    except PacktrainError:
        raise
    except FileNotFoundError as error:
        # Over HTTP, fsspec says so of everything; the cause tells.
        cause = error.__cause__
        if cause is not None and getattr(cause, "status", 0) not in (404, 410) and not isinstance(cause, type(error)):
            raise _unreachable(text, where, cause) from error
        raise ConfigError(f"{where}: there is no file {text}; check the spelling") from None
    except (ImportError, ValueError) as error:
        said = str(error)
        if isinstance(error, ImportError):
            need = _EXTRAS.get(protocol, "")
            mend = f"install {need}" if need else "install what it names"
            raise ConfigError(f"{where}: {text}: {said}; {mend}") from None
        raise ConfigError(f"{where}: {text} is no URL that fsspec can read ({said}); check its beginning") from None
    except Exception as error:  # each file system of fsspec has errors of its own
        raise _unreachable(text, where, error) from error


def _unreachable(text: str, where: str, error: BaseException) -> InputError:
    return InputError(
        f"{where}: {text} cannot be reached ({str(error) or type(error).__name__}); check the connection, the name and "
        "the rights, or copy the file and name the copy"
    )
