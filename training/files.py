"""The files of a dataset: those of a local folder are read where they lie, others through the cache of the machine."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..schemas.errors import ConfigError, InputError, IntegrityError
from ..schemas.files.copies import Copies
from ..schemas.files.remote import RefusedError, Remote, ShortError, describe
from ..schemas.names import check_found

CACHE_BYTES = 64 << 30
MANIFEST_BYTES = 1 << 30
"""Most bytes of a manifest: one of a billion rows has a tenth of it."""


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
    """The files of a local folder. Their sizes are compared; `packtrain verify --deep` compares hashes."""

    def __init__(self, folder: Path, where: str) -> None:
        self.folder, self.where = folder, where

    def url(self, name: str) -> str:
        """A file's address, for messages."""
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError if there is none, IntegrityError if it is not a file of the folder."""
        with open(self._open(name), "rb") as file:  # noqa: PTH123  # a descriptor
            return file.read()

    def map(self, name: str, bytes: int, hash: str) -> MappedFile:
        """A file of this size.

        Raises:
            IntegrityError: it is missing, has another size, or is no regular file inside of the folder.
        """
        path = self.folder / name
        try:
            descriptor = self._open(name)
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error}; run packtrain verify on its folder") from error
        return MappedFile(descriptor, bytes, self.url(name))

    def _open(self, name: str) -> int:
        path = self.folder / name
        if path.exists():
            check_found(path, os.path.realpath(path), os.path.realpath(self.folder), regular=path.is_file())
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class RemoteFiles:
    """The files below a URL, downloaded into the cache. Safe in threads."""

    def __init__(self, remote: Remote, cache: str | Path | None, cache_bytes: int) -> None:
        self.remote, self.cache_bytes, self.where = remote, cache_bytes, remote.url
        self.cache = Copies(cache, cache_bytes)

    def url(self, name: str) -> str:
        """A file's address for messages, without passwords and signatures."""
        return self.remote.where(name)

    def read(self, name: str) -> bytes:
        """A small file. Raises FileNotFoundError, InputError if access is denied, StoreError if the store fails."""
        with self._explained(name):
            return self.remote.read(name, MANIFEST_BYTES)

    def map(self, name: str, bytes: int, hash: str) -> MappedFile:
        """A file of this size and content.

        Raises:
            InputError: it is missing, or may not be read.
            IntegrityError: it has another content.
            StoreError: the store failed, or the cache cannot hold the file.
        """
        with self._explained(name):
            try:
                descriptor = self.cache.open(hash, bytes, lambda path: self.remote.download(name, path, bytes, hash))
            except FileNotFoundError as error:
                raise InputError(
                    f"there is no {self.url(name)}; the dataset was moved or copied incompletely: give its location"
                ) from error
        return MappedFile(descriptor, bytes, self.url(name))

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


Files: TypeAlias = LocalFiles | RemoteFiles


def open_files(
    where: str | Path,
    *,
    cache: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    storage_options: dict[str, Any] | None = None,
) -> Files:
    """The files of a dataset, local or remote. Does not read anything yet.

    Args:
        where: a local folder, a `file://` URL, or a URL of an object store, of the web or of fsspec.
        cache: folder for remote files, by default `user_folder()`.
        cache_bytes: maximum bytes of the cache, including files of other datasets and processes.
        storage_options: see `Remote`: for object stores obstore's, such as credentials and endpoints.

    Raises:
        ConfigError: the protocol or the options are unknown, or a package is missing.
    """
    text = str(where)
    scheme = urlsplit(text).scheme if "://" in text and not isinstance(where, Path) else ""
    if scheme in ("", "file", "local"):
        return LocalFiles(Path(unquote(text.partition("://")[2]) if scheme else where), text)
    if cache_bytes < 1:
        raise ConfigError(f"cache_bytes={cache_bytes}: it must hold at least the files in use")
    remote = Remote(text, storage_options, resume="resume")
    remote.require()
    return RemoteFiles(remote, cache, cache_bytes)
