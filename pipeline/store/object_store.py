"""A store in an object store, where a conditional put takes the place of a link.

Small names that could have different contents are created on the condition that they are free. Whatever is large, or
has its hash in its name, can only have one content: it is written without a condition, and two writers write the same
bytes. An object appears when it is whole, and the server compares what it received with a hash.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from ...schemas.errors import StoreError
from ...schemas.files.copy_cache import Copies, user_folder
from ...schemas.files.remote import Remote, TakenError
from ...schemas.fingerprint import fingerprint
from .local import LocalStore
from .store import Draft, Put, Store

_LARGEST_NOTE = 1 << 30
"""Maximum bytes of an object that is read into memory."""
CHUNK = 16 << 20
"""Bytes of one part of a large upload. Objects smaller than two parts are sent in one request."""
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
_DRAFTS = "drafts"


class ObjectStore(Store):
    """A store below a URL.

    Args:
        url: of a folder in a bucket.
        scratch: local folder for drafts and copies. None: `user_folder()` of the machine that uses the store.
        keep: whether to keep put objects as local copies, because they will be read here.
    """

    def __init__(self, url: str, scratch: Path | None = None, *, keep: bool = False) -> None:
        self.objects = Remote(url.rstrip("/"))
        self.keep = keep
        self._scratch = scratch

    @property
    def url(self) -> str:
        return self.objects.url

    @property
    def scratch(self) -> LocalStore:
        """The local folder for drafts and copies."""
        return LocalStore(self._scratch or user_folder())

    def where(self, name: str) -> str:
        return self.objects.where(name)

    def size(self, name: str) -> int | None:
        found = self._head(name)
        return int(found["size"]) if found is not None else None

    def read(self, name: str) -> bytes | None:
        try:
            return self.objects.read(name, _LARGEST_NOTE)
        except FileNotFoundError:
            return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        key, above = self.objects.key(folder), len(f"{self.objects.key('')}/".lstrip("/"))

        def listed() -> dict[str, int]:
            pages = _client().list(self.objects.bucket(), key or None)
            return {one["path"][above:]: one["size"] for page in pages for one in page}

        try:
            found = self.objects.ask(folder, listed)
        except FileNotFoundError:  # there is no such bucket
            return {}
        folders = {name.rpartition("/")[0] for name in found}
        # Some tools represent a folder by an empty object of its name.
        return {name: found[name] for name in sorted(found) if found[name] or name not in folders}

    def hash(self, name: str) -> Put | None:
        digest, count = blake3(), 0
        try:
            for data in self.objects.pieces(name):
                digest.update(data)
                count += len(data)
        except FileNotFoundError:
            return None
        return Put(count, digest.hexdigest())

    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        key, size = hash, bytes
        if key is None or size is None:
            found = self._head(name)
            if found is None:
                raise FileNotFoundError(f"there is no {self.where(name)}")
            size = int(found["size"])
            key = fingerprint([self.url, name, size, found["e_tag"] or str(found["last_modified"])])
        fetch = lambda path: self.objects.download(name, path, size, hash)  # noqa: E731
        return Copies(self.scratch.root).copy(key, size, fetch, named=hash is not None)

    @contextmanager
    def draft(self, folder: str) -> Iterator[Draft]:
        with self.scratch.draft(_DRAFTS) as draft:
            yield draft

    def put(self, draft: Draft, name: str) -> None:
        draft.file.flush()
        self._overwrite(name, draft.path)
        if self.keep:
            Copies(self.scratch.root).keep(draft.path, draft.result.hash)

    def put_bytes(self, name: str, data: bytes) -> bool:
        """See `Store`. Equal content counts as success: an answer may have been lost, and the put repeated."""
        key, once = self.objects.key(name), {"mode": "create", "use_multipart": False}
        try:
            self.objects.ask(name, lambda: _client().put(self.objects.bucket(), key, data, **once))
        except TakenError:
            return self.read(name) == data
        except FileNotFoundError as error:
            raise self._no_bucket() from error
        return True

    def replace_bytes(self, name: str, data: bytes) -> None:
        self._overwrite(name, data)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.objects.ask(name, lambda: _client().delete(self.objects.bucket(), self.objects.key(name)))

    def sweep(self, folder: str = "") -> None:
        """See `Store`. Only drafts are local; the store itself has nothing incomplete."""
        self.scratch.sweep(_DRAFTS)

    def _head(self, name: str) -> Any:
        """What the store says of an object; None if there is none."""
        try:
            return self.objects.ask(name, lambda: _client().head(self.objects.bucket(), self.objects.key(name)))
        except FileNotFoundError:
            return None

    def _overwrite(self, name: str, data: bytes | Path) -> None:
        """Write an object, or a file, replacing any content."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        several, chunk = size >= 2 * CHUNK, max(CHUNK, -(-size // _MOST_PARTS))
        parts = {"use_multipart": several, "chunk_size": chunk, "max_concurrency": _PARTS_AT_ONCE}

        def call() -> None:
            try:
                _client().put(self.objects.bucket(parts=several), self.objects.key(name), data, **parts)
            except FileNotFoundError as error:
                if "NoSuchUpload" in str(error):
                    raise ConnectionError("the upload has ended, and the answer was lost") from error
                raise

        try:
            self.objects.ask(name, call)
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def _no_bucket(self) -> StoreError:
        return StoreError(f"{self.where('')}: there is no such bucket; create it, or check the spelling")


def _client() -> Any:
    import obstore

    return obstore
