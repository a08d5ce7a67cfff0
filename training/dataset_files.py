"""The files of a dataset: those of a local folder are read where they lie, others through the cache of the machine."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..schemas.errors import ConfigError, InputError, IntegrityError
from ..schemas.files.copy_cache import Copies
from ..schemas.files.foreign import LISTING_BYTES, open_regular, read_regular
from ..schemas.files.remote import Remote

CACHE_BYTES = 64 << 30


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
                raise _of_another_size(where, found, size)
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


def _of_another_size(where: str, found: int, size: int) -> IntegrityError:
    return IntegrityError(
        f"{where} has {found:,} bytes, but the manifest says {size:,}; packtrain verify --repair rebuilds it"
    )


class DatasetFiles:
    """The files of a dataset, local or remote. Reads nothing before it is asked. Safe in threads.

    Args:
        where: a local folder, a `file://` URL, or a URL of an object store, of the web or of fsspec.
        cache: folder for remote files, by default `user_folder()`.
        cache_bytes: maximum bytes of the cache, including files of other datasets and processes.
        storage_options: see `Remote`: for object stores obstore's, such as credentials and endpoints.

    Raises:
        ConfigError: the cache may hold nothing. Every method raises it for an unknown protocol or option, or if a
            package is missing.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        text = str(where)
        scheme = urlsplit(text).scheme if "://" in text and not isinstance(where, Path) else ""
        self.where = text
        self.folder = Path(unquote(text.partition("://")[2]) if scheme else where)
        self.is_local = scheme in ("", "file", "local")
        if not self.is_local:
            if cache_bytes < 1:
                raise ConfigError(f"cache_bytes={cache_bytes}: it must hold at least the files in use")
            self._remote, self._copies = Remote(text, storage_options, resume="resume"), Copies(cache, cache_bytes)

    def url(self, name: str) -> str:
        """A file's address for messages, without passwords and signatures."""
        return str(self.folder / name) if self.is_local else self._remote.where(name)

    def read(self, name: str) -> bytes:
        """A small file.

        Raises:
            FileNotFoundError: there is none.
            IntegrityError: it is not a file of the folder.
            StoreError: access is denied, or the store fails.
        """
        if not self.is_local:
            return self._remote.read(name)
        with self._refusals(name):
            return read_regular(self.folder / name, LISTING_BYTES, inside=[self.folder])

    def map(self, name: str, bytes: int, hash: str) -> MappedFile:
        """A file. Of a local one only the size is compared; `packtrain verify --deep` compares hashes.

        Raises:
            IntegrityError: it has another content, or is no regular file inside of the folder.
            InputError: it is missing at its URL.
            StoreError: it is shorter at its URL or may not be read, or the cache cannot hold it.
        """
        try:
            if self.is_local:
                with self._refusals(name), open_regular(self.folder / name, inside=[self.folder]) as file:
                    descriptor = os.dup(file.fileno())
            else:
                fetch = self._remote.download
                descriptor = self._copies.open(hash, bytes, lambda path: fetch(name, path, bytes, hash))
        except FileNotFoundError as error:
            if not self.is_local:
                raise InputError(
                    f"there is no {self.url(name)}; the dataset was moved or copied incompletely: give its location"
                ) from error
            raise IntegrityError(f"{self.url(name)} is missing; packtrain verify --repair rebuilds it") from None
        return MappedFile(descriptor, bytes, self.url(name))

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        """What is no regular file of the folder, or a link to itself, is damage. A missing file is the caller's."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            raise
        except OSError as error:
            raise IntegrityError(
                f"{self.url(name)} cannot be read: {error.strerror or error}; packtrain verify --repair rebuilds it"
            ) from error
