"""A store in an object store, where a conditional put takes the place of a link.

Small names that could have different contents are created on the condition that they are free. Whatever is large, or
has its hash in its name, can only have one content: it is written without a condition, and two writers write the same
bytes. An object appears when it is whole, and the server compares what it received with a hash.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from ...schemas.errors import StoreError
from ...schemas.files.copies import Copies, user_folder
from ...schemas.files.remote import Remote, TakenError
from ...schemas.fingerprint import fingerprint
from .local import Draft, LocalStore, Put

_LARGEST_NOTE = 1 << 30
"""Maximum bytes of an object that is read into memory."""
_DRAFTS = "drafts"


class ObjectStore:
    """A store below a URL. Cheap to make and to pickle; opens nothing before its first use.

    Args:
        url: of a folder in a bucket.
        scratch: local folder for drafts and copies. None: `user_folder()` of the machine that uses the store.
        keep: whether to keep put objects as local copies, because they will be read here.
    """

    def __init__(self, url: str, scratch: Path | None = None, *, keep: bool = False) -> None:
        self.objects = Remote(url.rstrip("/"))
        self.keep = keep
        self._scratch = scratch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and self.objects.url == other.objects.url

    def __hash__(self) -> int:
        return hash(self.objects.url)

    @property
    def url(self) -> str:
        """The URL, for messages and for `open_store`."""
        return self.objects.url

    @property
    def scratch(self) -> LocalStore:
        """The local folder for drafts and copies."""
        return LocalStore(self._scratch or user_folder())

    def where(self, name: str) -> str:
        """The URL of a name, for messages."""
        return self.objects.where(name)

    def exists(self, name: str) -> bool:
        return self.objects.head(name) is not None

    def size(self, name: str) -> int | None:
        """Size in bytes, or None if there is no such name."""
        found = self.objects.head(name)
        return found.bytes if found is not None else None

    def read(self, name: str) -> bytes | None:
        """The content, or None if there is no such name."""
        try:
            return self.objects.read(name, _LARGEST_NOTE)
        except FileNotFoundError:
            return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names below a folder with their sizes, sorted, as listed by the store. Listings may be outdated."""
        return self.objects.sizes(folder)

    def names(self, folder: str = "") -> list[str]:
        """Names below a folder, sorted. See `sizes`."""
        return list(self.sizes(folder))

    def top(self) -> list[str]:
        """Top-level entries: names without a folder, and folders."""
        return self.objects.top()

    def hash(self, name: str) -> Put | None:
        """Size and hash of the content, read from the store again; None if there is no such name."""
        digest, count = blake3(), 0
        try:
            for data in self.objects.pieces(name):
                digest.update(data)
                count += len(data)
        except FileNotFoundError:
            return None
        return Put(count, digest.hexdigest())

    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        """A copy on this machine. See `stores.Store`."""
        key, size = hash, bytes
        if key is None or size is None:
            found = self.objects.head(name)
            if found is None:
                raise FileNotFoundError(f"there is no {self.where(name)}")
            key, size = fingerprint([self.url, name, found.bytes, found.mark]), found.bytes
        copies = Copies(self.scratch.root)
        get = lambda path: self.objects.download(name, path, size, hash)  # noqa: E731
        os.close(copies.open(key, size, get, named=hash is not None))
        return copies.path(key)

    @contextmanager
    def draft(self, folder: str) -> Iterator[Draft]:
        """A local file for writing; deleted at the end of the block."""
        with self.scratch.draft(_DRAFTS) as draft:
            yield draft

    def put(self, draft: Draft, name: str, *, replace_damaged: bool = False) -> bool:
        """Give a draft its name. False if the name already exists with another content. See `LocalStore.put`."""
        if not replace_damaged:
            return self.put_bytes(name, draft.path.read_bytes())
        try:
            self.objects.overwrite(name, draft.path)
        except FileNotFoundError as error:
            raise self._no_bucket() from error
        if self.keep:
            Copies(self.scratch.root).keep(draft.path, draft.result.hash)
        return True

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create `name` with this content. False if the name already exists with another content.

        Equal content counts as success: an answer may have been lost, and the put repeated.
        """
        try:
            self.objects.create(name, data)
        except TakenError:
            return self.read(name) == data
        except FileNotFoundError as error:
            raise self._no_bucket() from error
        return True

    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write `name`, replacing any content. See `LocalStore.replace_bytes`."""
        try:
            self.objects.overwrite(name, data)
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""
        self.objects.remove(name)

    def sweep(self, folder: str = "") -> None:
        """Remove local drafts of killed processes. The store itself has nothing incomplete."""
        self.scratch.sweep(_DRAFTS)

    def free_bytes(self) -> None:
        """Return None: an object store has no limit."""

    def _no_bucket(self) -> StoreError:
        return StoreError(f"{self.where('')}: there is no such bucket; create it, or check the spelling")
