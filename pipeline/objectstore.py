"""A store on an object store: the protocol of `LocalStore`, with a conditional put in place of a link.

A draft is a local file. When it is whole, it is read back against its hash, put under its name on the condition that
the name is free, and what the store says of it is compared. So an object is never half there, and never a mixture.

What two processes put under one name with `mend` is the same bytes, because the name carries their hash or nothing
else can stand there. So a store that forgets the condition for uploads in several parts does no harm.
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import blake3

from ..schemas.errors import IntegrityError, OutputError, StoreError
from .copies import Copies, key_of
from .objects import PIECE, Objects, TakenError
from .store import Draft, LocalStore, Put, read_back

CONDITIONAL = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols whose file systems have the server decide whether a name is free. Others look first and write then, so that
of two writers both may believe that they were the only one."""
PROBE = "_run/probe"
"""An object of no meaning, with which it is tried whether puts are conditional here."""
CHUNK = 16 << 20
"""Bytes of one part of a large upload; objects below two of them go in one request."""
_MAX_PARTS = 9_000
_SENT_AT_ONCE = 4
_DRAFTS = "drafts"

_proved: set[str] = set()
"""URLs below which puts are known to be conditional."""
_other_etags: set[str] = set()
"""URLs below which an object's ETag is not made of MD5: objects are encrypted there."""

Answer = TypeVar("Answer")


