"""Records of files: a file counts as finished only with a record of what it holds, whichever process made both."""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from ...schemas.dataset.manifest import FileRecord
from ..observer import Observer
from .local import LocalStore, SizeAndHash, Store
from .open_store import ask_all
from .sealed_notes import get_note, put_note

_HASHING_THREADS = 4
"""Threads that compare files with their hashes."""


class HasFile(Protocol):
    """A record of a file."""

    @property
    def file(self) -> FileRecord:
        """Its name, size and hash."""


RecordT = TypeVar("RecordT", bound=HasFile)


class Records(Generic[RecordT]):
    """Records of one kind in a store, by their names.

    Args:
        kind: the class of the records.
    """

    def __init__(self, store: Store, kind: type[RecordT]) -> None:
        self.store = store
        self._kind = kind
        self._verified: set[FileRecord] = set()
        """Files that were found to match their hash, so that each is read for this only once in a run."""

    def find(self, name: str) -> RecordT | None:
        """A record; None if it is missing or damaged, or its file is missing or has another size."""
        record = get_note(self.store, name, self._kind)
        # Only the size is compared: that costs no reading. `find_intact` compares hashes.
        if record is None or self.store.size(record.file.name) != record.file.bytes:
            return None
        return record

    def find_all(self, names: Collection[str]) -> dict[str, RecordT]:
        """Name → record, of those that are found."""
        records = ask_all(self.store, self.find, names)
        return {name: record for name, record in zip(names, records, strict=True) if record is not None}

    def find_intact(
        self, names: Collection[str], observer: Observer, damaged: Collection[str] = ()
    ) -> dict[str, RecordT]:
        """As `find_all`, after comparing the files with their hashes. The record of a damaged file is removed, so that
        the file is made again.

        Args:
            damaged: names of files that are known to be damaged.
        """
        records = self.find_all(names)
        all_damaged = self._find_damaged(record.file for record in records.values()) | {*damaged}
        for name, record in list(records.items()):  # a copy, because damaged ones are deleted meanwhile
            if record.file.name in all_damaged:
                observer.note(f"{self.store.where(record.file.name)} is damaged, and is made again")
                self.store.remove(name)
                del records[name]
        return records

    def add(self, name: str, record: RecordT) -> None:
        """Write the record of a new file, which counts as verified."""
        put_note(self.store, name, record)
        self._verified.add(record.file)

    def _find_damaged(self, files: Iterable[FileRecord]) -> set[str]:
        """The names of files that do not match their hash: disks and memory flip bits. Files of remote stores are not
        read here, because copies are checked when they are fetched.
        """
        store = self.store
        if not isinstance(store, LocalStore):
            return set()
        unverified = [file for file in files if file not in self._verified]
        damaged: set[str] = set()
        with ThreadPoolExecutor(_HASHING_THREADS, "packtrain-check") as pool:
            try:
                actual_hashes = pool.map(lambda file: store.hash(file.name), unverified)
                for file, actual in zip(unverified, actual_hashes, strict=True):
                    if actual == SizeAndHash(file.bytes, file.hash):
                        self._verified.add(file)
                    else:
                        damaged.add(file.name)
            except KeyboardInterrupt:
                # Without this, Ctrl-C would wait until all files are read.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return damaged
