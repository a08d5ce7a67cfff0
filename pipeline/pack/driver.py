"""The last steps of a run before its manifest: choosing documents (`select`) and writing shards (`pack`)."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.config.hints import setting
from ...schemas.errors import ConfigError
from ...schemas.ledger import Ledger
from ...schemas.manifest import FileRecord, SplitRecord
from ...schemas.rows import WEIGHTS, packed_schema
from ...stages.arrays import booleans
from ...stages.mask.policy import Mask
from ..encode.driver import Encoded
from ..encode.parts import PARTS, PartList
from ..encode.tokenizer.load import TokenizerSpec
from ..execute.executor import Executor, perform
from ..observer import Observer, Silent
from ..store.local import LocalStore
from ..store.open import Store
from .accounts import account_cuts, account_shards, open_ledger
from .documents import DocumentsPart, DocumentsTask
from .finished import FinishedShards
from .planned import FLAGS, NotedRowPlanner, key_of, put_planned, read_planned
from .planning import TOKEN_BYTES, WEIGHT_BYTES, WindowPlan, inner_cuts, plan_window, put_batches
from .preference.pairs import PairRowPlanner, survey_pairs
from .row_sizes import RowWeights
from .survey import Survey, Surveyor, cuts_by_packing, split_names
from .task import PackResult, PackTask
from .windows import WINDOW_TOKENS, block_sources, compose

_FLAGS = pa.schema([pa.field("packed", pa.bool_())])


class RowPlanner(Protocol):
    """Plans rows from windows; differs between packed rows and preference pairs."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""
        ...

    @property
    def token_bytes(self) -> int:
        """Bytes per token of a row."""
        ...

    @property
    def pairs(self) -> bool:
        """Whether the rows are preference pairs."""
        ...

    @property
    def noted(self) -> bool:
        """Whether the plans are those of an earlier process, whose layouts are in the output."""
        ...

    def windows(self, split: str) -> list[NDArray[np.int64]]:
        """Return the blocks of each window, ascending."""
        ...

    def plan(
        self, out: Store, split: str, number: int, first_shard: int, blocks: NDArray[np.int64], weights: RowWeights
    ) -> WindowPlan:
        """Plan a window and put its layout, without keeping anything large in memory.

        Args:
            number: number of the window in its split.
            first_shard: number of shards of the windows before.
            weights: the window's rows are added to it, if they are packed rows.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """What to pack of the encoded parts, and how to plan the rows."""

    config: RunConfig
    encoded: Encoded
    survey: Survey
    """Totals by split, source and part."""
    rows: RowPlanner
    pad_id: int
    """The token id for alignment padding."""
    key: str | None = None
    """Identifies what was selected, for notes of what is made of it; None if nothing is noted."""

    def packed_flags(self, out: Store) -> NDArray[np.bool_]:
        """(N,) whether each document is packed. Call once `pack` has written it."""
        with pa.memory_map(str(out.local(FLAGS))) as source:
            chunks = pa.ipc.open_file(source).read_all().column(0).chunks
        return np.concatenate([np.zeros(0, np.bool_), *map(booleans, chunks)])


@dataclass(frozen=True, slots=True)
class Packed:
    """Records of everything that was written, and the closed ledger."""

    splits: dict[str, SplitRecord]
    documents: FileRecord
    row_sizes: tuple[FileRecord, ...]
    """The row sizes file of each split."""
    ledger: Ledger
    busy: float
    """Total seconds that workers spent on shards."""
    planning: float
    """Seconds that planning took."""
    made: int
    """Tokens of the shards that this run laid out; other shards existed already."""
    rows_unpadded: int
    """Rows that the pieces of all splits would need without padding."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedRowPlanner:
    """Plans rows that documents share, window by window."""

    pairs: ClassVar[bool] = False
    noted: ClassVar[bool] = False

    surveyor: Surveyor
    totals: dict[str, NDArray[np.int64]]
    """See `Survey.totals`."""
    weighted: bool
    """Whether rows have `loss_weights`."""

    @property
    def schema(self) -> pa.Schema:
        """See `RowPlanner`."""
        return _schema_of(self.surveyor.config, self.weighted)

    @property
    def token_bytes(self) -> int:
        """See `RowPlanner`."""
        return _token_bytes(self.weighted)

    def windows(self, split: str) -> list[NDArray[np.int64]]:
        """See `RowPlanner`."""
        config, sources = self.surveyor.config, block_sources(self.surveyor.places)
        return compose(self.totals[split], sources, config.pack.window_tokens or WINDOW_TOKENS, config.seed)

    def plan(
        self, out: Store, split: str, number: int, first_shard: int, blocks: NDArray[np.int64], weights: RowWeights
    ) -> WindowPlan:
        """See `RowPlanner`."""
        config = self.surveyor.config
        window = self.surveyor.window(blocks, split)
        planned, plan = plan_window(out, split, number, first_shard, config, window, self.weighted)
        weights.add(plan.lengths, plan.row_offsets)
        cuts = cuts_by_packing(window, *inner_cuts(plan, window.sections), config, len(config.sources))
        return replace(planned, cuts=tuple(cuts))


