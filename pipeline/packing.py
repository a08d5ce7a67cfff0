"""Packing encoded parts: what stays, which rows, the shards, and the account of it."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import InputError
from ..schemas.ledger import Ledger
from ..schemas.manifest import FileRecord, SplitRecord
from ..stages.arrays import numbers, view
from ..stages.mask import Mask
from ..stages.truncate import Keep, Kept, Overlong, truncate
from .accounts import account_documents, account_shards, open_ledger
from .catalogue import Catalogue, Clip, Holdout, read_catalogue
from .documents import NAME, RECORD, DocumentsPart, DocumentsTask
from .encoding import EncodedInputs
from .executors import Executor
from .observer import Observer
from .pack import PackResult, PackTask
from .parts import EncodedPart
from .planning import WindowPlan, plan_split, put_arrow
from .rowsizes import write_row_sizes
from .store import LocalStore
from .worker import Task, perform

_PARTS = "_run/parts.json"
_PACKED = "_run/layout/packed.arrow"


@dataclass(frozen=True, slots=True)
class Packed:
    """Everything written, and the account that closed."""

    splits: dict[str, SplitRecord]
    documents: FileRecord
    row_sizes: tuple[FileRecord, ...]
    """One a split."""
    ledger: Ledger
    busy: float
    """Seconds that workers spent on shards, in all."""


class Packing:
    """The packing of one run."""

    def __init__(
        self, config: RunConfig, out: LocalStore, encoded: EncodedInputs, pad_id: int, observer: Observer
    ) -> None:
        self.config = config
        self.out = out
        self.encoded = encoded
        self.pad_id = pad_id
        self.observer = observer
        self.mask = Mask(config.mask)
        self.names = [source.name for source in config.sources]
        self.cuts = config.pack.strategy in ("bfd_split", "wrapped")
        """Whether the strategy itself cuts long documents."""

    def catalogue(self) -> Catalogue:
        """Lengths and places of all documents."""
        config = self.config
        clips = not self.cuts and config.truncate.overlong == "truncate"
        return read_catalogue(
            self.encoded.places,
            self.mask,
            Clip(config.truncate.max_length if clips else None, config.truncate.keep == "end"),
            Holdout(config.holdout.fraction, config.holdout.by == "group", config.seed),
            self.names,
        )

    def keep(self, catalogue: Catalogue) -> Kept:
        """What stays of each document.

        Raises:
            InputError: `overlong: error` and there is one.
        """
        config = self.config
        trainable = catalogue.asked - catalogue.head
        overlong = Overlong.SPLIT if self.cuts else Overlong(config.truncate.overlong)
        kept = truncate(
            catalogue.lengths,
            trainable,
            catalogue.asked_kept - catalogue.head_kept,
            config.truncate.max_length,
            overlong,
            Keep(config.truncate.keep),
            config.keep_untrained,
        )
        if overlong is Overlong.ERROR:
            self._refuse_overlong(catalogue, kept)
        return kept

    def plan(self, catalogue: Catalogue, kept: Kept) -> dict[str, list[WindowPlan]]:
        """The layout of every split, put where the tasks find it."""
        plans = {}
        for split, which in self._splits(catalogue).items():
            lengths = np.where(which, kept.lengths, 0).astype(np.int32)
            plans[split] = plan_split(self.out, split, self.config, catalogue, kept.starts, lengths)
        paths = [str(place.path) for place in self.encoded.places]
        self.out.replace_bytes(_PARTS, msgspec.json.encode(paths))
        flags = pa.RecordBatch.from_arrays([numbers(kept.lengths > 0)], names=["packed"])
        put_arrow(self.out, _PACKED, flags)
        return plans

    def write(self, executor: Executor, catalogue: Catalogue, kept: Kept, plans: dict[str, list[WindowPlan]]) -> Packed:
        """Lay out every shard that is not there yet, write the documents, close the ledger."""
        tasks = {split: self._tasks(split, windows) for split, windows in plans.items()}
        results: dict[str, PackResult] = {}
        documents: FileRecord | None = None
        waiting: list[Task] = []
        for task in [task for group in tasks.values() for task in group]:
            done = self._finished(task)
            if done is None:
                waiting.append(task)
            else:
                results[task.record] = done
        record = self.out.read(RECORD)
        if record is not None:
            documents = msgspec.json.decode(record, type=FileRecord)
        if documents is None or self.out.size(NAME) != documents.bytes:
            # Second, so that it runs beside the shards and not after them.
            waiting.insert(1, self._documents_task())
        busy = 0.0
        if waiting:
            tokens = sum(task.shard.tokens for task in waiting if isinstance(task, PackTask))
            self.observer.begin("pack", tokens, "tok")
            for result in executor.map(perform, waiting):
                if isinstance(result, FileRecord):
                    documents = result
                elif isinstance(result, PackResult):
                    shard = result.shard
                    results[result.record] = result
                    busy += result.seconds
                    self.observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
            self.observer.end()
        assert documents is not None
        splits = {
            split: SplitRecord(
                shards=tuple(results[task.record].shard for task in group),
                windows=tuple(window.certificate for window in plans[split]),
            )
            for split, group in tasks.items()
        }
        ledger = self._ledger(catalogue, kept, list(results.values()))
        several = self.config.holdout.fraction > 0
        sizes = tuple(
            write_row_sizes(self.out, f"{split}/" if several else "", windows, self.config.pack.align)
            for split, windows in plans.items()
        )
        return Packed(splits, documents, sizes, ledger, busy)

    def opened(self, catalogue: Catalogue, kept: Kept) -> Ledger:
        """The account before anything is packed: it closes when the shards are added."""
        sources = [place.source for place in self.encoded.places]
        ledger = open_ledger(self.names, sources, self.encoded.records)
        account_documents(ledger, self.names, catalogue, kept, self._splits(catalogue))
        return ledger

    def _ledger(self, catalogue: Catalogue, kept: Kept, results: list[PackResult]) -> Ledger:
        ledger = self.opened(catalogue, kept)
        account_shards(ledger, self.names, catalogue, results)
        ledger.check()
        return ledger

    def _splits(self, catalogue: Catalogue) -> dict[str, NDArray[np.bool_]]:
        if self.config.holdout.fraction > 0:
            return {"train": ~catalogue.held_out, "holdout": catalogue.held_out}
        return {"train": np.ones(len(catalogue), dtype=np.bool_)}

    def _tasks(self, split: str, windows: list[WindowPlan]) -> list[PackTask]:
        prefix = f"{split}/shards" if self.config.holdout.fraction > 0 else "shards"
        return [
            PackTask(
                self.out.root,
                _PARTS,
                window.name,
                prefix,
                shard,
                self.mask,
                self.config.pack.align,
                self.pad_id,
                self.config.output.format,
            )
            for window in windows
            for shard in window.shards
        ]

    def _finished(self, task: PackTask) -> PackResult | None:
        data = self.out.read(task.record)
        if data is None:
            return None
        result = msgspec.json.decode(data, type=PackResult)
        return result if self.out.size(result.shard.name) == result.shard.bytes else None

    def _documents_task(self) -> DocumentsTask:
        parts = tuple(
            DocumentsPart(str(place.path), self.names[place.source], place.file, place.first_line)
            for place in self.encoded.places
        )
        return DocumentsTask(self.out.root, parts, _PACKED)

    def _refuse_overlong(self, catalogue: Catalogue, kept: Kept) -> None:
        limit = self.config.truncate.max_length
        long = np.flatnonzero(kept.lengths > limit)
        if not len(long):
            return
        first = int(long[0])
        part = int(np.searchsorted(catalogue.part_starts, first, side="right")) - 1
        place = catalogue.parts[part]
        inside = first - int(catalogue.part_starts[part])
        lines = np.concatenate([view(batch.column("line")) for batch in EncodedPart(place.path).batches])
        raise InputError(
            f"{len(long):,} examples are longer than truncate.max_length ({limit:,}); the first one has "
            f"{int(catalogue.lengths[first]):,} tokens and stands in {place.file} of source "
            f"{self.names[place.source]!r}, line {place.first_line + int(lines[inside]) + 1:,}. "
            "Set truncate.overlong to truncate or drop, raise truncate.max_length, or pack with bfd_split"
        )
