"""Finished shards and documents tables, from this process, an earlier one, or a concurrent one."""

from dataclasses import dataclass, field

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import FileRecord
from ..execute.checking import ALONE_BYTES, CheckAhead, damaged
from ..execute.executor import Executor
from ..observer import Observer
from ..store.checksummed import unseal
from ..store.local import LocalStore
from ..store.open import Store, StoredFile
from .documents import NAME, RECORD, DocumentsTask
from .task import PackResult, PackTask


@dataclass(slots=True)
class FinishedShards:
    """Finished files of the output that this process knows of."""

    out: Store
    results: dict[str, PackResult] = field(default_factory=dict)
    """Results by the name of their record."""
    documents: FileRecord | None = None
    _ahead: list[CheckAhead] = field(default_factory=list)

    def __enter__(self) -> "FinishedShards":
        return self

    def __exit__(self, *_: object) -> None:
        for check in self._ahead:
            check.__exit__()

    @property
    def tokens(self) -> int:
        """Tokens of all known shards."""
        return sum(result.shard.tokens for result in self.results.values())

    def look(self, folders: list[str]) -> None:
        """Find the results of earlier processes.

        Args:
            folders: folders of the splits' shards.
        """
        for folder in folders:
            for name in self.out.names(f"_run/{folder}"):
                if name.endswith(".json"):
                    self._result(name)
        self._documents()

    def check_ahead(self, folders: list[str], begun: CheckAhead | None = None) -> None:
        """Begin to compare the results of earlier processes with their records, in threads, for `forget_damaged`.

        Args:
            folders: folders of the splits' shards.
            begun: an earlier check of some of them.
        """
        if not isinstance(self.out, LocalStore):
            return  # copies are checked when they are fetched
        self.look(folders)
        files = set(self._files())
        if begun is not None:
            self._ahead.append(begun)
            files.difference_update(begun.files)
        if files and sum(file.bytes for file in files) <= ALONE_BYTES:
            self._ahead.append(CheckAhead(self.out, files))

    def forget_damaged(self, executor: Executor, observer: Observer) -> None:
        """Remove files that do not match their record, so that they are made again."""
        checked, bad = set[StoredFile](), set[str]()
        for check in self._ahead:
            checked.update(check.files)
            bad |= check.damaged()
        bad |= damaged(executor, self.out, [file for file in self._files() if file not in checked])
        for name in sorted(bad):
            observer.note(f"{self.out.where(name)} is damaged, and is made again")
        for record in [record for record, result in self.results.items() if result.shard.name in bad]:
            self.out.remove(record)
            del self.results[record]
        if NAME in bad:
            self.out.remove(RECORD)
            self.documents = None

    def _files(self) -> list[StoredFile]:
        records = [result.shard for result in self.results.values()] + ([self.documents] if self.documents else [])
        return [StoredFile(one.name, one.bytes, one.hash) for one in records]

    def have(self, task: PackTask | DocumentsTask) -> bool:
        """Whether any process has done a task."""
        found = self._documents() if isinstance(task, DocumentsTask) else self._result(task.record)
        return found is not None

    def add(self, made: PackResult | FileRecord) -> None:
        """Add a result of this process."""
        if isinstance(made, FileRecord):
            self.documents = made
        else:
            self.results[made.record] = made

    def shard(self, record: str) -> PackResult:
        """Return the shard that a record describes.

        Raises:
            IntegrityError: the record or its file is gone.
        """
        result = self._result(record)
        if result is None:
            raise IntegrityError(f"{self.out.where(record)} or its shard vanished; run again")
        return result

    def table(self) -> FileRecord:
        """Return the record of the table of documents.

        Raises:
            IntegrityError: the table is gone.
        """
        documents = self._documents()
        if documents is None:
            raise IntegrityError(f"{self.out.where(NAME)} was not written; run again")
        return documents

    def _result(self, record: str) -> PackResult | None:
        if record in self.results:
            return self.results[record]
        data = unseal(self.out.read(record), record)
        if data is None:
            return None
        try:
            result = decode_note(data, PackResult)
        except msgspec.ValidationError:
            return None  # written by another version, with different counts
        if self.out.size(result.shard.name) != result.shard.bytes:
            return None
        self.results[record] = result
        return result

    def _documents(self) -> FileRecord | None:
        if self.documents is None:
            data = unseal(self.out.read(RECORD), RECORD)
            record = decode_note(data, FileRecord) if data is not None else None
            self.documents = record if record is not None and self.out.size(NAME) == record.bytes else None
        return self.documents
