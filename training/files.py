"""The files of a dataset: those of a local folder are read where they lie, others through the cache of the machine."""

import hashlib
import logging
import mmap
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..schemas.errors import ConfigError, InputError, IntegrityError, choice
from ..schemas.files.http_errors import describe
from ..schemas.files.remote import RefusedError, Remote, ShortError
from ..schemas.names import check_found
from ..schemas.units import duration, size
from .cache import ShardCache, has_content

CACHE_BYTES = 64 << 30
MANIFEST_BYTES = 1 << 30
"""Most bytes of a manifest: one of a billion rows has a tenth of it."""
_SHA256 = re.compile("[0-9a-f]{64}")
_LOG = logging.getLogger(__name__)


class Verify(StrEnum):
    """When the bytes of a local folder are compared with the hashes in the manifest. Downloads always are."""

    NEVER = "never"
    """Never; only sizes are compared. `packtrain verify --deep` compares all bytes."""
    FIRST = "first"
    """When this process first opens a file; that reads the whole file."""


class MappedFile:
    """A regular file of a known size, mapped for reading.

    Args:
        descriptor: of the open file; is closed.
        where: the file's address, for messages.

    Raises:
        IntegrityError: the file has another size.
    """

    def __init__(self, descriptor: int, size: int, where: str) -> None:
        self.size, self.where = size, where
        try:
            found = os.fstat(descriptor).st_size
            if found != size or not size:
                raise IntegrityError(
                    f"{where} has {found:,} bytes, but the manifest says {size:,}; "
                    "packtrain verify --repair rebuilds it"
                )
            # Not pa.memory_map, which makes the kernel read the whole file at once.
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.buffer: pa.Buffer = pa.py_buffer(self._map)

    def check(self) -> None:
        """Raise IntegrityError if the file was cut or has grown: reading behind its end would kill the process."""
        if self._map.size() != self.size:
            raise IntegrityError(
                f"{self.where} was changed while it was read: it has {self._map.size():,} bytes now, and had "
                f"{self.size:,}; packtrain verify --repair rebuilds it"
            )


