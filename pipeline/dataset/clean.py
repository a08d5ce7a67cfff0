"""Lists unneeded files of a cache and of outputs, and removes them.

Only files that can be made again are removed, and never a part of a dataset: a later run encodes what is missing and
gives the same bytes. A cache or an output that a process is using is left alone.

Only packtrain's own files are removed. A cache must be marked as such by packtrain. A file is removed only if its name
has a form that packtrain uses, and its content matches: it has the expected first bytes, or the hash in its name. Links
are neither followed nor removed.
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

from ...schemas.errors import BusyError, ConfigError
from ...schemas.files.lock import process_runs
from ...schemas.jsontext import decode_note
from ..store.cache_lock import FOLDERS, TAG, CacheAlone, is_cache
from ..store.checksummed import unseal
from ..store.driver_lock import Leases
from ..store.local import LocalStore, explain, hash_file, open_regular
from .manifests import read_manifest
from .output_folder import PLAN
from .run_notes import recall_part_list
from .unfinished import recorded

Kind = Literal["draft", "orphan", "part", "copy", "stray", "layout"]
KINDS: dict[Kind, str] = {
    "draft": "half-written files of processes that are gone",
    "orphan": "parts without a record, and records without their part",
    "part": "encoded parts that no output near the cache uses",
    "copy": "copies of inputs, and what was found in them, which can be made again",
    "stray": "shards that are not in the manifest",
    "layout": "plans of finished outputs",
}
"""Describes each kind of file, in display order."""
DAYS = 7.0
"""Parts and copies written within this number of days are kept by default."""
_FOREIGN_SECONDS = 86_400.0
"""Seconds after which a draft of another machine counts as abandoned; its process cannot be checked from here."""
_DRAFT = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
_ARROW, _PARQUET, _ZSTD, _STREAM = b"ARROW1", b"PAR1", b"\x28\xb5\x2f\xfd", b"\xff\xff\xff\xff"
_NOTE = b'{"check":"'
"""The first bytes of a checksummed note."""
_LISTED = b'["remote/'
_RECORD = re.compile(r"encoded/[0-9a-f]{2}/[0-9a-f]{64}\.json")
_PART = re.compile(r"encoded/[0-9a-f]{2}/[0-9a-f]{64}-[0-9a-f]{16}\.arrow")
_SHARD = re.compile(r"(?:[a-z]+/)?shards/\d{5,}-[0-9a-f]{16}\.(?:arrow|parquet)")
_LAYOUT = re.compile(r"_run/layout/(?:[a-z]+-\d{5,}-(?:pieces|rows)|packed)\.arrow")
_COPIES: tuple[tuple[re.Pattern[str], tuple[bytes, ...]], ...] = (
    (re.compile(r"blocks/[0-9a-f]{2}/[0-9a-f]{64}(?:\.arrow)?\.zst"), (_ZSTD,)),
    (re.compile(r"scans/(?:file-|source-)?[0-9a-f]{64}\.json"), (_NOTE,)),
    (re.compile(r"(?:overlaps/[0-9a-f]{2}|evaluations)/[0-9a-f]{64}\.json"), (_NOTE,)),
    (re.compile(r"evaluations/[0-9a-f]{64}-[0-9a-f]{16}\.arrow"), (_ARROW,)),
    (re.compile(r"remote/[0-9a-f]{64}\.json"), (_LISTED,)),
    (re.compile(r"copies/[0-9a-f]{2}/[0-9a-f]{64}"), (_ARROW, _PARQUET, _STREAM)),
    (re.compile(r"hub/(?:[^/]+/){2,4}[0-9a-f]{16,64}/[^/]+\.arrow"), (_ARROW, _STREAM)),
)
"""How copies of inputs are recognised: (pattern of the name, possible first bytes)."""
_HASHED = re.compile(r"(?:remote/([0-9a-f]{40})(?:\.[A-Za-z0-9]{1,8}){0,2}|copies/[0-9a-f]{2}/([0-9a-f]{64}))")
"""Pattern of copies with any content, which are named by its BLAKE3 hash."""
_COPY_FOLDERS = ("blocks", "scans", "remote", "hub", "copies", "evaluations", "overlaps")


@dataclass(frozen=True, slots=True)
class Item:
    """One file to remove."""

    kind: Kind
    path: Path
    bytes: int


class _PartNoteHead(msgspec.Struct):
    """The fields of a part's record that name its part."""

    part: str
    bytes: int


