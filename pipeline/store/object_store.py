"""A store in an object store, where a conditional put takes the place of a link.

Small names that could have different contents are created on the condition that they are free. Whatever is large, or
has its hash in its name, can only have one content: it is written without a condition, and two writers write the same
bytes. An object appears when it is whole, and the server compares what it received with a hash.
"""

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from ...schemas.dataset.manifest import FileRecord
from ...schemas.errors import StoreError
from ...schemas.files.copy_cache import Copies, user_folder
from ...schemas.files.remote import STORES, Remote, TakenError
from ...schemas.fingerprint import fingerprint
from .local import Draft, LocalStore, SizeAndHash, Store

CHUNK = 16 << 20
"""Bytes of one part of a large upload. Smaller objects are sent in one request."""
_PARTS_AT_ONCE = 4


class ObjectStore(Store):
    """A store below a URL.

    Args:
        url: of a folder in a bucket.
    """

    def __init__(self, url: str) -> None:
        self.objects = Remote(url.rstrip("/"))

    @property
    def url(self) -> str:
        return self.objects.url

    @property
    def scratch(self) -> LocalStore:
        return LocalStore(user_folder())

    def where(self, name: str) -> str:
        return self.objects.where(name)

    def size(self, name: str) -> int | None:
        found = self.objects.head(name)
        return int(found["size"]) if found is not None else None

    def read(self, name: str) -> bytes | None:
        try:
            return self.objects.read(name)
        except FileNotFoundError:
            return None

    @property
    def lists_names(self) -> bool:
        return self.objects.protocol in STORES

    def names(self, folder: str = "") -> list[str]:
        if not self.lists_names:
            raise StoreError(f"{self.where('')}: a web server does not list its files; name a folder or a bucket")
        key, above = self.objects.key(folder), len(f"{self.objects.key('')}/".lstrip("/"))

        def listed() -> list[str]:
            bucket = self.objects.bucket()
            import obstore  # only for object stores

            return sorted(one["path"][above:] for page in obstore.list(bucket, key or None) for one in page)

        try:
            return self.objects.ask(folder, listed)
        except FileNotFoundError:  # there is no such bucket
            return []

    def hash(self, name: str) -> SizeAndHash | None:
        digest, count = blake3(), 0
        try:
            for data in self.objects.pieces(name):
                digest.update(data)
                count += len(data)
        except FileNotFoundError:
            return None
        return SizeAndHash(count, digest.hexdigest())

    def local(self, file: str | FileRecord) -> Path:
        copies = Copies(self.scratch.root)
        if not isinstance(file, str):
            fetch = lambda path: self.objects.download(file.name, path, file.bytes, file.hash)  # noqa: E731
            return copies.copy(file.hash, file.bytes, fetch, named=True)
        found = self.objects.head(file)
        if found is None:
            raise FileNotFoundError(f"there is no {self.where(file)}")
        size = int(found["size"])
        key = fingerprint([self.url, file, size, found["e_tag"] or str(found["last_modified"])])
        return copies.copy(key, size, lambda path: self.objects.download(file, path, size, None))

    def draft(self) -> AbstractContextManager[Draft]:
        return self.scratch.draft()

    def put(self, draft: Draft, name: str) -> None:
        draft.file.flush()
        self._put(name, draft.path)

    def put_bytes(self, name: str, data: bytes) -> bool:
        """See `Store`. Equal content counts as success: an answer may have been lost, and the put repeated."""
        try:
            self._put(name, data, mode="create", use_multipart=False)
        except TakenError:
            return self.read(name) == data
        return True

    def replace_bytes(self, name: str, data: bytes) -> None:
        self._put(name, data)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.objects.request("delete", name)

    def _put(self, name: str, data: bytes | Path, **options: Any) -> None:
        """Write an object, replacing any content unless the options say otherwise."""
        try:
            self.objects.request("put", name, data, chunk_size=CHUNK, max_concurrency=_PARTS_AT_ONCE, **options)
        except FileNotFoundError as error:
            raise StoreError(f"{self.where('')}: there is no such bucket; create it, or check the spelling") from error
