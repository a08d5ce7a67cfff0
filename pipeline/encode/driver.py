"""The encoding step: finds missing parts, and has them made."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...schemas.errors import IntegrityError
from ...schemas.manifest import FileRecord
from ..contamination import Contamination
from ..execute.executor import Executor, perform
from ..observer import Observer
from ..store.local import LocalStore
from ..store.open_store import Store
from .encode_spec import EncodeSpec
from .first_look import LOOKS
from .known_parts import KnownParts
from .parts import PartPlace, PartRecord
from .preload import share_tokenizer
from .prepared import Prepared
from .task import EncodeResult


@dataclass(frozen=True, slots=True)
class Encoded:
    """All blocks of all inputs, encoded."""

    spec: EncodeSpec
    cache: Store
    """The store that holds the parts."""
    places: tuple[PartPlace, ...]
    records: tuple[PartRecord, ...]
    """The record of each part in `places`."""
    not_taken: dict[str, int] = field(default_factory=dict)
    """By source, rows beyond `max_rows`; these are not encoded."""
    contamination: Contamination | None = None
    """What the examples share with evaluation rows; None if they are not compared."""


def encode(
    prepared: Prepared, parts: KnownParts, executor: Executor, observer: Observer, *, shared: bool = False
) -> Encoded:
    """Encode what is missing in the cache, after checking the cached parts against their hashes.

    Args:
        shared: whether other drivers may be encoding the same blocks.

    Raises:
        InputError: an input has changed since it was scanned.
        IntegrityError: the engine or the trace was found wrong; or a part vanished from the cache.
    """
    cache, tasks = parts.cache, prepared.tasks(parts.cache)
    prepared.spec.save(cache)
    found = parts.intact(tasks, observer)
    first = {task.key: task for task in reversed(tasks)}  # of equal blocks only the first is encoded
    missing = {key: task for key, task in first.items() if key not in found}
    for folder in ("specs", LOOKS, *(("encoded", "blocks", "scans") if missing else ())):
        cache.sweep(folder)
    if missing:
        share_tokenizer(prepared.spec, cache.scratch)
        observer.begin("encode", sum(task.block.end - task.block.start for task in missing.values()), "B")
        # For a remote store this costs a request per block, which is only worth it if other drivers share the work.
        look = shared or isinstance(cache, LocalStore)
        # Others that share the work or the cache may be encoding the same blocks.
        every = list({task.key: task for task in tasks}.values())
        for result in executor.map(
            perform, every, lambda task: task.key not in missing or (look and parts.holds(task))
        ):
            assert isinstance(result, EncodeResult)
            parts.add(result, prepared.spec)
            record = result.record
            observer.advance(record.bytes_read, rows=record.rows, tokens=record.counts.tokens)
        observer.end()
        found = parts.records(tasks)
    for task in tasks:
        if task.key not in found:
            raise IntegrityError(f"the encoded part of {task} vanished from the cache; run again")
    records = tuple(found[task.key] for task in tasks)
    not_taken = Counter[str]()
    for file in prepared.files:
        not_taken[file.source] += file.not_taken
    return Encoded(prepared.spec, cache, _places(prepared, cache, records), records, dict(not_taken))


def _places(prepared: Prepared, cache: Store, records: Sequence[PartRecord]) -> tuple[PartPlace, ...]:
    numbers = {source.name: number for number, source in enumerate(prepared.sources)}
    blocks = [(file, block) for file in prepared.joined for block in file.blocks]
    return tuple(
        PartPlace(
            cache,
            FileRecord(record.part, record.bytes, record.hash),
            numbers[file.source],
            file.lines_of(block),
        )
        for (file, block), record in zip(blocks, records, strict=True)
    )