class Cleaning:
    """Finds and removes files. While its context is open, no run can start on the cache.

    Args:
        cache: a local cache; None to clean outputs only.
        outs: outputs to clean. Other outputs near the cache are only read, to learn which parts they were made from.
        days: parts and copies written within this number of days are kept.
        everything: remove all parts and copies, even new ones and those that outputs were made from.

    Raises:
        ConfigError: the folder is not a cache of packtrain.
        BusyError: a run or a stream is using the cache or an output.
    """

    def __init__(
        self, cache: LocalStore | None, outs: Iterable[LocalStore], *, days: float = DAYS, everything: bool = False
    ) -> None:
        if cache is not None and cache.root.is_dir() and not is_cache(cache.root):
            raise ConfigError(
                f"{cache.root} has no {TAG} by packtrain, so nothing is removed from it. Every run marks its cache "
                "with this file, unless the folder has other content. If an earlier version made this cache, first "
                "run a configuration that uses it"
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
                raise BusyError(f"a run is, or may be, working on {out.url}; let it finish, then clean again")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._alone is not None:
            self._alone.release()

    def find(self) -> list[Item]:
        """The files to remove, by kind, largest first."""
        found = [item for out in self.outs for item in self._of_output(out)]
        if self.cache is not None:
            found += self._of_cache(self.cache)
        order = list(KINDS)
        return sorted(found, key=lambda item: (order.index(item.kind), -item.bytes, str(item.path)))

    def remove(self, items: Iterable[Item]) -> int:
        """Remove files, records before their parts, and return the bytes freed.

        Raises:
            StoreError: a file cannot be removed.
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
            return  # not an output of packtrain
        yield from _drafts(out, [""], deep=True)
        known = finished if finished is not None else {shard.name for shard in recorded(out)}
        for name, path in _files(out, ""):
            if _SHARD.fullmatch(name) and name not in known and _begins(path, _STREAM, _PARQUET):
                yield Item("stray", path, _size(path))
            elif self.everything and finished is not None and _LAYOUT.fullmatch(name) and _begins(path, _ARROW):
                yield Item("layout", path, _size(path))


def outputs_near(cache: LocalStore) -> list[LocalStore]:
    """Find the outputs beside the cache: those whose notes are one or two folders below the cache's parent."""
    above = cache.root.parent
    notes = [*above.glob("*/_run"), *above.glob("*/*/_run")]
    return [LocalStore(note.parent) for note in sorted(notes)]


def _used(cache: LocalStore, outs: Iterable[LocalStore]) -> set[str]:
    """Return the names of parts that the given outputs, and those near the cache, were made from."""
    used: set[str] = set()
    for out in [*outputs_near(cache), *outs]:
        listed = recall_part_list(out)
        if listed is not None and Path(listed.cache) == cache.root:
            used.update(part.name for part in listed.parts)
    return used


def _drafts(store: LocalStore, folders: Iterable[str], *, deep: bool = False) -> Iterator[Item]:
    """Find drafts of dead processes, and drafts of other machines that are a day old.

    Args:
        folders: where to search, including subfolders; for "" only the top folder, unless `deep`.
    """
    now = time.time()
    for folder in folders:
        for name, path in _files(store, folder):
            match = _DRAFT.fullmatch(path.name)
            if match is None or (folder == "" and "/" in name and not deep):
                continue
            here = match["host"] == os.uname().nodename
            if not process_runs(int(match["pid"])) if here else now - _written(path) > _FOREIGN_SECONDS:
                yield Item("draft", path, _size(path))


def _files(store: LocalStore, folder: str) -> Iterator[tuple[str, Path]]:
    """(name, path) of the regular files below a folder of a store, sorted, without following links."""
    above = store.root / folder if folder else store.root
    if folder and above.is_symlink():
        return
    for where, folders, names in os.walk(above):  # does not follow links
        folders.sort()
        for name in sorted(names):
            path = Path(where, name)
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path.relative_to(store.root).as_posix(), path


def _begins(path: Path, *heads: bytes) -> bool:
    """Whether a file starts with one of these bytes."""
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


def _finished(out: LocalStore) -> set[str] | None:
    """Names of the shards in the manifest; None if there is no manifest."""
    manifest = read_manifest(out)
    if manifest is None:
        return None
    return {shard.name for split in manifest.splits.values() for shard in split.shards}


def _head(path: Path) -> _PartNoteHead | None:
    try:
        return decode_note(unseal(path.read_bytes()), _PartNoteHead)
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
