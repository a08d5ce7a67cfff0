"""The files of a dataset. Files of a local folder are read where they lie, others through the cache of the machine."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..errors import ConfigError, InputError, IntegrityError, PacktrainError
from ..files.copy_cache import Copies
from ..files.foreign import LISTING_BYTES, READ_AHEAD, open_regular, read_regular
from ..files.remote import RUN_AGAIN, Remote
from .manifest import FileRecord

CACHE_BYTES = 64 << 30
"""Bytes of the cache of remote files, unless a caller says otherwise: 64 GiB."""


class MappedFile:
    """A regular file of a known size, mapped for reading.

    Args:
        descriptor: of the open file; is closed.
        size: its bytes, as the manifest says.
        where: the file's address, for messages.
        ahead: let the kernel read the whole file at once, for callers that use all of it.

    Raises:
        IntegrityError: the file has another size.
    """

    def __init__(self, descriptor: int, size: int, where: str, *, ahead: bool = False) -> None:
        self.size = size
        self.where = where
        try:
            actual = os.fstat(descriptor).st_size
            if actual != size or not size:  # an empty file cannot be mapped, and no file of a dataset is empty
                raise IntegrityError(
                    f"{where} has {actual:,} bytes, but the manifest says {size:,}; packtrain verify --repair rebuilds "
                    "it"
                )
            # Not pa.memory_map, which makes the kernel read the whole file at once.
            flags = mmap.MAP_SHARED | (READ_AHEAD if ahead else 0)
            self._map = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)  # a mapping keeps the file open by itself
        self.buffer: pa.Buffer = pa.py_buffer(self._map)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What pyarrow raises over the content of this file becomes an IntegrityError that names it."""
        try:
            yield
        except PacktrainError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise IntegrityError(
                f"{self.where} cannot be read: {error}; packtrain verify --repair rebuilds it"
            ) from error

    def check(self) -> None:
        """Raise IntegrityError if the file was cut or has grown: reading behind its end would kill the process."""
        if self._map.size() != self.size:
            raise IntegrityError(
                f"{self.where} was changed while it was read: it has {self._map.size():,} bytes now, and had "
                f"{self.size:,}; packtrain verify --repair rebuilds it"
            )


def require_columns(actual: pa.Schema, expected: pa.Schema) -> None:
    """Raise ValueError for other names or types. Whether a column may be null is not compared."""
    if [(field.name, field.type) for field in actual] != [(field.name, field.type) for field in expected]:
        raise ValueError(f"it has the wrong columns: {actual.names}")


class DatasetFiles:
    """The files of a dataset, local or remote. Reads nothing before it is asked. Safe in threads.

    Args:
        address: a local folder, a `file://` URL, or a URL of an object store, of the web or of fsspec.
        cache: folder for remote files, by default `user_folder()`.
        cache_bytes: maximum bytes of the cache, including files of other datasets and processes; None without limit.
        storage_options: options of the store, such as credentials and endpoints; for object stores those of obstore.
        resume: what to do after a temporary failure, for messages.

    Raises:
        ConfigError: `cache_bytes` is below 1. Every method raises it for an unknown protocol or option, or if a package
            is missing.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int | None = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
        resume: str = RUN_AGAIN,
    ) -> None:
        self.address = str(address)
        is_url = "://" in self.address and not isinstance(address, Path)
        scheme = urlsplit(self.address).scheme if is_url else ""
        # The path of `file:///data/my%20set` is `/data/my set`. Of a remote address nothing uses it.
        self.folder = Path(unquote(self.address.partition("://")[2])) if scheme else Path(address)
        self.is_local = scheme in ("", "file", "local")
        if not self.is_local:
            if cache_bytes is not None and cache_bytes < 1:
                raise ConfigError(f"cache_bytes={cache_bytes}: it must hold at least the files in use")
            self._remote = Remote(self.address, storage_options, resume=resume)
            self._copies = Copies(cache, cache_bytes)

    def where(self, name: str) -> str:
        """A file's address for messages, without passwords and signatures."""
        return str(self.folder / name) if self.is_local else self._remote.where(name)

    def read(self, name: str) -> bytes | None:
        """A small file; None if there is none.

        Raises:
            IntegrityError: it is not a file of the folder, or cannot be read.
            StoreError: access is denied, or the store fails.
        """
        try:
            if not self.is_local:
                return self._remote.read(name)
            with self._damage(name):
                return read_regular(self.folder / name, LISTING_BYTES, inside=[self.folder])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def map(self, record: FileRecord, *, ahead: bool = False) -> MappedFile:
        """A file. Of a local one only the size is compared; `packtrain verify --deep` compares hashes.

        Args:
            ahead: let the kernel read the whole file at once, for callers that use all of it.

        Raises:
            IntegrityError: it has another content, or is no regular file inside of the folder.
            InputError: it is missing at its URL.
            StoreError: it is shorter at its URL or may not be read, or the cache cannot hold it.
        """
        where = self.where(record.name)
        try:
            descriptor = self._open_local(record.name) if self.is_local else self._open_copy(record)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self.is_local:
                raise IntegrityError(f"{where} is missing; packtrain verify --repair rebuilds it") from None
            raise InputError(
                f"there is no {where}; the dataset was moved or copied incompletely: give its location"
            ) from error
        return MappedFile(descriptor, record.bytes, where, ahead=ahead)

    def _open_local(self, name: str) -> int:
        """The descriptor of a file in the folder, for the caller to close."""
        with self._damage(name), open_regular(self.folder / name, inside=[self.folder]) as file:
            return os.dup(file.fileno())  # the file object closes its own descriptor

    def _open_copy(self, record: FileRecord) -> int:
        """The descriptor of a remote file's copy in the cache, for the caller to close. Downloads it if need be."""

        def download(path: Path) -> None:
            self._remote.download(record.name, path, record.bytes, record.hash)

        return self._copies.open(record.hash, record.bytes, download)

    @contextmanager
    def _damage(self, name: str) -> Iterator[None]:
        """Raise IntegrityError for an OSError, as a link to itself gives, or a name that is no regular file of the
        folder. Errors of a missing file pass, because callers treat it in different ways.
        """
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            fix = "make it readable" if isinstance(error, PermissionError) else "packtrain verify --repair rebuilds it"
            raise IntegrityError(f"{self.where(name)} cannot be read: {error.strerror or error}; {fix}") from error
