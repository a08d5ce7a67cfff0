"""The last steps of a run before its manifest: choosing documents (`select`) and writing shards (`pack`)."""

import time
from collections.abc import Iterable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

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
from ...stages.mask.policy import Mask
from ..encode.driver import Encoded
from ..encode.parts import PARTS, PartList
from ..encode.tokenizer.load import TokenizerSpec
from ..execute.executor import Executor, perform
from ..observer import Observer, Silent
from ..store.open import Store
from .accounts import account_cuts, account_shards, open_ledger
from .documents import DocumentsPart, DocumentsTask
from .finished import FinishedShards
from .planning import TOKEN_BYTES, WEIGHT_BYTES, WindowPlan, inner_cuts, plan_window, put_batches
from .preference.pairs import survey_pairs
from .row_sizes import RowWeights
from .survey import Survey, Surveyor, cuts_by_packing
from .task import PackResult, PackTask
from .windows import WINDOW_TOKENS, block_sources, compose

FLAGS = "_run/layout/packed.arrow"
"""Name of the file with one flag per document, which says whether it is packed."""
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
) -> Selected:
    """Decide which documents to pack, in bounded memory.

    Args:
        scratch: a local folder for anonymous files.
        pairs: whether these are preference pairs, which are all held in memory, because they are ordered together.
        pad_id: see `padding_id`.

    Raises:
        InputError: `overlong: error`, and an example is too long.
        ConfigError: a weight asks for too many copies.
    """
    ledger = opened(config, encoded)
    rows: RowPlanner
    if pairs:
        survey, rows = survey_pairs(config, encoded.places, ledger, scratch)
    else:
        surveyor = surveyor_of(config, encoded, scratch)
        survey = surveyor.survey(ledger)
        rows = PackedRowPlanner(surveyor, survey.totals, survey.weighted or weighs(config))
    return Selected(config, encoded, survey, rows, pad_id)


def pack(
    selected: Selected,
    out: Store,
    executor: Executor,
    observer: Observer,
    scratch: Path,
) -> Packed:
    """Plan each window, lay out its shards, write documents.parquet, close the ledger.

    Args:
        scratch: a local folder for anonymous files.

    Raises:
        IntegrityError: the ledger does not close, or an earlier shard does not match its record.
    """
    config, survey, rows = selected.config, selected.survey, selected.rows
    finished = FinishedShards(out)
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
        for split, number, blocks in due_plans:
            began = time.perf_counter()
            plan = rows.plan(out, split, number, len(tasks[split]), blocks, weights[split])
            planning += time.perf_counter() - began
            shards = _shard_tasks(selected, out, split, plan)
            due: list[PackTask | DocumentsTask] = [*shards]
            if not any(tasks.values()):  # submitted second, so that it is written in parallel with the shards
                due.insert(1, _documents_task(selected, out))
            plans[split].append(plan)
            tasks[split] += shards
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
    flags = (pa.RecordBatch.from_arrays([chunk], schema=_FLAGS) for chunk in selected.survey.packed)
    put_batches(out, FLAGS, _FLAGS, flags)


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