class LocalFiles:
    """The files of a local folder. Sizes are compared, hashes if `verify` says so."""

    def __init__(self, folder: Path, where: str, verify: Verify = Verify.NEVER) -> None:
        self.folder, self.where, self.verify = folder, where, verify

    def url(self, name: str) -> str:
        """A file's address, for messages."""
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError if there is none, IntegrityError if it is not a file of the folder."""
        with open(self._open(name), "rb") as file:  # noqa: PTH123  # a descriptor
            return file.read()

    def map(self, name: str, bytes: int, sha256: str) -> MappedFile:
        """A file of this size and content.

        Raises:
            IntegrityError: it is missing, has another size or content, or is no regular file inside of the folder.
            InputError: it should be compared with its hash, and the manifest has none.
        """
        path = self.folder / name
        try:
            descriptor = self._open(name)
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error}; run packtrain verify on its folder") from error
        if self.verify is Verify.FIRST:
            self._compare(path, descriptor, sha256)
        return MappedFile(descriptor, bytes, self.url(name))

    def busy(self) -> list[str]:
        """The downloads in progress: none."""
        return []

    def _open(self, name: str) -> int:
        path = self.folder / name
        if path.exists():
            check_found(path, os.path.realpath(path), os.path.realpath(self.folder), regular=path.is_file())
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    @staticmethod
    def _compare(path: Path, descriptor: int, sha256: str) -> None:
        try:
            if not sha256:
                raise InputError(
                    f"the manifest has no SHA-256 of {path}; pack again with this version, or leave verify out"
                )
            if not has_content(path, descriptor, sha256):
                raise IntegrityError(
                    f"{path} is damaged: its SHA-256 is not {sha256[:12]}…, which the manifest says; "
                    "packtrain verify --repair rebuilds it"
                )
        except BaseException:
            os.close(descriptor)
            raise


class RemoteFiles:
    """The files below a URL, downloaded into the cache. Safe in threads and after a fork."""

    def __init__(self, remote: Remote, cache: ShardCache) -> None:
        self.remote, self.cache, self.where = remote, cache, remote.url
        self._busy: dict[str, tuple[float, int]] = {}
        """Of each file that is waited for: since when, and how many of its bytes have come."""

    def url(self, name: str) -> str:
        """A file's address for messages, without passwords and signatures."""
        return self.remote.where(name)

    def read(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError, InputError if access is denied, StoreError if the store fails."""
        with self._noted(name), self._explained(name):
            return self.remote.read(name, most=MANIFEST_BYTES)

    def map(self, name: str, bytes: int, sha256: str) -> MappedFile:
        """A file of this size and content.

        Raises:
            InputError: it is missing, may not be read, or the manifest has no hash of it.
            IntegrityError: it has another content.
            StoreError: the store failed, or the cache cannot hold the file.
        """
        if not sha256:
            raise InputError(
                f"the manifest has no SHA-256 of {self.url(name)}, so a download could not be checked: pack again with "
                "this version of packtrain, or copy the dataset to a local folder"
            )
        if not _SHA256.fullmatch(sha256):
            raise IntegrityError(f"the manifest of {self.where} is damaged: {sha256!r} is not a SHA-256")
        with self._noted(name), self._explained(name):
            descriptor = self.cache.open(sha256, bytes, lambda path: self._download(name, path, bytes, sha256))
        return MappedFile(descriptor, bytes, self.url(name))

    def busy(self) -> list[str]:
        """The downloads in progress, longest first: `s3://…: for 12.3 s, 4.0 MiB so far`."""
        now = time.monotonic()
        waits = sorted((began, name, done) for name, (began, done) in self._busy.copy().items())
        return [f"{self.url(name)}: for {duration(now - began)}, {size(done)} so far" for began, name, done in waits]

    def _download(self, name: str, path: Path, bytes: int, sha256: str) -> None:
        began = time.monotonic()
        for attempt in range(1, self.remote.attempts + 1):
            digest, done = hashlib.sha256(), 0
            with path.open("r+b") as file:
                pieces = self.remote.pieces(name, bytes)
                while data := self._next(pieces, name):
                    digest.update(data)
                    file.write(data)
                    done += len(data)
                    self._busy[name] = began, done
            if digest.hexdigest() == sha256:
                return
            _LOG.warning("%s arrived damaged, in attempt %d of %d", self.url(name), attempt, self.remote.attempts)
        raise IntegrityError(
            f"{self.url(name)}: its {bytes:,} bytes should have the SHA-256 {sha256}, but after {self.remote.attempts} "
            f"attempts the last download had {digest.hexdigest()}; the file is damaged, or has been replaced since its "
            "manifest was written: copy the dataset there again"
        )

    def _next(self, pieces: Iterator[bytes], name: str) -> bytes:
        """The next piece of a file; nothing at its end."""
        try:
            return next(pieces, b"")
        except FileNotFoundError as error:
            raise InputError(
                f"there is no {self.url(name)}; the dataset was moved or copied incompletely: give its location"
            ) from error

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
    def _noted(self, name: str) -> Iterator[None]:
        self._busy[name] = time.monotonic(), 0
        try:
            yield
        finally:
            self._busy.pop(name, None)


Files: TypeAlias = LocalFiles | RemoteFiles


def open_files(
    where: str | Path,
    *,
    cache: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    storage_options: dict[str, Any] | None = None,
    verify: str = Verify.NEVER,
) -> Files:
    """The files of a dataset, local or remote. Does not read anything yet.

    Args:
        where: a local folder, a `file://` URL, or any URL that fsspec knows.
        cache: folder for remote files, by default `user_folder()`.
        cache_bytes: maximum bytes of the cache, including files of other datasets and processes.
        storage_options: options of fsspec, such as credentials and endpoints.
        verify: see `Verify`.

    Raises:
        ConfigError: fsspec does not know the protocol, or a package is missing for it.
    """
    text, compared = str(where), choice("verify", verify, Verify)
    scheme = urlsplit(text).scheme if "://" in text and not isinstance(where, Path) else ""
    if scheme in ("", "file", "local"):
        return LocalFiles(Path(unquote(text.partition("://")[2]) if scheme else where), text, compared)
    if cache_bytes < 1:
        raise ConfigError(f"cache_bytes={cache_bytes}: it must hold at least the files in use")
    remote = Remote(text, storage_options, resume="resume")
    remote.filesystem()
    return RemoteFiles(remote, ShardCache(cache, cache_bytes))