def select(
    config: RunConfig,
    encoded: Encoded,
    scratch: Path,
    *,
    pairs: bool = False,
    pad_id: int = 0,
    noted: tuple[LocalStore, dict[str, Any]] | None = None,
) -> Selected:
    """Decide which documents to pack, in bounded memory.

    Args:
        scratch: a local folder for anonymous files.
        pairs: whether these are preference pairs, which are all held in memory, because they are ordered together.
        pad_id: see `padding_id`.
        noted: the output, whose note of an earlier process to take if there is one, and everything that the written
            bytes depend on. None to decide and plan without a note.

    Raises:
        InputError: `overlong: error`, and an example is too long.
        ConfigError: a weight asks for too many copies.
    """
    ledger = opened(config, encoded)
    rows: RowPlanner
    key = None
    if noted is not None:
        out, plan = noted
        sizes = [record.examples for record in encoded.records]
        key = key_of(plan, encoded.places, sizes, ledger)
        earlier = read_planned(out, key, split_names(config), sum(sizes), pairs=pairs)
        if earlier is not None:
            note, survey = earlier
            schema = PairRowPlanner.schema if pairs else _schema_of(config, note.weighted)
            token_bytes = PairRowPlanner.token_bytes if pairs else _token_bytes(note.weighted)
            return Selected(config, encoded, survey, NotedRowPlanner(schema, token_bytes, pairs, note), pad_id, key)
    if pairs:
        survey, rows = survey_pairs(config, encoded.places, ledger, scratch)
    else:
        surveyor = surveyor_of(config, encoded, scratch)
        survey = surveyor.survey(ledger)
        rows = PackedRowPlanner(surveyor, survey.totals, survey.weighted or weighs(config))
    return Selected(config, encoded, survey, rows, pad_id, key)


def pack(
    selected: Selected,
    out: Store,
    executor: Executor,
    observer: Observer,
    scratch: Path,
    *,
    finished: FinishedShards | None = None,
    planned: Callable[[Callable[[], None]], None] | None = None,
) -> Packed:
    """Plan each window, lay out its shards, write documents.parquet, close the ledger.

    Args:
        scratch: a local folder for anonymous files.
        finished: the results of earlier processes, if they are being checked already.
        planned: called once all windows are planned, with a function that notes the plans; both may run in a thread.

    Raises:
        IntegrityError: the ledger does not close, or an earlier shard does not match its record.
    """
    config, survey, rows = selected.config, selected.survey, selected.rows
    finished = finished or FinishedShards(out)
    finished.look([shards_folder(config, split) for split in survey.splits])
    finished.forget_damaged(executor, observer)
    progress = _PackProgress(finished, observer, survey.tokens - finished.tokens)
    _put_lists(selected, out)
    plans: dict[str, list[WindowPlan]] = {split: [] for split in survey.splits}
    tasks: dict[str, list[PackTask]] = {split: [] for split in survey.splits}
    weights = {split: RowWeights(config.pack.alignment, scratch) for split in survey.splits}
    planning = 0.0
    due_plans = [(split, *one) for split in survey.splits for one in enumerate(rows.windows(split))]
    with closing(executor.queue(perform, finished.have)) as queue:
        for count, (split, number, blocks) in enumerate(due_plans, 1):
            began = time.perf_counter()
            plan = rows.plan(out, split, number, len(tasks[split]), blocks, weights[split])
            planning += time.perf_counter() - began
            shards = _shard_tasks(selected, out, split, plan)
            due: list[PackTask | DocumentsTask] = [*shards]
            if not any(tasks.values()):  # submitted second, so that it is written in parallel with the shards
                due.insert(1, _documents_task(selected, out))
            plans[split].append(plan)
            tasks[split] += shards
            if count == len(due_plans) and planned is not None:  # the last tasks wait for workers, and it does not
                planned(partial(_note_plans, selected, out, plans))
            for task in due:  # workers write these shards while the next window is planned
                progress.add(queue.submit(task))
        progress.add(queue.drain())
    progress.end()
    splits, results = {}, []
    for split, windows in plans.items():
        found = [finished.shard(task.record) for task in tasks[split]]
        certificates = tuple(plan.certificate for plan in windows if plan.certificate is not None)
        splits[split] = SplitRecord(tuple(result.shard for result in found), certificates)
        results += found
    names, ledger = [source.name for source in config.sources], deepcopy(survey.ledger)
    account_cuts(ledger, names, survey.cuts)
    for plan in (plan for windows in plans.values() for plan in windows):
        account_cuts(ledger, names, plan.cuts)
    account_shards(ledger, names, results)
    ledger.check()
    sizes: tuple[FileRecord, ...] = ()
    if not rows.pairs:  # only packtrain's loader uses row sizes, and only for packed rows
        sizes = tuple(each.put(out, split_folder(config, split)) for split, each in weights.items())
    unpadded = sum(plan.rows_unpadded for windows in plans.values() for plan in windows)
    return Packed(splits, finished.table(), sizes, ledger, progress.busy, planning, progress.made, unpadded)


