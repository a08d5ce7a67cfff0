"""The last steps of a run before its manifest: choosing documents (`select`) and writing shards (`pack`).

    encoded parts ─ read_parts.read_table ─► the table, a line a document
                  ─ outcomes.decide, in place ─► what is packed of each, how often, or why not
                  ─ window_plan.plan_window ─► a layout: the pieces of each row, and which rows are in which shard
                  ─ shard.ShardTask, in workers ─► shards, by PlannedRows, and what they hold of each source
                  ─ ledger.account_rows ─► the ledger, which closes if that is what the table says

A plan and a stream do the same without writing: they lay the rows out, and count them.
"""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import numbers
from ...schemas.config.config import RunConfig
from ...schemas.dataset.ledger import Ledger
from ...schemas.dataset.manifest import FileRecord, SplitRecord
from ...schemas.errors import ConfigError, IntegrityError
from ...schemas.layout import Alignment, Certificate, fill_of
from ...schemas.report.report import SplitFigures
from ...schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from ..encode.driver import Encoded
from ..encode.spec import TokenizerSpec
from ..execute.executor import Executor, perform
from ..observer import Observer
from ..store.open_store import Store
from ..store.records import Records
from .documents import DocumentsTask
from .ledger import account_rows, account_table, open_ledger
from .outcomes import decide, decide_together, limits_of
from .planned_rows import LossWeights, PlannedRows, RowForm, Written
from .read_parts import read_table
from .segments import Segments
from .shard import PackResult, ShardTask
from .table import WEIGHTED, Table, put_arrow
from .units import share_prompts
from .window_plan import WindowPlan, plan_pieces, plan_window, window_seed, windows


@dataclass(frozen=True, eq=False)
class Selected:
    """What to pack of the encoded parts."""

    config: RunConfig
    encoded: Encoded
    table: Table
    ledger: Ledger
    """It closes when the shards are added."""
    form: RowForm

    @property
    def pairs(self) -> bool:
        """Whether these are preference pairs."""
        return self.form.pairs is not None

    @property
    def packs(self) -> bool:
        """Whether rows are planned; not for preference pairs with `pack.strategy: none`, where each pair is a row."""
        return self.form.is_packed

    @cached_property
    def _segments(self) -> Segments:
        """The parts, each opened once, although several windows and splits may have documents of it."""
        return Segments.of(self.table)

    def windows(self, split: str) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield (number, blocks) of each window of a split."""
        yield from enumerate(windows(self.table, split, self.config, self.form))

    def rows(self, split: str, blocks: NDArray[np.int64], seed: int) -> tuple[Certificate, PlannedRows]:
        """Plan the rows of some blocks of a split, without writing.

        Args:
            seed: of the order of rows, if they are shuffled.
        """
        certificate, row_offsets, pieces = plan_pieces(self.table, split, blocks, self.config, seed, self.form)
        return certificate, PlannedRows(self.table.documents, self._segments, pieces, row_offsets, self.form)


@dataclass(frozen=True, slots=True)
class Packed:
    """Records of everything that was written, and the closed ledger."""

    splits: dict[str, SplitRecord]
    files: tuple[FileRecord, ...]
    """documents.parquet, and the row sizes file of each split."""
    ledger: Ledger


def select(
    config: RunConfig,
    encoded: Encoded,
    scratch: Path,
    *,
    pairs: bool = False,
    pad_id: int = 0,
    only: str | None = None,
    sample: bool = False,
) -> Selected:
    """Read the table of documents, and decide which to pack.

    Args:
        scratch: a local folder for anonymous files.
        pairs: whether these are preference pairs.
        pad_id: the token id for alignment padding; any number if nothing is padded.
        only: the only split to pack; by default all.
        sample: whether to keep the trained spans of a sample, which the comparison of lengths needs.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    sizes = [record.counts.examples for record in encoded.records]
    limits = limits_of(config, pairs=pairs)
    table = read_table(encoded.places, sizes, config, limits, scratch, pairs=pairs, sample=sample)
    shares = config.pack.shares
    if pairs:
        decide_together(table, config, only)
        if shares:
            share_prompts(table)
        # Only pairs whose sides share a row (`both`) are packed. The trainer pads others, each column by itself;
        # `Alignment()` pads nothing.
        alignment = config.pack.alignment if limits.both else Alignment()
        form = RowForm(alignment, pad_id, pairs=limits, branches=shares)
    else:
        decide(table, config, encoded.spec.tokenizer.json, scratch, only=only)
        weighted = needs_weights(config) or _has_weighted_documents(table)
        weights = loss_weights(config) if weighted else None
        form = RowForm(config.pack.alignment, pad_id, weights, branches=shares)
    ledger = open_ledger(
        [source.name for source in config.sources],
        [place.source for place in encoded.places],
        encoded.records,
        encoded.not_taken,
    )
    # With `pack.share`, a pair repeats one token of its prompt, as documents do.
    repeated = "prompt" if pairs and not shares else "overlap"
    account_table(ledger, table, holds_out=config.holdout.fraction > 0, repeated=repeated)
    return Selected(config, encoded, table, ledger, form)


