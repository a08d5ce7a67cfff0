"""Opens the files of a dataset: a local folder is read directly, anything else through the cache."""

import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ...schemas.config.hints import choice
from ...schemas.errors import ConfigError, InputError, IntegrityError
from ...schemas.files.http_errors import describe
from ...schemas.files.remote import ATTEMPTS, REQUEST_SECONDS, RefusedError, Remote, ShortError
from ...schemas.names import check_found
from ...schemas.units import duration, size
from .cache import CACHE_BYTES, CachedFile, ShardCache
from .partial_download import PartialDownload

__all__ = [
    "CACHE_BYTES",
    "CachedFile",
    "Fetch",
    "LocalShardFiles",
    "RemoteShardFiles",
    "ShardFiles",
    "Verify",
    "open_shard_files",
]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A download in progress."""

    name: str
    url: str
    doing: str
    """The current activity, such as `downloading`, or what the download waits for."""
    seconds: float
    """Seconds since the request."""
    attempt: int
    bytes: int
    """Bytes received."""
    size: int
    """Total bytes of the file; 0 if unknown."""

    def __str__(self) -> str:
        """Describe the download for a message: `s3://…: downloading for 12.3 s, attempt 2, 4.0 MiB of 64.0 MiB`."""
        amount = f", {size(self.bytes)} of {size(self.size)}" if self.size else ""
        attempt = f", attempt {self.attempt}" if self.attempt else ""
        return f"{self.url}: {self.doing} for {duration(self.seconds)}{attempt}{amount}"


class ShardFiles(Protocol):
    """The files of one dataset."""

    where: str
    """The location as the user gave it."""

    def url(self, name: str) -> str:
        """Return a file's full address for messages, without passwords and signatures."""

    def read(self, name: str) -> bytes:
        """Read a small file. Raises FileNotFoundError if there is none."""

    def hold(self, name: str, bytes: int, sha256: str) -> CachedFile:
        """Return a local file with this content, which is kept until it is closed.

        Raises:
            InputError: a remote file is missing, or may not be read.
            IntegrityError: the file has another size or content.
            StoreError: the store failed, or the cache is full.
        """

    def busy(self) -> list[Fetch]:
        """Downloads that this process waits for, longest first."""


class Verify(StrEnum):
    """When to compare the bytes of a local folder with the hashes in the manifest. Downloads are always compared."""

    NEVER = "never"
    """Never; only sizes are compared. `packtrain verify --deep` compares all bytes."""
    FIRST = "first"
    """When this process first opens a file; that reads the whole file."""


class LocalShardFiles:
    """A local folder. Nothing is copied; sizes are checked, hashes depending on `verify`."""

    def __init__(self, folder: Path, where: str, verify: Verify = Verify.NEVER) -> None:
        self.folder, self.where, self.verify = folder, where, verify
        self._verified: set[str] = set()

    def url(self, name: str) -> str:
        """See `ShardFiles`."""
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        """See `ShardFiles`."""
        self._check(name)
        return (self.folder / name).read_bytes()

    def hold(self, name: str, bytes: int, sha256: str) -> CachedFile:
        """See `ShardFiles`. Raises IntegrityError if the file is missing, has another content, or is outside of the
        folder."""
        self._check(name)
        path = self.folder / name
        try:
            found = path.stat().st_size
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error}; run packtrain verify on its folder") from error
        if found != bytes:
            raise IntegrityError(
                f"{path} has {found:,} bytes, but the manifest says {bytes:,}; packtrain repair rebuilds it"
            )
        if self.verify is Verify.FIRST and name not in self._verified:
            self._compare(path, sha256)
            self._verified.add(name)
        return CachedFile(path)

    @staticmethod
    def _compare(path: Path, sha256: str) -> None:
        if not sha256:
            raise InputError(
                f"the manifest has no SHA-256 of {path}; pack again with this version, or leave verify out"
            )
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error}; run packtrain verify on its folder") from error
        if found != sha256:
            raise IntegrityError(
                f"{path} is damaged: its SHA-256 begins with {found[:12]}, but the manifest says {sha256[:12]}; "
                "packtrain repair rebuilds it"
            )

    def _check(self, name: str) -> None:
        """Raise IntegrityError if the path is not a regular file inside the folder. A missing file is accepted."""
        path = self.folder / name
        if path.exists():
            check_found(path, os.path.realpath(path), os.path.realpath(self.folder), regular=path.is_file())

    def busy(self) -> list[Fetch]:
        """See `ShardFiles`. Never waits."""
        return []


@dataclass(slots=True)
class _DownloadProgress:
    name: str
    size: int
    process: int = field(default_factory=os.getpid)
    began: float = field(default_factory=time.monotonic)
    doing: str = ""
    attempt: int = 0
    part: PartialDownload | None = None

    def does(self, what: str) -> None:
        self.doing = what

    def tried(self, _: int = 0) -> None:
        self.attempt += 1

    def snapshot(self, url: str) -> Fetch:
        """Return the current state."""
        written = self.part.written if self.part else 0
        seconds = time.monotonic() - self.began
        return Fetch(self.name, url, self.doing, seconds, self.attempt, written, self.size)


