"""A store in an object store: like `LocalStore`, with a conditional put instead of a link.

A draft is a local file. When it is complete, it is put on the condition that its name is free, and compared with what
the store reports. So no object is ever incomplete or a mixture.

Two processes that put one name with `replace_damaged` put the same bytes, because such names contain a hash or can have
only one content. So a store that ignores the condition for multipart uploads does no harm.
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import blake3

from ...schemas.errors import IntegrityError, OutputError, StoreError
from ...schemas.files.http_errors import is_unknown_upload
from ...schemas.files.remote import PIECE, Remote, TakenError
from ...schemas.files.user_folder import user_folder
from .local import Draft, LocalStore, Put
from .local_copies import Copies, key_of

CONDITIONAL = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols whose server decides whether a name is free. Other protocols check first and then write, so two writers
could both succeed.
"""
PROBE = "_run/probe"
"""Name of the object that tests whether puts are conditional."""
CHUNK = 16 << 20
"""Bytes of one part of a large upload; objects smaller than two parts are sent in one request."""
_MAX_PARTS = 9_000
_SENT_AT_ONCE = 4
_LARGEST_NOTE = 1 << 30
"""Maximum bytes of an object that is read into memory."""
_DRAFTS = "drafts"

_proved: set[str] = set()
"""URLs that are known to support conditional puts."""
_other_etags: set[str] = set()
"""URLs where ETags are not based on MD5, because objects are encrypted."""


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

    def require_conditional(self) -> None:
        """Refuse a store in which two puts of one name both succeed. Takes one request; the first time two.

        Raises:
            OutputError: the store has no conditional puts, or is not writable.
        """
        if self.url in _proved:
            return
        try:
            # If an earlier run has put this object, the store proves itself by refusing this put.
            conditional = not self.put_bytes(PROBE, secrets.token_bytes(8)) or not self.put_bytes(PROBE, b"again")
        except FileNotFoundError:
            raise OutputError(f"{self.where('')}: there is no such bucket; create it, or check the spelling") from None
        except StoreError as error:
            if "501" in str(error) or "NotImplemented" in str(error):
                conditional = False
            else:
                raise OutputError(f"nothing can be written there: {error}") from error
        if not conditional:
            raise OutputError(
                f"{self.where('')}: this store does not support conditional puts (If-None-Match: *), so two runs "
                "could overwrite each other. Use a local or shared folder and copy the "
                "finished dataset there, or a store that supports them: S3, MinIO, Cloudflare R2, Ceph"
            )
        _proved.add(self.url)

    def exists(self, name: str) -> bool:
        return self._info(name) is not None

    def size(self, name: str) -> int | None:
        """Size in bytes, or None if there is no such name."""
        info = self._info(name)
        return int(info["size"]) if info is not None else None

    def read(self, name: str) -> bytes | None:
        """The content, or None if there is no such name."""

        try:
            return self.objects.read(name, _LARGEST_NOTE)
        except FileNotFoundError:
            return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names below a folder with their sizes, sorted, as listed by the store. Listings may be outdated."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> dict[str, int]:
            found = fs.find(path, detail=True, **limit)
            base = f"{path[: len(path) - len(folder)].rstrip('/')}/"
            return {key.removeprefix(base): int(one["size"]) for key, one in found.items() if key.startswith(base)}

        try:
            found = self.objects.ask(folder, call)
        except FileNotFoundError:
            return {}
        # some tools represent folders by objects whose name ends in a slash
        return {name: found[name] for name in sorted(found) if not name.endswith("/")}

    def names(self, folder: str = "") -> list[str]:
        """Names below a folder, sorted. See `sizes`."""
        return list(self.sizes(folder))

    def top(self) -> list[str]:
        """Top-level entries: names without a folder, and folders."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> list[str]:
            return [one.rstrip("/").rpartition("/")[2] for one in fs.ls(path, detail=False, **limit)]

        try:
            return [name for name in self.objects.ask("", call) if name]
        except FileNotFoundError:
            return []

    def hash(self, name: str, *, sha256: bool = False) -> Put | None:
        """Size and hash of the content, read from the store again; None if there is no such name."""
        info = self._info(name)
        if info is None:
            return None
        digest, second, count = blake3.blake3(), hashlib.sha256() if sha256 else None, 0
        for data in self.objects.pieces(name, int(info["size"])):
            digest.update(data)
            if second is not None:
                second.update(data)
            count += len(data)
        return Put(count, digest.hexdigest(), second.hexdigest() if second is not None else "")

    def local(self, name: str, *, bytes: int | None = None, hash: str | None = None) -> Path:
        """A copy on this machine. See `stores.Store`."""
        copies = Copies(self.scratch)
        if bytes is not None and hash:
            key, size = hash, bytes
        else:
            info = self._info(name)
            if info is None:
                raise FileNotFoundError(f"there is no {self.where(name)}")
            size = int(info["size"])
            key = key_of(self.url, name, size, _etag(info) or str(info.get("LastModified") or info.get("updated")))
        return copies.fetch(key, size, hash, lambda: self.objects.pieces(name, size), self.where(name))

    @contextmanager
    def draft(self, folder: str, *, sha256: bool = False) -> Iterator[Draft]:
        """A local file for writing; deleted at the end of the block."""
        with self.scratch.draft(_DRAFTS, sha256=sha256) as draft:
            yield draft

    def put(self, draft: Draft, name: str, *, replace_damaged: bool = False) -> bool:
        """Give a draft its name. False if the name already exists with another content. See `LocalStore.put`.

        Equal content counts as success: an answer may have been lost, and the put repeated.
        """
        expected = draft.result
        held = False
        try:
            self._send(draft.path, name, expected.bytes, "create")
        except TakenError:
            held = self._holds(name, draft.path, expected)
            if not held:
                if not replace_damaged:
                    return False
                self._send(draft.path, name, expected.bytes, "overwrite")
        except FileNotFoundError as error:
            # The answer to completing an upload was lost; completing it again failed, because it is no longer known.
            held = self._holds(name, draft.path, expected)
            if not held:
                raise StoreError(
                    f"{self.where(name)} cannot be put: {error.__cause__}; check that the bucket exists"
                ) from error
        if not held and not self._holds(name, draft.path, expected, quick=True):
            raise IntegrityError(
                f"{self.where(name)}: {expected.bytes:,} bytes were put, but the store holds something else; run the "
                "same command again, and check the store if this happens again"
            )
        if self.keep:
            Copies(self.scratch).keep(draft.path, expected.hash)
        return True

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create `name` with this content. False if the name already exists with another content. See `put`."""
        try:
            self._pipe(name, data, "create")
        except TakenError:
            return self.read(name) == data
        return True

    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write `name`, replacing any content. See `LocalStore.replace_bytes`."""
        self._pipe(name, data, "overwrite")

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> None:
            fs.rm_file(path)

        with suppress(FileNotFoundError):
            self.objects.ask(name, call)

    def sweep(self, folder: str = "") -> None:
        """Remove local drafts of killed processes. The store itself has nothing incomplete."""
        self.scratch.sweep(_DRAFTS)

    def free_bytes(self) -> None:
        """Return None: an object store has no limit."""

    def _info(self, name: str) -> dict[str, Any] | None:
        def call(fs: Any, path: str, limit: dict[str, float]) -> dict[str, Any]:
            info: dict[str, Any] = fs.info(path, **limit)
            return info

        try:
            info = self.objects.ask(name, call)
        except FileNotFoundError:
            return None
        return info if info["type"] == "file" else None

    def _pipe(self, name: str, data: bytes, mode: str) -> None:
        """Put the object in one request, whatever its size, because the condition surely applies to a single
        request.
        """
        whole = {"chunksize": 5 << 30} if self.objects.is_s3 else {}

        def call(fs: Any, path: str, limit: dict[str, float]) -> None:
            fs.pipe_file(path, data, mode=mode, **whole, **limit)

        self.objects.ask(name, call, bytes=len(data))

    def _send(self, path: Path, name: str, size: int, mode: str) -> None:
        several = {"chunksize": _chunk(size), "max_concurrency": _SENT_AT_ONCE} if self.objects.is_s3 else {}

        def call(fs: Any, target: str, limit: dict[str, float]) -> None:
            try:
                fs.put_file(str(path), target, mode=mode, **several, **limit)
            except FileNotFoundError as error:
                if is_unknown_upload(error) and self._info(name) is None:
                    raise ConnectionError("the upload failed, and ending it twice hid the cause") from None
                raise

        self.objects.ask(name, call, bytes=size, parts=size >= 2 * _chunk(size))

    def _holds(self, name: str, path: Path, expected: Put, *, quick: bool = False) -> bool:
        """Whether a name in the store has the content of a file.

        Compares size and ETag if the ETag is based on MD5, as in S3 without a customer's encryption key. Otherwise
        reads the object back.

        Args:
            quick: compare only the size if ETags are known not to be based on MD5.
        """
        info = self._info(name)
        if info is None or int(info["size"]) != expected.bytes:
            return False
        if self.objects.is_s3 and self.url not in _other_etags and _etag(info) == _md5(path, _chunk(expected.bytes)):
            return True
        if quick and self.url in _other_etags:
            return True
        if self.hash(name) != expected:
            return False
        _other_etags.add(self.url)
        return True


def _chunk(size: int) -> int:
    return max(CHUNK, -(-size // _MAX_PARTS))


def _etag(info: dict[str, Any]) -> str:
    return str(info.get("ETag") or info.get("etag") or "").strip('"')


def _md5(path: Path, chunk: int) -> str:
    """Return the ETag that S3 gives a file: sent whole, or in parts of `chunk` bytes if it is at least twice that
    long.
    """
    digests: list[bytes] = []
    several = path.stat().st_size >= 2 * chunk
    with path.open("rb") as file:
        while True:
            digest, left = hashlib.md5(usedforsecurity=False), chunk if several else 1 << 62
            while left and (data := file.read(min(left, PIECE))):
                digest.update(data)
                left -= len(data)
            if digests and left == chunk:
                break
            digests.append(digest.digest())
            if not several or left:
                break
    if not several:
        return digests[0].hex()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"