class ObjectStore:
    """A store below a URL. Cheap to make and to pickle; opens nothing before it is used.

    Args:
        url: of a folder in a bucket.
        scratch: folder of this machine for drafts and copies. None: `stores.default_scratch()` of whichever machine
            uses the store.
        keep: what is put stays as a copy, because it will be read on this machine.
    """

    def __init__(self, url: str, scratch: Path | None = None, *, keep: bool = False) -> None:
        self.objects = Objects(url)
        self.keep = keep
        self._scratch = scratch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and self.objects.url == other.objects.url

    def __hash__(self) -> int:
        return hash(self.objects.url)

    @property
    def url(self) -> str:
        """Where it is, for people and for `open_store`."""
        return self.objects.url

    @property
    def scratch(self) -> LocalStore:
        """The folder of this machine."""
        from .stores import default_scratch

        return LocalStore(self._scratch or default_scratch())

    def where(self, name: str) -> str:
        """Where a name is, for people."""
        return self.objects.where(name)

    def require_conditional(self) -> None:
        """Refuse a store where of two puts under one name both succeed. Costs one request, and two the first time.

        Raises:
            OutputError: it is one, or it cannot be written at all.
        """
        if self.url in _proved:
            return
        try:
            # Where an earlier run has put it, the refusal of this one is the proof already.
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
                f"{self.where('')}: this store knows no conditional put (If-None-Match: *): of two puts under one name "
                "both succeed, so that two runs could overwrite one another. Use a local or shared folder and copy the "
                "finished dataset there, or a store that has it: S3 itself, MinIO, Cloudflare R2, Ceph"
            )
        _proved.add(self.url)

    def exists(self, name: str) -> bool:
        return self._info(name) is not None

    def size(self, name: str) -> int | None:
        """Bytes, or None where there is no such name."""
        info = self._info(name)
        return int(info["size"]) if info is not None else None

    def read(self, name: str) -> bytes | None:
        """The whole content, or None where there is no such name."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> bytes:
            data: bytes = fs.cat_file(path, **limit)
            return data

        try:
            return self.objects.ask(name, call)
        except FileNotFoundError:
            return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names below a folder and their bytes, sorted, as the store lists them. A list may be behind the truth."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> dict[str, int]:
            found = fs.find(path, detail=True, **limit)
            base = f"{path[: len(path) - len(folder)].rstrip('/')}/"
            return {key.removeprefix(base): int(one["size"]) for key, one in found.items() if key.startswith(base)}

        try:
            found = self.objects.ask(folder, call)
        except FileNotFoundError:
            return {}
        # An object with a slash at its end is what some tools write to have a folder shown.
        return {name: found[name] for name in sorted(found) if not name.endswith("/")}

    def names(self, folder: str = "") -> list[str]:
        """Names below a folder, sorted. See `sizes`."""
        return list(self.sizes(folder))

    def top(self) -> list[str]:
        """What stands at the top: names without a folder, and folders."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> list[str]:
            return [one.rstrip("/").rpartition("/")[2] for one in fs.ls(path, detail=False, **limit)]

        try:
            return [name for name in self.objects.ask("", call) if name]
        except FileNotFoundError:
            return []

    def hash(self, name: str, *, sha256: bool = False) -> Put | None:
        """Size and hash of what the store holds, read from it anew; None where there is no such name."""
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
        """A local file to write; gone at the end of the block, put or not."""
        with self.scratch.draft(_DRAFTS, sha256=sha256) as draft:
            yield draft

    def put(self, draft: Draft, name: str, *, mend: bool = False) -> bool:
        """Give a draft its name. False when the name exists already, with another content. See `LocalStore.put`.

        An equal content counts as ours: an answer may have been lost, and the put repeated.
        """
        expected = read_back(draft, self.where(name))
        held = False
        try:
            self._send(draft.path, name, expected.bytes, "create")
        except TakenError:
            held = self._holds(name, draft.path, expected)
            if not held:
                if not mend:
                    return False
                self._send(draft.path, name, expected.bytes, "overwrite")
        except FileNotFoundError as error:
            # The upload is unknown when it is completed once more, because the answer to the first time was lost.
            held = self._holds(name, draft.path, expected)
            if not held:
                raise StoreError(
                    f"{self.where(name)} cannot be put: {error.__cause__}; see that the bucket is there"
                ) from error
        if not held and not self._holds(name, draft.path, expected, quick=True):
            raise IntegrityError(
                f"{self.where(name)}: {expected.bytes:,} bytes were put, but the store holds something else; run the "
                "same command again, and look at the store if this comes back"
            )
        if self.keep:
            Copies(self.scratch).keep(draft.path, expected.hash)
        return True

    def put_bytes(self, name: str, data: bytes) -> bool:
        """Create `name` with this content. False when the name exists already, with another content. See `put`."""
        try:
            self._pipe(name, data, "create")
        except TakenError:
            return self.read(name) == data
        return True

    def replace_bytes(self, name: str, data: bytes) -> None:
        """Write `name` whatever stood there. See `LocalStore.replace_bytes`."""
        self._pipe(name, data, "overwrite")

    def remove(self, name: str) -> None:
        """Take a name away; it may be gone already."""

        def call(fs: Any, path: str, limit: dict[str, float]) -> None:
            fs.rm_file(path)

        with suppress(FileNotFoundError):
            self.objects.ask(name, call)

    def sweep(self, folder: str = "") -> None:
        """Remove the drafts of processes that were killed on this machine. In the store itself nothing is half done."""
        self.scratch.sweep(_DRAFTS)

    def free_bytes(self) -> None:
        """There is no end of it."""

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
        """Put in one request, whatever the size: only so is the condition known to hold."""
        whole = {"chunksize": 5 << 30} if self.objects.is_s3 else {}

        def call(fs: Any, path: str, limit: dict[str, float]) -> None:
            fs.pipe_file(path, data, mode=mode, **whole, **limit)

        self.objects.ask(name, call, bytes=len(data))

    def _send(self, path: Path, name: str, size: int, mode: str) -> None:
        several = {"chunksize": _chunk(size), "max_concurrency": _SENT_AT_ONCE} if self.objects.is_s3 else {}

        def call(fs: Any, target: str, limit: dict[str, float]) -> None:
            fs.put_file(str(path), target, mode=mode, **several, **limit)

        self.objects.ask(name, call, bytes=size, parts=size >= 2 * _chunk(size))

    def _holds(self, name: str, path: Path, expected: Put, *, quick: bool = False) -> bool:
        """Whether the store has under a name what a file has.

        By size and ETag, where that is made of MD5, as S3's is of what it does not encrypt with a person's key; else
        the object is read back.

        Args:
            quick: the size alone will do where ETags are known to be made of something else.
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
    """The ETag that S3 gives a file that is sent whole, or in parts of `chunk` bytes where it is twice as long."""
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
