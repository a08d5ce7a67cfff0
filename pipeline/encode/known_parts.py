"""The encoded parts of a cache that this process knows: which exist, and which it has checked."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...schemas.errors import IntegrityError
from ...schemas.manifest import FileRecord
from ...schemas.names import record_name
from ...stages.tokenize.engine_check import difference
from ...stages.tokenize.engines import REFERENCE, TokenizersEngine
from ..observer import Observer
from ..store.local import LocalStore
from ..store.open_store import Store, ask_all, damaged
from ..store.sealed_notes import put_note
from .encode_spec import EncodeSpec
from .parts import PartRecord, read_record
from .task import EncodeResult, EncodeTask

_DAY = 86_400.0


class KnownParts:
    """Reads, checks and writes the records of parts. A part counts as complete if it has a record."""

    def __init__(self, cache: Store) -> None:
        self.cache = cache
        self._whole: set[str] = set()
        """Parts that this process has made or checked."""

    def records(self, tasks: Sequence[EncodeTask]) -> dict[str, PartRecord]:
        """The records of the tasks, by key; tasks whose parts are not in the cache have none."""
        keys = list(dict.fromkeys(task.key for task in tasks))
        asked = zip(keys, ask_all(self.cache, self._record, keys), strict=True)
        return {key: record for key, record in asked if record is not None}

    def holds(self, task: EncodeTask) -> bool:
        """Whether the cache has the part of a task now."""
        return self._record(task.key) is not None

    def intact(self, tasks: Sequence[EncodeTask], observer: Observer) -> dict[str, PartRecord]:
        """As `records`, after checking parts of earlier runs against their hashes. Damaged ones lose their record."""
        records = self.records(tasks)
        keys = {
            FileRecord(record.part, record.bytes, record.hash): key
            for key, record in records.items()
            if record.part not in self._whole
        }
        found = damaged(self.cache, keys)
        for file, key in keys.items():
            if file.name in found:
                self.cache.remove(record_name(key))
                del records[key]
                observer.note(f"{self.cache.where(file.name)} is damaged, and is made again")
            else:
                self._whole.add(file.name)
        return records

    def add(self, result: EncodeResult, spec: EncodeSpec) -> None:
        """Check a new part's samples against the reference, then write its record.

        Raises:
            IntegrityError: a sample or a rendering differs from the reference, and the part is not used.
        """
        if result.mistaken:
            raise IntegrityError(
                f"{result.source}: the chat template gave another text by the fast way than by jinja2; please report "
                f"the template, and meanwhile use tokenizer.trace=false"
            )
        if spec.engine != REFERENCE and result.samples:
            found = difference(result.samples, TokenizersEngine(spec.tokenizer.json))  # loaded once in a process
            if found:
                raise IntegrityError(
                    f"tokenizer engine {spec.engine} {spec.engine_version} gives other tokens than the reference "
                    f"{found}; please report it, and use tokenizer.engine={REFERENCE}"
                )
        put_note(self.cache, record_name(result.key), result.record)
        self._whole.add(result.record.part)

    def _record(self, key: str) -> PartRecord | None:
        record = read_record(self.cache, record_name(key))
        if record is None or self.cache.size(record.part) != record.bytes:
            return None  # or the part does not match its record: it is made again
        if isinstance(self.cache, LocalStore):
            for name in (record.part, record_name(key)):
                _note_use(self.cache.path(name))
        return record


def _note_use(path: Path) -> None:
    """Keep a file from being cleaned by its age. Its time is good to a day, to save writes."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY:
            os.utime(path)
