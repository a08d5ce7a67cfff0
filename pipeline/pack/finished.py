"""Finished shards and documents tables, from this process, an earlier one, or a concurrent one."""

from dataclasses import dataclass, field

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import FileRecord
from ..execute.checking import damaged
from ..observer import Observer
from ..store.checksummed import unseal
from ..store.open import Store, StoredFile
from .documents import NAME, RECORD, DocumentsTask
from .shard import PackResult, ShardTask


@dataclass(slots=True)
class FinishedShards:
    """Finished files of the output that this process knows of."""

    out: Store
    results: dict[str, PackResult] = field(default_factory=dict)
    """Results by the name of their record."""
    documents: FileRecord | None = None

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

    def forget_damaged(self, observer: Observer) -> None:
        """Remove files that do not match their record, so that they are made again."""
        records = [result.shard for result in self.results.values()] + ([self.documents] if self.documents else [])
        bad = damaged(self.out, [StoredFile(one.name, one.bytes, one.hash) for one in records])
        for name in sorted(bad):
            observer.note(f"{self.out.where(name)} is damaged, and is made again")
        for record in [record for record, result in self.results.items() if result.shard.name in bad]:
            self.out.remove(record)
            del self.results[record]
        if NAME in bad:
            self.out.remove(RECORD)
            self.documents = None

    def have(self, task: ShardTask | DocumentsTask) -> bool:
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