def _note_plans(selected: Selected, out: Store, plans: dict[str, list[WindowPlan]]) -> None:
    if selected.key is not None and not selected.rows.noted:
        weighted = not selected.rows.pairs and WEIGHTS in selected.rows.schema.names
        put_planned(out, selected.key, selected.survey, weighted, plans)


def surveyor_of(config: RunConfig, encoded: Encoded, scratch: Path) -> Surveyor:
    """Make the surveyor of some encoded parts."""
    sizes = [record.examples for record in encoded.records]
    return Surveyor(config, encoded.places, sizes, encoded.spec.tokenizer_json, scratch)


def weighs(config: RunConfig) -> bool:
    """Whether rows have `loss_weights` whatever their messages and examples say."""
    loss = config.loss
    return loss.divides or loss.column == "always" or any((one.loss_weight or 1) != 1 for one in config.sources)


def opened(config: RunConfig, encoded: Encoded) -> Ledger:
    """Return the ledger after encoding; it closes when packing is added."""
    names, sources = [source.name for source in config.sources], [place.source for place in encoded.places]
    return open_ledger(names, sources, encoded.records, encoded.not_taken, config.mask)


def padding_id(config: RunConfig, tokenizer: TokenizerSpec) -> int:
    """The token id for alignment padding.

    Raises:
        ConfigError: `pack.align` or `pack.parallel` needs padding, and the tokenizer has none.
    """
    if tokenizer.pad_id is None and config.pack.alignment.pads:
        key, without = ("pack.align", 1) if config.pack.align > 1 else ("pack.parallel", None)
        raise ConfigError(
            f"{key} pads with the tokenizer's padding or end-of-sequence token, but "
            f"{tokenizer.name} has neither; set {setting(key, without)}"
        )
    return tokenizer.pad_id or 0


def _schema_of(config: RunConfig, weighted: bool) -> pa.Schema:
    return packed_schema(unpadded=config.pack.alignment.unpadded, weights=weighted)


def _token_bytes(weighted: bool) -> int:
    return TOKEN_BYTES + WEIGHT_BYTES * weighted


def split_folder(config: RunConfig, split: str) -> str:
    """Return the prefix of a split's files: "", or the split's name and a slash."""
    return f"{split}/" if config.holdout.fraction > 0 else ""


def shards_folder(config: RunConfig, split: str) -> str:
    """The folder of a split's shards."""
    return f"{split_folder(config, split)}shards"


class _PackProgress:
    """Collects results and reports progress.

    Args:
        left: tokens that are not packed yet; with 0, no progress is reported.
    """

    def __init__(self, finished: FinishedShards, observer: Observer, left: int) -> None:
        self.busy, self.made = 0.0, 0
        self._finished = finished
        self._observer = observer if left > 0 else Silent()
        self._observer.begin("pack", left, "tok")

    def add(self, results: Iterable[object]) -> None:
        """Add results of tasks."""
        for result in results:
            assert isinstance(result, PackResult | FileRecord)
            self._finished.add(result)
            if isinstance(result, PackResult):
                self.busy += result.seconds
                self.made += result.shard.tokens
                self._observer.advance(result.shard.tokens, rows=result.shard.rows, tokens=result.shard.tokens)

    def end(self) -> None:
        """End the progress report."""
        self._observer.end()


def _put_lists(selected: Selected, out: Store) -> None:
    """Put the files that tasks need besides a layout: the list of parts, and which documents are packed."""
    encoded = selected.encoded
    places = encoded.places
    listed = PartList(encoded.cache.url, [place.part for place in places], [place.source for place in places])
    out.replace_bytes(PARTS, msgspec.json.encode(listed))
    if not selected.rows.noted:
        flags = (pa.RecordBatch.from_arrays([chunk], schema=_FLAGS) for chunk in selected.survey.packed)
        selected.survey.flags = put_batches(out, FLAGS, _FLAGS, flags)


def _shard_tasks(selected: Selected, out: Store, split: str, plan: WindowPlan) -> list[PackTask]:
    config = selected.config
    return [
        PackTask(
            out,
            selected.encoded.cache,
            PARTS if selected.rows.pairs else plan.parts,
            plan.name,
            shards_folder(config, split),
            shard,
            Mask.of(config.mask),
            config.pack.alignment,
            selected.pad_id,
            config.output.format,
            selected.rows.pairs,
            not selected.rows.pairs and WEIGHTS in selected.rows.schema.names,
        )
        for shard in plan.shards
    ]


def _documents_task(selected: Selected, out: Store) -> DocumentsTask:
    names = [source.name for source in selected.config.sources]
    encoded = selected.encoded
    parts = tuple(DocumentsPart(place.part, names[place.source], place.lines) for place in encoded.places)
    return DocumentsTask(out, encoded.cache, parts, FLAGS)
