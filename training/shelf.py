"""Where the files of a dataset come from: a local folder as it is, anything else through the cache."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ..schemas.errors import ConfigError, InputError, IntegrityError
from ..schemas.names import check_found
from ..schemas.units import duration, size
from .cache import CACHE_BYTES, Held, ShardCache
from .options import choice
from .part import Part
from .remote import Remote

__all__ = ["CACHE_BYTES", "Fetch", "Held", "LocalShelf", "RemoteShelf", "Shelf", "Verify", "open_shelf"]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file that is being brought here."""

    name: str
    url: str
    doing: str
    """Such as `downloading`, or whom it waits for."""
    seconds: float
    """Since it was asked for."""
    attempt: int
    bytes: int
    """That have come."""
    size: int
    """That it has; 0 where that is not known."""

    def __str__(self) -> str:
        """For a message, such as: `s3://…: downloading for 12.3 s, attempt 2, 4.0 MiB of 64.0 MiB`."""
        amount = f", {size(self.bytes)} of {size(self.size)}" if self.size else ""
        attempt = f", attempt {self.attempt}" if self.attempt else ""
        return f"{self.url}: {self.doing} for {duration(self.seconds)}{attempt}{amount}"


class Shelf(Protocol):
    """The files of one dataset."""

    where: str
    """As the person gave it."""

    def url(self, name: str) -> str:
        """A file's full address, for messages: without passwords and signatures."""

    def read(self, name: str) -> bytes:
        """A small file, whole. Raises FileNotFoundError where there is none."""

    def hold(self, name: str, bytes: int, sha256: str) -> Held:
        """A local file with this content, which stays until the `Held` is closed.

        Raises:
            InputError: a remote file is not there, or may not be read.
            IntegrityError: it has another size or content.
            StoreError: the store fails, or the cache has no room.
        """

    def busy(self) -> list[Fetch]:
        """What this process waits for, longest first."""


class Verify(StrEnum):
    """Whether bytes of a local folder are compared with the hashes in the manifest. Downloads always are."""

    NEVER = "never"
    """Sizes are; `packtrain verify --deep` compares all bytes."""
    FIRST = "first"
    """Of each file, when this process first opens it: it is read whole then."""


class LocalShelf:
    """A folder. Nothing is copied; sizes are checked, hashes as `verify` says."""

    def __init__(self, folder: Path, where: str, verify: Verify = Verify.NEVER) -> None:
        self.folder, self.where, self.verify = folder, where, verify
        self._verified: set[str] = set()

    def url(self, name: str) -> str:
        """See `Shelf`."""
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        """See `Shelf`."""
        self._check(name)
        return (self.folder / name).read_bytes()

    def hold(self, name: str, bytes: int, sha256: str) -> Held:
        """See `Shelf`. Raises IntegrityError where the file is missing, is another one, or lies elsewhere."""
        self._check(name)
        path = self.folder / name
        try:
            found = path.stat().st_size
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error}; run packtrain verify on its folder") from error
        if found != bytes:
            raise IntegrityError(
                f"{path} has {found:,} bytes, but the manifest says {bytes:,}; packtrain repair makes it again"
            )
        if self.verify is Verify.FIRST and name not in self._verified:
            self._compare(path, sha256)
            self._verified.add(name)
        return Held(path)

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
                "packtrain repair makes it again"
            )

    def _check(self, name: str) -> None:
        """Raises IntegrityError where something else than a file of the folder stands. It may be missing."""
        path = self.folder / name
        if path.exists():
            check_found(path, os.path.realpath(path), os.path.realpath(self.folder), regular=path.is_file())

    def busy(self) -> list[Fetch]:
        """See `Shelf`. A folder is never waited for."""
        return []


@dataclass(slots=True)
class _Progress:
    name: str
    size: int
    process: int = field(default_factory=os.getpid)
    began: float = field(default_factory=time.monotonic)
    doing: str = ""
    attempt: int = 0
    part: Part | None = None

    def does(self, what: str) -> None:
        self.doing = what

    def tried(self, attempt: int) -> None:
        self.attempt = attempt

    def snapshot(self, url: str) -> Fetch:
        """As it stands now."""
        written = self.part.written if self.part else 0
        seconds = time.monotonic() - self.began
        return Fetch(self.name, url, self.doing, seconds, self.attempt, written, self.size)


class RemoteShelf:
    """The files below a URL, brought into a cache. Safe in threads and after a fork; pickles as its arguments."""

    def __init__(self, remote: Remote, cache: ShardCache) -> None:
        self.remote, self.cache = remote, cache
        self.where = remote.where
        self._progress: dict[int, _Progress] = {}

    def url(self, name: str) -> str:
        """See `Shelf`."""
        return self.remote.url(name)

    def read(self, name: str) -> bytes:
        """See `Shelf`. Raises InputError where it may not be read, StoreError where the store fails."""
        with self._noted(_Progress(name, 0, doing="reading")):
            return self.remote.read(name)

    def hold(self, name: str, bytes: int, sha256: str) -> Held:
        """See `Shelf`."""
        if not sha256:
            raise InputError(
                f"the manifest has no SHA-256 of {self.url(name)}, so that it could not be checked after its way "
                "here: pack again with this version of packtrain, or copy the dataset to a local folder"
            )
        progress = _Progress(name, bytes)

        def download(part: Part) -> None:
            progress.part = part
            self.remote.download(name, part, sha256, progress.tried)

        with self._noted(progress):
            return self.cache.hold(sha256, bytes, download, progress.does)

    def busy(self) -> list[Fetch]:
        """See `Shelf`."""
        mine = [each for each in self._progress.copy().values() if each.process == os.getpid()]
        return [each.snapshot(self.url(each.name)) for each in sorted(mine, key=lambda each: each.began)]

    def __reduce__(self) -> tuple[type["RemoteShelf"], tuple[Remote, ShardCache]]:
        return RemoteShelf, (self.remote, self.cache)

    @contextmanager
    def _noted(self, progress: _Progress) -> Iterator[None]:
        self._progress[id(progress)] = progress
        try:
            yield
        finally:
            del self._progress[id(progress)]


def open_shelf(
    where: str | Path,
    *,
    cache: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    attempts: int = 6,
    storage_options: dict[str, Any] | None = None,
    request_seconds: float = 60.0,
    verify: str = Verify.NEVER,
) -> Shelf:
    """The files of a dataset, wherever it lies. Nothing is read yet.

    Args:
        where: a local folder, a `file://` URL, or any URL that fsspec knows.
        cache: folder for remote files; see `ShardCache` for the default.
        cache_bytes: that the cache may hold, with what other datasets and processes keep there.
        attempts: failures in a row after which a remote file is given up.
        storage_options: for fsspec: credentials, endpoints and the like.
        request_seconds: after which one request to a store counts as failed.
        verify: see `Verify`.

    Raises:
        ConfigError: fsspec does not know the protocol, or a package is missing for it.
    """
    text, local = str(where), choice("verify", verify, Verify)
    scheme = urlsplit(text).scheme if "://" in text and not isinstance(where, Path) else ""
    if scheme in ("file", "local"):
        return LocalShelf(Path(unquote(text.partition("://")[2])), text, local)
    if not scheme:
        return LocalShelf(Path(where), text, local)
    if cache_bytes < 1:
        raise ConfigError(f"cache_bytes={cache_bytes}: it must hold at least the files in use")
    remote = Remote(text, storage_options, attempts=attempts, request_seconds=request_seconds)
    return RemoteShelf(remote, ShardCache(cache, cache_bytes))
