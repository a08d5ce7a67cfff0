"""Packing encoded parts: what stays, which rows, the shards, and the account of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError
from ..schemas.ledger import Ledger
from ..schemas.manifest import FileRecord, SplitRecord
from ..schemas.rows import PACKED
from ..stages.arrays import numbers
from .accounts import account_cuts, account_documents, account_shards, open_ledger
from .catalogue import Catalogue, Holdout, read_catalogue
from .documents import NAME, RECORD, DocumentsPart, DocumentsTask
from .encoding import EncodedInputs
from .executors import Executor
from .observer import Observer
from .pack import PackResult, PackTask
from .pairs_task import PairTask
from .parts import PartList
from .planning import TOKEN_BYTES, WindowPlan, plan_split, put_arrow
from .rowsizes import write_row_sizes
from .selecting import Chosen, limits_of, mask_of, select
from .splitting import turns_cut
from .stores import Store
from .tokenizer import TokenizerSpec
from .worker import Task, perform

PARTS = "_run/parts.json"
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


@dataclass(frozen=True, slots=True, eq=False)
class Plans:
    """The layout of every split, and what it cost."""

    splits: dict[str, list[WindowPlan]]
    turns_cut: list[int]
    """By source: cuts that go through trained turns."""

    @property
    def tokens(self) -> int:
        """Tokens of all shards, alignment padding included."""
        return sum(shard.tokens for windows in self.splits.values() for window in windows for shard in window.shards)


class Packing:
    """The packing of one run."""

    schema = PACKED
    """Of the rows."""
    token_bytes = TOKEN_BYTES
    """What a token costs in them."""

    def __init__(self, config: RunConfig, out: Store, encoded: EncodedInputs, pad_id: int, observer: Observer) -> None:
        self.config = config
        self.out = out
        self.encoded = encoded
        self.pad_id = pad_id
        self.observer = observer
        self.mask = mask_of(config)
        self.names = [source.name for source in config.sources]

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

    def plan(self, chosen: Chosen) -> Plans:
        """The layout of every split, put where the tasks find it."""
        catalogue = chosen.catalogue
        plans = {}
        for split, which in self._splits(catalogue).items():
            plans[split] = plan_split(self.out, split, self.config, catalogue, chosen.sections(which))
        self._put_lists(chosen)
        windows = [window for windows in plans.values() for window in windows]
        cut_documents = [window.cut_documents for window in windows]
        cut_places = [window.cut_places for window in windows]
        return Plans(plans, self.turns_cut(chosen, np.concatenate(cut_documents), np.concatenate(cut_places)))

    def _put_lists(self, chosen: Chosen) -> None:
        """What the tasks need besides a layout: which parts there are, and which documents are packed."""
        listed = PartList(self.encoded.cache.url, [place.part for place in self.encoded.places])
        self.out.replace_bytes(PARTS, msgspec.json.encode(listed))
        flags = pa.RecordBatch.from_arrays([numbers(chosen.packed)], names=["packed"])
        put_arrow(self.out, _PACKED, flags)

    def turns_cut(self, chosen: Chosen, cut_documents: NDArray[np.int64], cut_places: NDArray[np.int32]) -> list[int]:
        """By source: cuts through trained turns, by truncation, by splitting and by the strategy.

        Args:
            cut_documents, cut_places: (cuts,) what the strategy cut, from `planning.inner_cuts`.
        """
        catalogue, copies = chosen.catalogue, chosen.selection.copies
        begins = np.flatnonzero(chosen.packed & (catalogue.low > 0))
        ends = np.flatnonzero(chosen.packed & (catalogue.high < catalogue.lengths))
        documents = np.concatenate([begins, ends, cut_documents])
        places = np.concatenate([catalogue.low[begins], catalogue.high[ends], cut_places])
        # A strategy cuts every copy for itself; truncation cuts all of them at once.
        weights = np.concatenate([copies[begins], copies[ends], np.ones_like(cut_places)])
        order = np.argsort(documents, kind="stable")
        documents, places, weights = documents[order], places[order], weights[order]
        through = np.zeros(len(catalogue), dtype=np.int64)
        np.add.at(through, documents, turns_cut(catalogue, documents, places, self.mask) * weights)
        if chosen.split is not None:
            through[chosen.split.documents] += chosen.split.cuts * copies[chosen.split.documents]
        totals = np.zeros(len(self.names), dtype=np.int64)
        which = np.flatnonzero(through)
        np.add.at(totals, catalogue.source_of(which), through[which])
        out: list[int] = totals.tolist()
        return out

    def write(self, executor: Executor, chosen: Chosen, plans: Plans) -> Packed:
        """Lay out every shard that is not there yet, write the documents, close the ledger."""
        tasks = {split: self._tasks(split, windows) for split, windows in plans.splits.items()}
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
            tokens = sum(task.shard.tokens for task in waiting if isinstance(task, PackTask | PairTask))
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
                windows=tuple(w.certificate for w in plans.splits[split] if w.certificate is not None),
            )
            for split, group in tasks.items()
        }
        ledger = self._ledger(chosen, plans, list(results.values()))
        return Packed(splits, documents, self._row_sizes(plans), ledger, busy)

    def _row_sizes(self, plans: Plans) -> tuple[FileRecord, ...]:
        several = self.config.holdout.fraction > 0
        return tuple(
            write_row_sizes(self.out, f"{split}/" if several else "", windows, self.config.pack.align)
            for split, windows in plans.splits.items()
        )

    def opened(self, chosen: Chosen, splits: dict[str, NDArray[np.bool_]] | None = None) -> Ledger:
        """The account before anything is packed: it closes when the shards are added.

        Args:
            splits: (N,) which documents belong to each split; by default as the configuration holds out.
        """
        sources = [place.source for place in self.encoded.places]
        ledger = open_ledger(self.names, sources, self.encoded.records, self.encoded.not_taken)
        account_documents(ledger, self.names, chosen, splits or self._splits(chosen.catalogue))
        return ledger

    def _ledger(self, chosen: Chosen, plans: Plans, results: list[PackResult]) -> Ledger:
        ledger = self.opened(chosen)
        account_cuts(ledger, self.names, plans.turns_cut)
        account_shards(ledger, self.names, chosen.catalogue, results)
        ledger.check()
        return ledger

    def _splits(self, catalogue: Catalogue) -> dict[str, NDArray[np.bool_]]:
        if self.config.holdout.fraction > 0:
            return {"train": ~catalogue.held_out, "holdout": catalogue.held_out}
        return {"train": np.ones(len(catalogue), dtype=np.bool_)}

    def _prefix(self, split: str) -> str:
        return f"{split}/shards" if self.config.holdout.fraction > 0 else "shards"

    def _tasks(self, split: str, windows: list[WindowPlan]) -> Sequence[PackTask | PairTask]:
        return [
            PackTask(
                self.out,
                self.encoded.cache,
                PARTS,
                window.name,
                self._prefix(split),
                shard,
                self.mask,
                self.config.pack.align,
                self.pad_id,
                self.config.output.format,
            )
            for window in windows
            for shard in window.shards
        ]

    def _finished(self, task: PackTask | PairTask) -> PackResult | None:
        data = self.out.read(task.record)
        if data is None:
            return None
        result = msgspec.json.decode(data, type=PackResult)
        return result if self.out.size(result.shard.name) == result.shard.bytes else None

    def _documents_task(self) -> DocumentsTask:
        parts = tuple(
            DocumentsPart(place.part, self.names[place.source], place.file, place.first_line)
            for place in self.encoded.places
        )
        return DocumentsTask(self.out, self.encoded.cache, parts, _PACKED)


def padding_id(config: RunConfig, tokenizer: TokenizerSpec) -> int:
    """What alignment pads with.

    Raises:
        ConfigError: `pack.align` needs padding, and the tokenizer has none.
    """
    if tokenizer.pad_id is None and config.pack.align > 1:
        raise ConfigError(
            "pack.align pads with the tokenizer's padding or end-of-sequence token, but "
            f"{tokenizer.name} has neither; set pack.align to 1"
        )
    return tokenizer.pad_id or 0
