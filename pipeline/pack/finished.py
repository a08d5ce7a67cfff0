"""Finished shards and documents tables, from this process, an earlier one, or a concurrent one."""

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import FileRecord, ShardRecord
from ..execute.checking import damaged
from ..observer import Observer
from ..store.checksummed import unseal
from ..store.open_store import Store, StoredFile
from .documents import RECORD, DocumentsTask
from .shard import PackResult, ShardTask

Done: TypeAlias = PackResult | FileRecord
"""What a shard's task gives, and what the task of documents.parquet gives."""


@dataclass(slots=True)
class FinishedFiles:
    """Finished files of the output that this process knows of."""

    out: Store
    known: dict[str, Done] = field(default_factory=dict)
    """Results by the name of their record."""

    @property
    def tokens(self) -> int:
        """Tokens of all known shards."""
        return sum(done.shard.tokens for done in self.known.values() if isinstance(done, PackResult))

    def look(self, folders: list[str], observer: Observer) -> None:
        """Find the results of earlier processes, and remove files that do not match their record, so that they are made
        again.

        Args:
            folders: folders of the splits' shards.
        """
        for record in (RECORD, *(name for folder in folders for name in self.out.names(f"_run/{folder}"))):
            if record.endswith(".json"):
                self._find(record)
        files = {record: _file(done) for record, done in self.known.items()}
        bad = damaged(self.out, [StoredFile(one.name, one.bytes, one.hash) for one in files.values()])
        for name in sorted(bad):
            observer.note(f"{self.out.where(name)} is damaged, and is made again")
        for record in [record for record, file in files.items() if file.name in bad]:
            self.out.remove(record)
            del self.known[record]

    def have(self, task: ShardTask | DocumentsTask) -> bool:
        """Whether any process has done a task."""
        return self._find(task.record) is not None

    def add(self, done: Done) -> None:
        """Add a result of this process."""
        self.known[done.record if isinstance(done, PackResult) else RECORD] = done

    def get(self, record: str) -> Done:
        """Return the result of a task that is done.

        Raises:
            IntegrityError: the record or its file is gone.
        """
        done = self._find(record)
        if done is None:
            raise IntegrityError(f"{self.out.where(record)} or its file vanished; run again")
        return done

    def _find(self, record: str) -> Done | None:
        if record not in self.known and (data := unseal(self.out.read(record), record)) is not None:
            done: Done
            try:
                done = decode_note(data, FileRecord) if record == RECORD else decode_note(data, PackResult)
            except msgspec.ValidationError:
                return None  # written by another version, with different counts
            if self.out.size(_file(done).name) == _file(done).bytes:
                self.known[record] = done
        return self.known.get(record)


def _file(done: Done) -> FileRecord | ShardRecord:
    return done.shard if isinstance(done, PackResult) else done
