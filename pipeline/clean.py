"""Clean: what in a cache and in outputs nobody needs any more, shown first, then removed.

Nothing is removed that could not be made again, and nothing of a dataset: a run afterwards encodes what is gone and
gives the same bytes. A cache that a run or a stream uses is left alone (`cache_use`), as is an output at work.

Nor is anything removed that is not packtrain's. A cache is a folder that packtrain has marked. In it, and in an output,
a file counts only if its name is one that packtrain gives and its content begins, or is hashed, as such a file's does.
Links are neither followed nor removed.
"""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ..schemas.errors import BusyError, ConfigError, StoreError
from ..schemas.jsontext import decode_note
from .cache_use import FOLDERS, TAG, CacheAlone, is_cache
from .driver_lock import Leases
from .manifests import read_manifest
from .outfolder import PLAN
from .parts import PartList
from .sealed import unseal
from .store import LocalStore, explain, hash_file, open_regular
from .unfinished import recorded

Kind = Literal["draft", "orphan", "part", "copy", "stray", "layout"]
KINDS: dict[Kind, str] = {
    "draft": "half-written files of processes that are gone",
    "orphan": "parts without a record, and records without their part",
    "part": "encoded parts that no output near the cache was made from",
    "copy": "copies of inputs that can be made again",
    "stray": "shards that no manifest knows",
    "layout": "plans of finished outputs",
}
"""What is removed, in the order in which it is shown."""
DAYS = 7.0
"""Parts and copies that were written more recently are kept, unless something else is asked for."""
_FOREIGN_SECONDS = 86_400.0
"""A draft of another machine counts as left behind after so long: nobody here can ask whether its writer lives."""
_DRAFT = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
_ARROW, _PARQUET, _ZSTD, _STREAM = b"ARROW1", b"PAR1", b"\x28\xb5\x2f\xfd", b"\xff\xff\xff\xff"
_NOTE = b'{"check":"'
"""How a sealed note begins."""
_LISTED = b'["remote/'
_RECORD = re.compile(r"encoded/[0-9a-f]{2}/[0-9a-f]{64}\.json")
_PART = re.compile(r"encoded/[0-9a-f]{2}/[0-9a-f]{64}-[0-9a-f]{16}\.arrow")
_SHARD = re.compile(r"(?:[a-z]+/)?shards/\d{5,}-[0-9a-f]{16}\.(?:arrow|parquet)")
_LAYOUT = re.compile(r"_run/layout/(?:[a-z]+-\d{5,}-(?:pieces|rows)|packed)\.arrow")
_COPIES: tuple[tuple[re.Pattern[str], tuple[bytes, ...]], ...] = (
    (re.compile(r"blocks/[0-9a-f]{2}/[0-9a-f]{64}(?:\.arrow)?\.zst"), (_ZSTD,)),
    (re.compile(r"scans/(?:file-|source-)?[0-9a-f]{64}\.json"), (_NOTE,)),
    (re.compile(r"remote/[0-9a-f]{64}\.json"), (_LISTED,)),
    (re.compile(r"copies/[0-9a-f]{2}/[0-9a-f]{64}"), (_ARROW, _PARQUET, _STREAM)),
    (re.compile(r"hub/(?:[^/]+/){2,4}[0-9a-f]{16,64}/[^/]+\.arrow"), (_ARROW, _STREAM)),
)
"""Copies: how a name of `LocalStore` looks, and how such a file begins."""
_HASHED = re.compile(r"(?:remote/([0-9a-f]{40})(?:\.[A-Za-z0-9]{1,8}){0,2}|copies/[0-9a-f]{2}/([0-9a-f]{64}))")
"""Copies of anything: the name is of the content's BLAKE3."""
_COPY_FOLDERS = ("blocks", "scans", "remote", "hub", "copies")


@dataclass(frozen=True, slots=True)
class Item:
    """One file that may go."""

    kind: Kind
    path: Path
    bytes: int


class _Head(msgspec.Struct):
    """Of a part's record, what says which part it vouches for."""

    part: str
    bytes: int


