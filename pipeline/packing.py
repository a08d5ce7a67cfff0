"""Packing encoded parts: what stays, which rows, the shards, and the account of it."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError, IntegrityError
from ..schemas.hints import setting
from ..schemas.jsontext import decode_note
from ..schemas.layout import Certificate
from ..schemas.ledger import Ledger
from ..schemas.manifest import FileRecord, ShardRecord, SplitRecord
from ..schemas.rows import PACKED
from .accounts import account_cuts, account_documents, account_shards, open_ledger
from .catalogue import Catalogue, Holdout, read_catalogue
from .checking import damaged
from .deciding import select
from .documents import NAME, RECORD, DocumentsPart, DocumentsTask
from .encoding import EncodedInputs
from .executors import Executor
from .observer import Observer
from .pack import PackResult, PackTask
from .pairs_task import PairTask
from .parts import PartFile, PartList
from .planning import TOKEN_BYTES, WindowPlan, inner_cuts, plan_window, put_batches
from .rowsizes import RowWeights
from .sealed import unseal
from .selecting import Chosen, limits_of, mask_of
from .stores import Store
from .survey import Survey, Surveyor, cuts_before_packing, cuts_by_packing, split_names, splits_of
from .tokenizer import TokenizerSpec
from .windows import WINDOW_TOKENS, compose
from .worker import perform

PARTS = "_run/parts.json"
_PACKED = "_run/layout/packed.arrow"
_FLAGS = pa.schema([pa.field("packed", pa.bool_())])


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
    planning: float
    """Seconds that planning took."""
    made: int
    """Tokens of the shards that were laid out; all others were there."""


@dataclass(slots=True)
class _SplitPlan:
    """What is known of a split after its windows were planned."""

    records: list[str] = field(default_factory=list)
    """Names of its shards' records, in order."""
    certificates: list[Certificate] = field(default_factory=list)


