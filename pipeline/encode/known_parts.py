"""The encoded parts of a cache that this process knows: which exist, and which it has checked."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...schemas.errors import IntegrityError
from ...schemas.names import part_record, record_name
from ...stages.tokenize.engine_check import compare
from ...stages.tokenize.engines import REFERENCE, TokenizersEngine
from ..observer import Observer
from ..store.checksummed import seal
from ..store.local import LocalStore
from ..store.open_store import Store, StoredFile, ask_all, damaged
from .encode_spec import EncodeSpec
from .parts import PartRecord, decode_record
from .task import EncodeResult, EncodeTask

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DAY = 86_400.0


class KnownParts:
    """Reads, checks and writes the records of parts. A part counts as complete if it has a record."""

    def __init__(self, cache: Store) -> None:
        self.cache = cache
        self.reference: Tokenizer | None = None
        """The reference tokenizer, if this process has compared samples."""
        self._whole: set[str] = set()
        """Parts that this process has made or checked."""
        self._far: dict[str, PartRecord] = {}
        """Records found so far in a remote store."""

    def records(self, tasks: Sequence[EncodeTask]) -> dict[str, PartRecord]:
        """The records of the tasks, by key; tasks whose parts are not in the cache have none."""
        keys = list(dict.fromkeys(task.key for task in tasks))
        unknown = [key for key in keys if key not in self._far]
        asked = zip(unknown, ask_all(self.cache, self._record, unknown), strict=True)
        found = {key: record for key, record in asked if record is not None}
        if not isinstance(self.cache, LocalStore):
            # Asking a remote store again would cost two requests per block. A local folder is asked again, because
            # parts may have been removed.
            self._far.update(found)
        return {key: record for key in keys if (record := self._far.get(key) or found.get(key)) is not None}

    def holds(self, task: EncodeTask) -> bool:
        """Whether the cache has the part of a task now; asks the store again."""
        return self._record(task.key) is not None

    def intact(self, tasks: Sequence[EncodeTask], observer: Observer) -> dict[str, PartRecord]:
        """As `records`, after checking parts of earlier runs against their hashes. Damaged ones lose their record."""
        records = self.records(tasks)
        keys = {
            StoredFile(record.part, record.bytes, record.hash): key
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
            IntegrityError: a sample or a rendering differs from the reference, and the part is not used; or the same
                block gave a different part before.
        """
        if result.mismatches:
            raise IntegrityError(
                f"{result.source}: the chat template gave another text by the fast way than by jinja2; please report "
                f"the template, and meanwhile use tokenizer.trace=false"
            )
        if spec.engine != REFERENCE and result.samples:
            engine = TokenizersEngine(spec.tokenizer_json)  # loaded once, see `reference_tokenizer`
            self.reference = engine.tokenizer
            found = compare(result.samples, engine)
            if found.differing:
                raise wrong_engine(spec, found.first)
        name, data = record_name(result.key), seal(msgspec.json.encode(result.record))
        if not self.cache.put_bytes(name, data):
            earlier = self._noted(result.key)  # if missing or malformed, it is replaced
            if earlier is not None and earlier.hash != result.record.hash:
                raise IntegrityError(
                    f"encoding is not deterministic: {name} was made before with other content "
                    f"({earlier.hash[:16]} then, {result.record.hash[:16]} now); please report it with the input"
                )
            self.cache.replace_bytes(name, data)
        self._whole.add(result.record.part)

    def _record(self, key: str) -> PartRecord | None:
        record = self._noted(key)
        if record is None or self.cache.size(record.part) != record.bytes:
            return None  # or the part does not match its record: it is made again
        if isinstance(self.cache, LocalStore):
            for name in (record.part, record_name(key)):
                _note_use(self.cache.path(name))
        return record

    def _noted(self, key: str) -> PartRecord | None:
        """The record of a key; None if it is missing, malformed, or the record of another key."""
        record = decode_record(self.cache.read(record_name(key)))
        return record if record is not None and part_record(record.part) == record_name(key) else None


def _note_use(path: Path) -> None:
    """Keep a file from being cleaned by its age. Its time is good to a day, to save writes."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY:
            os.utime(path)


def wrong_engine(spec: EncodeSpec, where: str) -> IntegrityError:
    """The error of an engine that gave other tokens than the reference.

    Args:
        where: which text, and which tokens.
    """
    return IntegrityError(
        f"tokenizer engine {spec.engine} {spec.engine_version} gives other tokens than the reference {where}; please "
        f"report it, and use tokenizer.engine={REFERENCE}"
    )
