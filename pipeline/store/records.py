"""Records of files: a file counts as finished only with a record of what it holds, whichever process has made both."""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from ...schemas.dataset.manifest import FileRecord
from ..observer import Observer
from .local import LocalStore, SizeAndHash, Store
from .open_store import ask_all
from .sealed_notes import get_note, put_note

_THREADS = 4
"""Threads that compare files with their hashes."""


class OfFile(Protocol):
    """A record of a file."""

    @property
    def file(self) -> FileRecord:
        """Its name, size and hash."""


RecordT = TypeVar("RecordT", bound=OfFile)


class Records(Generic[RecordT]):
    """Records of one kind in a store, by their names.

    Args:
        kind: what a record is.
    """

    def __init__(self, store: Store, kind: type[RecordT]) -> None:
        self.store, self._kind = store, kind
        self._whole: set[FileRecord] = set()
        """Files that match their hash."""

    def find(self, name: str) -> RecordT | None:
        """A record; None if it is missing or damaged, or its file has another size: that is made again."""
        record = get_note(self.store, name, self._kind)
        return record if record is not None and self.store.size(record.file.name) == record.file.bytes else None

    def all(self, names: Collection[str]) -> dict[str, RecordT]:
        """Those of some records that are found."""
        found = zip(names, ask_all(self.store, self.find, names), strict=True)
        return {name: record for name, record in found if record is not None}

    def intact(self, names: Collection[str], observer: Observer, wrong: Collection[str] = ()) -> dict[str, RecordT]:
        """As `all`, after checking the files against their hashes, once for each. Damaged ones lose their record.

        Args:
            wrong: names of files that are known to be damaged.
        """
        records = self.all(names)
        bad = self._damaged(record.file for record in records.values()) | {*wrong}
        for name, record in [*records.items()]:
            if record.file.name in bad:
                observer.note(f"{self.store.where(record.file.name)} is damaged, and is made again")
                self.store.remove(name)
                del records[name]
        return records

    def add(self, name: str, record: RecordT) -> None:
        """Write the record of a new file."""
        put_note(self.store, name, record)
        self._whole.add(record.file)

    def _damaged(self, files: Iterable[FileRecord]) -> set[str]:
        """The names of files that do not match their hash: disks and memory flip bits. Files of remote stores are not
        read here, because copies are checked when they are fetched.
        """
        store = self.store
        if not isinstance(store, LocalStore):
            return set()
        some = [file for file in files if file not in self._whole]
        with ThreadPoolExecutor(_THREADS, "packtrain-check") as pool:
            try:
                puts = pool.map(lambda one: store.hash(one.name), some)
                whole = {
                    file for file, put in zip(some, puts, strict=True) if put == SizeAndHash(file.bytes, file.hash)
                }
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)  # else all files are read first
                raise
        self._whole |= whole
        return {file.name for file in some if file not in whole}
