"""A store in an object store, where a conditional put takes the place of a link.

A small object whose name could get different contents is created on the condition that the name is free. A large one,
or one with its hash in its name, can only have one content: it is written without a condition, and two writers write
the same bytes. An object appears when it is complete, and the server compares what it received with a hash.
"""

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ...schemas.dataset.manifest import FileRecord
from ...schemas.errors import StoreError
from ...schemas.files.copy_cache import Copies, user_folder
from ...schemas.files.remote import Remote, TakenError
from ...schemas.files.remote_clients import STORE_PROTOCOLS
from ...schemas.fingerprint import fingerprint, new_hasher
from .local import Draft, LocalStore, SizeAndHash, Store

CHUNK_BYTES = 16 << 20
"""Bytes of one part of a large upload. Smaller objects are sent in one request."""
_CONCURRENT_PARTS = 4


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
        # Arrow maps only local files, so shards are written here before they are put, and copied here to be read.
        return LocalStore(user_folder())

    def where(self, name: str) -> str:
        return self.objects.where(name)

    def size(self, name: str) -> int | None:
        metadata = self.objects.head(name)
        return int(metadata["size"]) if metadata is not None else None

    def read(self, name: str) -> bytes | None:
        try:
            return self.objects.read(name)
        except FileNotFoundError:
            return None

    @property
    def lists_names(self) -> bool:
        return self.objects.protocol in STORE_PROTOCOLS

    def names(self, folder: str = "") -> list[str]:
        """The names of the objects below a folder, sorted; none if there is no such bucket.

        Raises:
            StoreError: it is a web server, or cannot be reached.
        """
        if not self.lists_names:
            raise StoreError(f"{self.where('')}: a web server does not list its files; name a folder or a bucket")
        key = self.objects.key(folder)
        # Keys in the bucket begin with the store's own folder, names do not: `runs/a/manifest.json` in the store
        # `s3://bucket/runs/a` is `manifest.json`.
        # In the store `s3://bucket`, which is a whole bucket, keys are names, and nothing is cut off.
        prefix_length = len(f"{self.objects.key('')}/".lstrip("/"))

        def list_names() -> list[str]:
            bucket = self.objects.bucket()
            import obstore  # only for object stores

            names: list[str] = []
            for page in obstore.list(bucket, key or None):
                names.extend(metadata["path"][prefix_length:] for metadata in page)
            return sorted(names)

        try:
            return self.objects.ask(folder, list_names)
        except FileNotFoundError:  # there is no such bucket
            return []

    def hash(self, name: str) -> SizeAndHash | None:
        """Size and hash of an object, of which all is read; None if there is no such object."""
        digest = new_hasher()
        size = 0
        try:
            for piece in self.objects.pieces(name):
                digest.update(piece)
                size += len(piece)
        except FileNotFoundError:
            return None
        return SizeAndHash(size, digest.hexdigest())

    def local(self, file: str | FileRecord) -> Path:
        """A copy of an object on this machine, fetched once.

        Args:
            file: its record, with which the copy is compared; or its name alone, if it has none.
        """
        if isinstance(file, FileRecord):
            name = file.name
            size = file.bytes
            hash: str | None = file.hash
            key = file.hash
        else:
            name = file
            metadata = self.objects.head(name)
            if metadata is None:
                raise FileNotFoundError(f"there is no {self.where(name)}")
            size = int(metadata["size"])
            hash = None
            # The content is known by the server's tag or time: when they change, it is fetched again.
            key = fingerprint([self.url, name, size, metadata["e_tag"] or str(metadata["last_modified"])])

        def download(path: Path) -> None:
            self.objects.download(name, path, size, hash)

        # named: whether the key is the hash of the content, with which the copy is compared.
        return Copies(self.scratch.root).copy(key, size, download, named=hash is not None)

    def draft(self) -> AbstractContextManager[Draft]:
        return self.scratch.draft()

    def put(self, draft: Draft, name: str) -> None:
        draft.file.flush()
        self._put(name, draft.path)

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create an object; False if the name already has other content. Equal content counts as success: the answer to
        a put may have been lost, and the put repeated.
        """
        try:
            # "create" is the condition that the name is free. In one request: an upload in parts has no condition.
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
            self.objects.request(
                "put", name, data, chunk_size=CHUNK_BYTES, max_concurrency=_CONCURRENT_PARTS, **options
            )
        except FileNotFoundError as error:
            raise StoreError(f"{self.where('')}: there is no such bucket; create it, or check the spelling") from error