def pack(selected: Selected, out: Store, executor: Executor, observer: Observer, wrong: Collection[str] = ()) -> Packed:
    """Put the table, plan each window, lay out its shards, write documents.parquet, close the ledger.

    Args:
        wrong: names of files that are known to be damaged, and are written again.

    Raises:
        IntegrityError: the ledger does not close, or an earlier shard does not match its record.
    """
    config = selected.config
    table = selected.table
    folders = split_folders(config)
    records = Records(out, PackResult)
    # Shards that an earlier run finished, if they still match their hashes.
    names = [name for folder in folders.values() for name in out.names(f"_run/{folder}shards")]
    record_names = [name for name in names if name.endswith(".json")]
    finished = records.find_intact(record_names, observer, damaged=wrong)
    tokens_left = selected.ledger.total().tokens_packed - sum(result.file.tokens for result in finished.values())
    progress = observer if tokens_left > 0 else Observer()  # which shows nothing: there are no shards to write
    progress.begin("pack", tokens_left, "tok")
    table.put(out)
    plans: dict[str, list[WindowPlan]] = {split: [] for split in folders}
    tasks: dict[str, list[ShardTask]] = {split: [] for split in folders}

    def plan_tasks() -> Iterator[DocumentsTask | ShardTask]:
        """Plan the windows of each split into `plans`, and yield the tasks of each, which `tasks` keeps, too. The
        executor takes them one by one, so that a window is planned when a worker has nothing to do, while others still
        write shards of the window before it.
        """
        yield DocumentsTask(out, tuple(selected.ledger.sources))
        for split, folder in folders.items():
            for number, blocks in selected.windows(split):
                first_shard = len(tasks[split])
                window = plan_window(table, split, number, blocks, first_shard, config, selected.form, out)
                plans[split].append(window)
                for shard in window.shards:
                    task = ShardTask(
                        out,
                        selected.encoded.cache,
                        layout=window.name,
                        prefix=f"{folder}shards",
                        shard=shard,
                        masks=table.masks,
                        form=selected.form,
                    )
                    tasks[split].append(task)
                yield from tasks[split][first_shard:]

    def is_finished(task: object) -> bool:
        """Whether a task's shard has a record: of this run, of an earlier one, or of one that shares the work."""
        return isinstance(task, ShardTask) and (task.record in finished or records.find(task.record) is not None)

    files = list[FileRecord]()
    # `perform` calls the `run` of a task.
    with closing(executor.map(perform, plan_tasks(), is_finished)) as results:
        for result in results:
            if isinstance(result, PackResult):
                finished[result.record] = result
                progress.advance(result.file.tokens, rows=result.file.rows, tokens=result.file.tokens)
            else:
                assert isinstance(result, FileRecord)
                files.append(result)
    progress.end()
    ledger = selected.ledger
    splits = dict[str, SplitRecord]()
    for split, folder in sorted(folders.items()):  # as a manifest lists them
        shards = list[PackResult]()
        for task in tasks[split]:
            result = finished.get(task.record) or records.find(task.record)  # that of a run that shares the work
            if result is None:
                raise IntegrityError(f"{out.where(task.record)} or its file vanished; run again")
            shards.append(result)
        account_rows(ledger, (shard.written for shard in shards))
        certificates = tuple(window.certificate for window in plans[split]) if selected.packs else ()
        splits[split] = SplitRecord(tuple(shard.file for shard in shards), certificates)
        if selected.packs:  # only packtrain's loader uses row sizes, and only for packed rows
            files.append(_put_sizes(plans[split], out, folder))
    ledger.check()
    return Packed(splits, tuple(files), ledger)


