"""Clean: what in a cache and in outputs nobody needs any more, shown first, then removed.

Nothing is removed that could not be made again, and nothing of a dataset: a run afterwards encodes what is gone and
gives the same bytes. A cache that a run or a stream uses is left alone (`cache_use`), as is an output at work.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ..schemas.errors import BusyError, StoreError
from ..schemas.jsontext import decode_note
from .cache_use import CacheAlone
from .driver_lock import Leases
from .manifests import read_manifest
from .outfolder import PLAN
from .parts import PartList
from .sealed import unseal
from .store import LocalStore, explain
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
_COPIES = ("blocks", "scans", "remote", "hub", "copies")
_FOREIGN_SECONDS = 86_400.0
"""A draft of another machine counts as left behind after so long: nobody here can ask whether its writer lives."""
_DRAFT = re.compile(r"\.tmp-(?P<host>.*)-(?P<pid>\d+)-[0-9a-f]+")
_SHARD = re.compile(r"(?:[a-z]+/)?shards/\d{5,}-[0-9a-f]{16}\.(?:arrow|parquet)")


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
        BusyError: a run or a stream uses the cache, or an output.
    """

    def __init__(
        self, cache: LocalStore | None, outs: Iterable[LocalStore], *, days: float = DAYS, everything: bool = False
    ) -> None:
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
        yield from _drafts(cache)
        used = set[str]() if self.everything else _used(cache, self.outs)
        vouched: dict[str, Path] = {}
        for path in sorted(cache.path("encoded").glob("*/*.json")):
            head = _head(path)
            if head is None or cache.size(head.part) != head.bytes:
                yield Item("orphan", path, _size(path))
            else:
                vouched[head.part] = path
        for path in sorted(cache.path("encoded").glob("*/*.arrow")):
            name = path.relative_to(cache.root).as_posix()
            record = vouched.get(name)
            if record is None:
                yield Item("orphan", path, _size(path))
            elif name not in used and (self.everything or _written(path) < self._before):
                yield Item("part", path, _size(path))
                yield Item("part", record, _size(record))
        for folder in _COPIES:
            for path in sorted(cache.path(folder).rglob("*")):
                old = self.everything or _written(path) < self._before
                if path.is_file() and not path.is_symlink() and not path.name.startswith(".tmp-") and old:
                    yield Item("copy", path, _size(path))

    def _of_output(self, out: LocalStore) -> Iterator[Item]:
        yield from _drafts(out)
        finished = _finished(out)
        if finished is None and not out.exists(PLAN):
            return  # nothing of ours
        known = finished if finished is not None else {shard.name for shard in recorded(out)}
        for name in out.names():
            if _SHARD.fullmatch(name) and name not in known:
                yield Item("stray", out.path(name), out.size(name) or 0)
            elif self.everything and finished is not None and name.startswith("_run/layout/"):
                yield Item("layout", out.path(name), out.size(name) or 0)


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


def _drafts(store: LocalStore) -> Iterator[Item]:
    """What `LocalStore.sweep` would remove, and drafts of other machines that are a day old."""
    now = time.time()
    for path in sorted(store.root.rglob(".tmp-*")):
        match = _DRAFT.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        here = match["host"] == os.uname().nodename
        if _gone(int(match["pid"])) if here else now - _written(path) > _FOREIGN_SECONDS:
            yield Item("draft", path, _size(path))


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