class Cleaning:
    """What may be removed. As a context, it keeps runs from beginning on the cache until it is over.

    Args:
        cache: of this machine; None to look at outputs alone.
        outs: outputs to look at, besides those near the cache, which only say what they were made from.
        days: parts and copies that were written within so many days are kept.
        everything: take all parts and copies, whoever was made from them and however new.

    Raises:
        ConfigError: the folder is not a cache of packtrain's.
        BusyError: a run or a stream uses the cache, or an output.
    """

    def __init__(
        self, cache: LocalStore | None, outs: Iterable[LocalStore], *, days: float = DAYS, everything: bool = False
    ) -> None:
        if cache is not None and cache.root.is_dir() and not is_cache(cache.root):
            raise ConfigError(
                f"{cache.root} has no {TAG} of packtrain's, so nothing is removed from it. A run marks its cache so, "
                "unless it holds other things; of a cache that an earlier version made: run a configuration with it "
                "again first"
            )
        self.cache = cache
        self.outs = list(outs)
        self.everything = everything
        self._before = time.time() - days * 86_400
        self._alone = CacheAlone(cache) if cache is not None else None

    def __enter__(self) -> "Cleaning":
        if self._alone is not None and not self._alone.take():
            who = ", ".join(f"process {pid}" for pid in self._alone.users) or "a run or a stream"
            raise BusyError(f"the cache {self._alone.cache.url} is in use by {who}; let it finish, then clean again")
        for out in self.outs:
            if any(alive is not False for _, alive in Leases(out).judge().values()):
                self.__exit__()
                raise BusyError(f"a run works on {out.url}, or may do so; let it finish, then clean again")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._alone is not None:
            self._alone.release()

    def find(self) -> list[Item]:
        """What may go, largest first within its kind."""
        found = [item for out in self.outs for item in self._of_output(out)]
        if self.cache is not None:
            found += self._of_cache(self.cache)
        order = list(KINDS)
        return sorted(found, key=lambda item: (order.index(item.kind), -item.bytes, str(item.path)))

    def remove(self, items: Iterable[Item]) -> int:
        """Remove them, records before their parts. Returns the bytes that were freed.

        Raises:
            StoreError: one cannot be removed.
        """
        freed = 0
        for item in sorted(items, key=lambda item: item.path.suffix != ".json"):
            try:
                item.path.unlink(missing_ok=True)
            except OSError as error:
                raise explain(error, item.path.parent) from error
            freed += item.bytes
        return freed

    def _of_cache(self, cache: LocalStore) -> Iterator[Item]:
        yield from _drafts(cache, ["", *FOLDERS])
        used = set[str]() if self.everything else _used(cache, self.outs)
        vouched: dict[str, Path] = {}
        parts = []
        for name, path in _files(cache, "encoded"):
            if _PART.fullmatch(name) and _begins(path, _ARROW):
                parts.append((name, path))
            elif _RECORD.fullmatch(name) and _begins(path, _NOTE):
                head = _head(path)
                if head is None or cache.size(head.part) != head.bytes:
                    yield Item("orphan", path, _size(path))
                else:
                    vouched[head.part] = path
        for name, path in parts:
            record = vouched.get(name)
            if record is None:
                yield Item("orphan", path, _size(path))
            elif name not in used and (self.everything or _written(path) < self._before):
                yield Item("part", path, _size(path))
                yield Item("part", record, _size(record))
        for folder in _COPY_FOLDERS:
            for name, path in _files(cache, folder):
                if (self.everything or _written(path) < self._before) and _is_copy(name, path):
                    yield Item("copy", path, _size(path))

    def _of_output(self, out: LocalStore) -> Iterator[Item]:
        finished = _finished(out)
        if finished is None and not out.exists(PLAN):
            return  # nothing of ours
        yield from _drafts(out, [""], deep=True)
        known = finished if finished is not None else {shard.name for shard in recorded(out)}
        for name, path in _files(out, ""):
            if _SHARD.fullmatch(name) and name not in known and _begins(path, _STREAM, _PARQUET):
                yield Item("stray", path, _size(path))
            elif self.everything and finished is not None and _LAYOUT.fullmatch(name) and _begins(path, _ARROW):
                yield Item("layout", path, _size(path))


def outputs_near(cache: LocalStore) -> list[LocalStore]:
    """Outputs whose notes stand one or two folders below the cache's own: those that a person would call beside it."""
    above = cache.root.parent
    notes = [*above.glob("*/_run"), *above.glob("*/*/_run")]
    return [LocalStore(note.parent) for note in sorted(notes)]


def _used(cache: LocalStore, outs: Iterable[LocalStore]) -> set[str]:
    """Parts that an output was made from, as far as outputs near the cache and those given say so."""
    used: set[str] = set()
    for out in [*outputs_near(cache), *outs]:
        for name in out.names("_run"):
            if not re.fullmatch(r"(?:.*/)?parts[^/]*\.json", name):
                continue
            try:
                listed = decode_note(out.read(name), PartList)
            except (msgspec.MsgspecError, UnicodeDecodeError, StoreError):
                continue
            if Path(listed.cache) == cache.root:
                used.update(part.name for part in listed.parts)
    return used


def _drafts(store: LocalStore, folders: Iterable[str], *, deep: bool = False) -> Iterator[Item]:
    """What `LocalStore.sweep` would remove, and drafts of other machines that are a day old.

    Args:
        folders: where to look, and below; of "", in the folder itself only, unless `deep`.
    """
    now = time.time()
    for folder in folders:
        for name, path in _files(store, folder):
            match = _DRAFT.fullmatch(path.name)
            if match is None or (folder == "" and "/" in name and not deep):
                continue
            here = match["host"] == os.uname().nodename
            if _gone(int(match["pid"])) if here else now - _written(path) > _FOREIGN_SECONDS:
                yield Item("draft", path, _size(path))


def _files(store: LocalStore, folder: str) -> Iterator[tuple[str, Path]]:
    """(name, path) of the regular files below a folder of a store, sorted. No link is one, and none is followed."""
    above = store.root / folder if folder else store.root
    if folder and above.is_symlink():
        return
    for where, folders, names in os.walk(above):  # which follows no links
        folders.sort()
        for name in sorted(names):
            path = Path(where, name)
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path.relative_to(store.root).as_posix(), path


def _begins(path: Path, *heads: bytes) -> bool:
    """Whether a file begins with one of these."""
    try:
        with open_regular(path) as file:
            return file.read(16).startswith(heads)
    except OSError:
        return False


def _is_copy(name: str, path: Path) -> bool:
    """Whether a file is a copy that packtrain made, by its name and its content."""
    for pattern, heads in _COPIES:
        if pattern.fullmatch(name) and _begins(path, *heads):
            return True
    hashed = _HASHED.fullmatch(name)
    try:
        return hashed is not None and hash_file(path).hash.startswith(hashed[1] or hashed[2])
    except OSError:
        return False


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _finished(out: LocalStore) -> set[str] | None:
    """Names of the manifest's shards; None where there is no manifest."""
    manifest = read_manifest(out)
    if manifest is None:
        return None
    return {shard.name for split in manifest.splits.values() for shard in split.shards}


def _head(path: Path) -> _Head | None:
    try:
        return decode_note(unseal(path.read_bytes()), _Head)
    except (OSError, msgspec.MsgspecError):
        return None


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _written(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()