class RemoteShardFiles:
    """The files below a URL, downloaded into a cache. Safe in threads and after a fork; pickled as its arguments."""

    def __init__(self, remote: Remote, cache: ShardCache) -> None:
        self.remote, self.cache = remote, cache
        self.where = remote.url
        self._progress: dict[int, _DownloadProgress] = {}

    def url(self, name: str) -> str:
        """See `ShardFiles`."""
        return self.remote.where(name)

    def read(self, name: str) -> bytes:
        """See `ShardFiles`. Raises InputError if access is denied, StoreError if the store fails."""
        with self._noted(_DownloadProgress(name, 0, doing="reading")), self._explained(name):
            return self.remote.read(name)

    def hold(self, name: str, bytes: int, sha256: str) -> CachedFile:
        """See `ShardFiles`."""
        if not sha256:
            raise InputError(
                f"the manifest has no SHA-256 of {self.url(name)}, so it could not be checked after the "
                "download: pack again with this version of packtrain, or copy the dataset to a local folder"
            )
        progress = _DownloadProgress(name, bytes)

        def download(part: PartialDownload) -> None:
            progress.part = part
            self._download(name, part, sha256, progress)

        with self._noted(progress), self._explained(name):
            try:
                return self.cache.hold(sha256, bytes, download, progress.does)
            except FileNotFoundError as error:
                raise InputError(
                    f"there is no {self.url(name)}; the dataset was moved or copied incompletely: give its location"
                ) from error

    def busy(self) -> list[Fetch]:
        """See `ShardFiles`."""
        mine = [each for each in self._progress.copy().values() if each.process == os.getpid()]
        return [each.snapshot(self.url(each.name)) for each in sorted(mine, key=lambda each: each.began)]

    def __reduce__(self) -> tuple[type["RemoteShardFiles"], tuple[Remote, ShardCache]]:
        return RemoteShardFiles, (self.remote, self.cache)

    def _download(self, name: str, part: PartialDownload, sha256: str, progress: "_DownloadProgress") -> None:
        for attempt in range(1, self.remote.attempts + 1):
            part.restart()
            progress.tried()
            for data in self.remote.pieces(name, part.size, progress.tried):
                part.write(data)
            if part.sha256 == sha256:
                return
            _LOG.warning("%s arrived damaged, in attempt %d of %d", self.url(name), attempt, self.remote.attempts)
        raise IntegrityError(
            f"{self.url(name)}: its {part.size:,} bytes should have the SHA-256 {sha256}, but after "
            f"{self.remote.attempts} attempts the last download had {part.sha256}; the file is damaged, or has been "
            "replaced since "
            "its manifest was written: copy the dataset there again"
        )

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn errors that only the user can fix into `InputError` or `IntegrityError`."""
        try:
            yield
        except RefusedError as error:
            raise InputError(
                f"{self.url(name)} may not be read ({describe(error.__cause__ or error)}); give credentials in "
                "storage_options or the environment. Some stores answer this for a missing file"
            ) from error
        except ShortError as error:
            raise IntegrityError(
                f"{self.url(name)} has another length than its manifest says: {describe(error.__cause__ or error)}; "
                "the file was cut, or replaced: copy the dataset there again"
            ) from error

    @contextmanager
    def _noted(self, progress: _DownloadProgress) -> Iterator[None]:
        self._progress[id(progress)] = progress
        try:
            yield
        finally:
            del self._progress[id(progress)]


def open_shard_files(
    where: str | Path,
    *,
    cache: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    attempts: int = ATTEMPTS,
    storage_options: dict[str, Any] | None = None,
    request_seconds: float = REQUEST_SECONDS,
    verify: str = Verify.NEVER,
) -> ShardFiles:
    """Open the files of a dataset, local or remote. Does not read anything yet.

    Args:
        where: a local folder, a `file://` URL, or any URL that fsspec knows.
        cache: folder for remote files; see `ShardCache` for the default.
        cache_bytes: maximum bytes of the cache, including files of other datasets and processes.
        attempts: number of consecutive failures after which reading a remote file fails.
        storage_options: options of fsspec, such as credentials and endpoints.
        request_seconds: time limit of one request to a store.
        verify: see `Verify`.

    Raises:
        ConfigError: fsspec does not know the protocol, or a package is missing for it.
    """
    text, local = str(where), choice("verify", verify, Verify)
    scheme = urlsplit(text).scheme if "://" in text and not isinstance(where, Path) else ""
    if scheme in ("file", "local"):
        return LocalShardFiles(Path(unquote(text.partition("://")[2])), text, local)
    if not scheme:
        return LocalShardFiles(Path(where), text, local)
    if cache_bytes < 1:
        raise ConfigError(f"cache_bytes={cache_bytes}: it must hold at least the files in use")
    remote = Remote(text, storage_options, attempts=attempts, request_seconds=request_seconds, resume="resume")
    remote.filesystem()
    return RemoteShardFiles(remote, ShardCache(cache, cache_bytes))