class Packing:
    """The packing of one run.

    Args:
        encoded: parts of all inputs, or of one window of a stream.
        pad_id: what alignment pads with.
        scratch: a folder of this machine for files without a name; not for a stream.
    """

    schema = PACKED
    """Of the rows."""
    token_bytes = TOKEN_BYTES
    """What a token costs in them."""

    def __init__(
        self,
        config: RunConfig,
        out: Store,
        encoded: EncodedInputs,
        pad_id: int,
        observer: Observer,
        scratch: Path | None = None,
    ) -> None:
        self.config = config
        self.out = out
        self.encoded = encoded
        self.pad_id = pad_id
        self.observer = observer
        self.scratch = scratch or Path()
        self.mask = mask_of(config)
        self.names = [source.name for source in config.sources]
        self._surveyor: Surveyor | None = None
        self._splits: dict[str, _SplitPlan] = {}
        self._cuts: list[int] = []
        self._planning = 0.0
        self._begun = False

    def survey(self) -> Survey:
        """Decide about every document, in bounded memory.

        Raises:
            InputError: `overlong: error` and there is one.
            ConfigError: a weight asks for too many copies.
        """
        sizes = [record.examples for record in self.encoded.records]
        self._surveyor = Surveyor(
            self.config, self.encoded.places, sizes, self.encoded.spec.tokenizer_json, self.scratch
        )
        return self._surveyor.survey(self._opened())

    def write(self, executor: Executor, survey: Survey) -> Packed:
        """Plan window after window, lay out every shard that is not there yet, write the documents, close the ledger.

        Raises:
            IntegrityError: the account does not close, or what was written before is something else.
        """
        results = self._earlier()
        documents = self._mend(executor, results, self._earlier_documents())
        weights = {split: RowWeights(self.config.pack.align, self.scratch) for split in survey.splits}

        def there(task: PackTask | PairTask | DocumentsTask) -> bool:
            if isinstance(task, DocumentsTask):
                return documents is not None or self._earlier_documents() is not None
            done = results.get(task.record) or self._finished(task.record)
            if done is not None:
                results[task.record] = done
            return done is not None

        left = survey.tokens - sum(result.shard.tokens for result in results.values())
        busy, made = 0.0, 0
        for result in executor.map(perform, self._told(executor.order(self._tasks(survey, weights), there), left)):
            if isinstance(result, FileRecord):
                documents = result
            elif isinstance(result, PackResult):
                results[result.record] = result
                busy += result.seconds
                made += result.shard.tokens
                self.observer.advance(result.shard.tokens, rows=result.shard.rows, tokens=result.shard.tokens)
        if self._begun:
            self.observer.end()
        # What other drivers did meanwhile.
        documents = documents or self._earlier_documents()
        splits = {
            split: SplitRecord(tuple(self._shard(name, results) for name in plan.records), tuple(plan.certificates))
            for split, plan in self._splits.items()
        }
        if documents is None:
            raise IntegrityError(f"{self.out.where(NAME)} was not written; run again")
        written = [results[name] for plan in self._splits.values() for name in plan.records]
        account_cuts(survey.ledger, self.names, self._cuts)
        account_shards(survey.ledger, self.names, written)
        survey.ledger.check()
        sizes = self._row_sizes(weights)
        return Packed(splits, documents, sizes, survey.ledger, busy, self._planning, made)

    def tasks(self, survey: Survey) -> Iterator[PackTask | PairTask | DocumentsTask]:
        """Every task, in order; each window is planned when its first one is asked for.

        The documents come second, so that they are written beside the shards and not after them.
        """
        weights = {split: RowWeights(self.config.pack.align, self.scratch) for split in survey.splits}
        return self._tasks(survey, weights)

    def finished(self, task: "PackTask | PairTask") -> PackResult | None:
        """What a task put, if its record and its shard are there."""
        return self._finished(task.record)

    def _tasks(self, survey: Survey, weights: dict[str, RowWeights]) -> Iterator[PackTask | PairTask | DocumentsTask]:
        self._put_lists(survey)
        self._splits, self._cuts = {split: _SplitPlan() for split in survey.splits}, survey.cuts
        first = True
        for split, window in self._windows(survey, weights):
            plan = self._splits[split]
            if window.certificate is not None:
                plan.certificates.append(window.certificate)
            for task in self._shard_tasks(split, window):
                plan.records.append(task.record)
                yield task
                if first:
                    yield self._documents_task()
                    first = False

    def _windows(self, survey: Survey, weights: dict[str, RowWeights]) -> Iterator[tuple[str, WindowPlan]]:
        """Every window of every split, its layout put where the tasks find it."""
        assert self._surveyor is not None
        config = self.config
        sources = [place.source for place in self.encoded.places]
        for split in survey.splits:
            shards = 0
            limit = config.pack.window_tokens or WINDOW_TOKENS
            for number, parts in enumerate(compose(survey.totals[split], sources, limit, config.seed)):
                began = time.perf_counter()
                window = self._surveyor.window(parts, split)
                planned, plan = plan_window(self.out, split, number, shards, config, window)
                weights[split].add(plan)
                cut = cuts_by_packing(window, *inner_cuts(plan, window.sections), config, len(self.names))
                self._cuts = [a + b for a, b in zip(self._cuts, cut, strict=True)]
                shards += len(planned.shards)
                del window, plan  # tasks are run before the next one is planned
                self._planning += time.perf_counter() - began
                yield split, planned

    def _told(
        self, tasks: Iterable[PackTask | PairTask | DocumentsTask], tokens: int
    ) -> Iterator[PackTask | PairTask | DocumentsTask]:
        """The tasks; the observer hears of packing when there is one."""
        for task in tasks:
            if not self._begun:
                self._begun = True
                self.observer.begin("pack", tokens, "tok")
            yield task

    def _earlier(self) -> dict[str, PackResult]:
        """Shards that an earlier process put, by the names of their records."""
        names = [name for split in split_names(self.config) for name in self.out.names(f"_run/{self._prefix(split)}")]
        found = ((name, self._finished(name)) for name in names if name.endswith(".json"))
        return {name: result for name, result in found if result is not None}

    def _earlier_documents(self) -> FileRecord | None:
        data = unseal(self.out.read(RECORD))
        record = decode_note(data, FileRecord) if data is not None else None
        return record if record is not None and self.out.size(NAME) == record.bytes else None

    def _finished(self, record: str) -> PackResult | None:
        data = unseal(self.out.read(record))
        if data is None:
            return None
        try:
            result = decode_note(data, PackResult)
        except msgspec.ValidationError:
            return None  # of another version, which counted otherwise
        return result if self.out.size(result.shard.name) == result.shard.bytes else None

    def _mend(
        self, executor: Executor, results: dict[str, PackResult], documents: FileRecord | None
    ) -> FileRecord | None:
        """Take away what an earlier process put and what is not any more what it put; returns `documents` if whole."""
        records = [result.shard for result in results.values()] + ([documents] if documents is not None else [])
        bad = damaged(executor, self.out, [PartFile(one.name, one.bytes, one.hash) for one in records])
        for name in sorted(bad):
            self.observer.note(f"{self.out.where(name)} is damaged, and is made anew")
        for record in [record for record, result in results.items() if result.shard.name in bad]:
            self.out.remove(record)
            del results[record]
        if NAME in bad:
            self.out.remove(RECORD)
            return None
        return documents

    def _shard(self, record: str, results: dict[str, PackResult]) -> ShardRecord:
        result = results.get(record) or self._finished(record)
        if result is None:
            raise IntegrityError(f"{self.out.where(record)} or its shard vanished; run again")
        results[record] = result
        return result.shard

    def _put_lists(self, survey: Survey) -> None:
        """What the tasks need besides a layout: which parts there are, and which documents are packed."""
        places = self.encoded.places
        listed = PartList(self.encoded.cache.url, [place.part for place in places], [place.source for place in places])
        self.out.replace_bytes(PARTS, msgspec.json.encode(listed))
        flags = (pa.RecordBatch.from_arrays([lot], schema=_FLAGS) for lot in survey.packed)
        put_batches(self.out, _PACKED, _FLAGS, flags)

    def _row_sizes(self, weights: dict[str, RowWeights]) -> tuple[FileRecord, ...]:
        several = self.config.holdout.fraction > 0
        return tuple(each.put(self.out, f"{split}/" if several else "") for split, each in weights.items())

    def _prefix(self, split: str) -> str:
        return f"{split}/shards" if self.config.holdout.fraction > 0 else "shards"

    def _shard_tasks(self, split: str, window: WindowPlan) -> Iterator[PackTask | PairTask]:
        for shard in window.shards:
            yield PackTask(
                self.out,
                self.encoded.cache,
                window.parts,
                window.name,
                self._prefix(split),
                shard,
                self.mask,
                self.config.pack.align,
                self.pad_id,
                self.config.output.format,
            )

    def _documents_task(self) -> DocumentsTask:
        parts = tuple(
            DocumentsPart(place.part, self.names[place.source], place.file, place.first_line)
            for place in self.encoded.places
        )
        return DocumentsTask(self.out, self.encoded.cache, parts, _PACKED)

    # A stream has one window in memory, and asks for each step by itself.

    def catalogue(self) -> Catalogue:
        """Lengths and places of all documents."""
        config = self.config
        return read_catalogue(
            self.encoded.places,
            self.mask,
            limits_of(config),
            Holdout(config.holdout.fraction, config.holdout.by == "group", config.seed),
            self.names,
            digests=config.duplicates == "drop",
        )

    def choose(self, catalogue: Catalogue) -> Chosen:
        """What is packed of each document.

        Raises:
            InputError: `overlong: error` and there is one.
        """
        return select(catalogue, self.config, self.mask, self.encoded.spec.tokenizer_json)

    def turns_cut(self, chosen: Chosen, cut_documents: NDArray[np.int64], cut_places: NDArray[np.int32]) -> list[int]:
        """By source: cuts through trained turns, by truncation, by splitting and by the strategy.

        Args:
            cut_documents, cut_places: (cuts,) what the strategy cut, from `planning.inner_cuts`.
        """
        before = cuts_before_packing(chosen, self.config, len(self.names))
        after = cuts_by_packing(chosen.catalogue, cut_documents, cut_places, self.config, len(self.names))
        return [a + b for a, b in zip(before, after, strict=True)]

    def opened(self, chosen: Chosen, splits: dict[str, NDArray[np.bool_]] | None = None) -> Ledger:
        """The account before anything is packed: it closes when the shards are added.

        Args:
            splits: (N,) which documents belong to each split; by default as the configuration holds out.
        """
        ledger = self._opened()
        account_documents(ledger, self.names, chosen, splits or splits_of(self.config, chosen.catalogue))
        return ledger

    def _opened(self) -> Ledger:
        sources = [place.source for place in self.encoded.places]
        return open_ledger(self.names, sources, self.encoded.records, self.encoded.not_taken)


def padding_id(config: RunConfig, tokenizer: TokenizerSpec) -> int:
    """What alignment pads with.

    Raises:
        ConfigError: `pack.align` needs padding, and the tokenizer has none.
    """
    if tokenizer.pad_id is None and config.pack.align > 1:
        raise ConfigError(
            "pack.align pads with the tokenizer's padding or end-of-sequence token, but "
            f"{tokenizer.name} has neither: {setting('pack.align', 1)}"
        )
    return tokenizer.pad_id or 0
