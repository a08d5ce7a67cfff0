"""Finished shards, from this process, an earlier one, or a concurrent one."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...schemas.errors import IntegrityError
from ..observer import Observer
from ..store.open_store import Store, damaged
from ..store.sealed_notes import get_note
from .documents import DocumentsTask
from .shard import PackResult, ShardTask


@dataclass(slots=True)
class FinishedShards:
    """Finished shards of the output that this process knows of."""

    out: Store
    known: dict[str, PackResult] = field(default_factory=dict)
    """Results by the name of their record."""

    def look(self, folders: Iterable[str], observer: Observer) -> None:
        """Find the results of earlier processes, and remove files that do not match their record, so that they are made
        again.

        Args:
            folders: folders of the splits' shards.
        """
        for name in (name for folder in folders for name in self.out.names(f"_run/{folder}")):
            if name.endswith(".json"):
                self._find(name)
        shards = [result.shard for result in self.known.values()]
        bad = damaged(self.out, shards)
        for name in sorted(bad):
            observer.note(f"{self.out.where(name)} is damaged, and is made again")
        for record in [record for record, result in self.known.items() if result.shard.name in bad]:
            self.out.remove(record)
            del self.known[record]

    def have(self, task: ShardTask | DocumentsTask) -> bool:
        """Whether any process has written a shard."""
        return isinstance(task, ShardTask) and self._find(task.record) is not None

    def get(self, task: ShardTask) -> PackResult:
        """Return the result of a task that is done.

        Raises:
            IntegrityError: the record or its shard is gone.
        """
        done = self._find(task.record)
        if done is None:
            raise IntegrityError(f"{self.out.where(task.record)} or its file vanished; run again")
        return done

    def _find(self, record: str) -> PackResult | None:
        done = get_note(self.out, record, PackResult) if record not in self.known else None
        if done is not None and self.out.size(done.shard.name) == done.shard.bytes:
            self.known[record] = done
        return self.known.get(record)