def _put_sizes(plans: list[WindowPlan], out: Store, folder: str) -> FileRecord:
    """Put the sizes of a split's rows, so that ordering and balancing need not open shards; in one batch, because
    readers map only the first.
    """
    columns = [np.concatenate([getattr(plan, name) for plan in plans]) for name in ROW_SIZES.names]
    batch = pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=ROW_SIZES)
    return put_arrow(out, f"{folder}{ROW_SIZES_NAME}", batch)


def count_rows(selected: Selected) -> list[SplitFigures]:
    """Lay out the rows of all splits without writing them, and close the ledger. Return the figures of each split that
    has rows; there are none if rows are not packed.

    Raises:
        IntegrityError: the ledger does not close.
    """
    config = selected.config
    ledger = selected.ledger
    figures = list[SplitFigures]()
    for split in sorted(split_folders(config)):  # as a manifest lists them
        certificates = list[Certificate]()
        counts = list[Written]()
        for number, blocks in selected.windows(split):
            certificate, planned = selected.rows(split, blocks, window_seed(config.seed, number))
            account = planned.count()
            account_rows(ledger, [account])
            certificates.append(certificate)
            counts += account.values()
        rows = sum(certificate.rows for certificate in certificates)
        if not rows or not selected.packs:
            continue
        document_tokens = sum(certificate.tokens for certificate in certificates)
        figures.append(
            SplitFigures(
                split,
                rows,
                bound=sum(certificate.bound for certificate in certificates),
                fill=fill_of(document_tokens, rows, config.row_length),
                tokens=sum(written.tokens for written in counts),
                labels=sum(written.trained for written in counts),
                pieces=sum(certificate.pieces for certificate in certificates),
                padding=sum(written.padding for written in counts),
            )
        )
    ledger.check()
    return figures


def loss_weights(config: RunConfig) -> LossWeights:
    """What the configuration multiplies loss weights by."""
    return LossWeights(tuple(source.loss_weight or 1.0 for source in config.sources), config.loss.divides)


def needs_weights(config: RunConfig) -> bool:
    """Whether rows have `loss_weights` whatever their messages and examples say."""
    weighted_sources = any((source.loss_weight or 1) != 1 for source in config.sources)
    return config.loss.divides or config.loss.column == "always" or weighted_sources


def _has_weighted_documents(table: Table) -> bool:
    """Whether some packed document has a trained token with another weight than 1."""
    for _, rows in table.slices():
        documents = table.documents.at(rows)
        if (documents.has(WEIGHTED) & (documents.copies > 0)).any():
            return True
    return False


def split_folders(config: RunConfig) -> dict[str, str]:
    """The splits that a run writes → the prefix of their files: "", or with a holdout the split's name and a slash."""
    return {"train": "train/", "holdout": "holdout/"} if config.holdout.fraction > 0 else {"train": ""}


def padding_id(config: RunConfig, tokenizer: TokenizerSpec) -> int:
    """The token id for alignment padding; 0, which no row then holds, if there is none and nothing is padded.

    Raises:
        ConfigError: `pack.align` or `pack.parallel` needs padding, and the tokenizer has none.
    """
    if tokenizer.pad_id is None and config.pack.alignment.pads:
        setting = "pack.align=1" if config.pack.align > 1 else "pack.parallel=null"
        key = setting.partition("=")[0]
        raise ConfigError(
            f"{key} pads with the tokenizer's padding or end-of-sequence token, but "
            f"{tokenizer.name} has neither; set {setting}"
        )
    return tokenizer.pad_id or 0
