"""The last steps of a run before its manifest: choosing documents (`select`) and writing shards (`pack`)."""

from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ...schemas.ledger import Ledger
from ...schemas.manifest import FileRecord, SplitRecord
from ...schemas.rows import PREFERENCE, packed_schema
from ...stages.mask.policy import Mask
from ..encode.driver import Encoded
from ..encode.tokenizer import TokenizerSpec
from ..execute.executor import Executor, perform
from ..observer import Observer, Silent
from ..store.open_store import Store
from .documents import RECORD, DocumentsTask
from .finished import FinishedFiles
from .ledger import account_rows, account_table, open_ledger
from .outcomes import limits_of
from .outcomes import select as select_documents
from .pairs import PAIR_TOKEN_BYTES, pair_limits, plan_pairs, select_pairs
from .row_sizes import RowSizes
from .shard import LossWeights, PackResult, ShardTask
from .table import WEIGHTED, Table, read_table
from .window_plan import TOKEN_BYTES, WEIGHT_BYTES, WindowPlan, plan_window, windows


@dataclass(frozen=True, eq=False)
class Selected:
    """What to pack of the encoded parts."""

    config: RunConfig
    encoded: Encoded
    table: Table
    split_pieces: NDArray[Any]
    """See `outcomes.select`."""
    ledger: Ledger
    """The ledger before packing; it closes when the shards are added."""
    pairs: bool
    """Whether these are preference pairs."""
    pad_id: int
    """The token id for alignment padding."""

    @cached_property
    def weighted(self) -> bool:
        """Whether rows have `loss_weights`."""
        return not self.pairs and (weighs(self.config) or weighs_itself(self.table))

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""
        if self.pairs:
            return PREFERENCE
        return packed_schema(unpadded=self.config.pack.alignment.unpadded, weights=self.weighted)

    @property
    def token_bytes(self) -> int:
        """Bytes per token of a row."""
        return PAIR_TOKEN_BYTES if self.pairs else TOKEN_BYTES + WEIGHT_BYTES * self.weighted

    @cached_property
    def tokens(self) -> int:
        """Tokens of all rows, with about the padding of whole documents."""
        return self.ledger.total().tokens_packed + self.copies * (self.config.pack.alignment.document // 2)

    @cached_property
    def copies(self) -> int:
        """Packed documents, with all copies."""
        return int(self.table.documents.copies.sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Packed:
    """Records of everything that was written, and the closed ledger."""

    splits: dict[str, SplitRecord]
    documents: FileRecord
    row_sizes: tuple[FileRecord, ...]
    """The row sizes file of each split."""
    ledger: Ledger


def select(
    config: RunConfig, encoded: Encoded, scratch: Path, *, pairs: bool = False, pad_id: int = 0, only: str | None = None
) -> Selected:
    """Read the table of documents, and decide which to pack.

    Args:
        scratch: a local folder for anonymous files.
        pairs: whether these are preference pairs.
        pad_id: see `padding_id`.
        only: the only split to pack; by default all.

    Raises:
        InputError: `overlong: error`, and an example is too long.
        ConfigError: a weight asks for too many copies.
    """
    sizes = [record.counts.examples for record in encoded.records]
    table = read_table(encoded.places, sizes, config, pair_limits(config) if pairs else limits_of(config), scratch)
    if pairs:
        select_pairs(table, config)
        pieces: NDArray[Any] = np.zeros(0)
    else:
        pieces = select_documents(table, config, encoded.spec.tokenizer_json, scratch, only=only)
    ledger = open_ledger(config, [place.source for place in encoded.places], encoded.records, encoded.not_taken)
    account_table(ledger, table, config)
    return Selected(config, encoded, table, pieces, ledger, pairs, pad_id)


def pack(selected: Selected, out: Store, executor: Executor, observer: Observer) -> Packed:
    """Put the table, plan each window, lay out its shards, write documents.parquet, close the ledger.

    Raises:
        IntegrityError: the ledger does not close, or an earlier shard does not match its record.
    """
    config, table = selected.config, selected.table
    names, splits = [source.name for source in config.sources], split_names(config)
    finished = FinishedFiles(out)
    finished.look([shards_folder(config, split) for split in splits], observer)
    left = selected.tokens - finished.tokens
    progress = observer if left > 0 else Silent()
    progress.begin("pack", left, "tok")
    table.put(out)
    plans: dict[str, list[WindowPlan]] = {split: [] for split in splits}
    tasks: dict[str, list[ShardTask]] = {split: [] for split in splits}
    sizes = {split: RowSizes(config.pack.alignment) for split in splits}

    def plan_tasks() -> Iterator[DocumentsTask | ShardTask]:
        """The next window is planned while workers write shards of the last one."""
        yield DocumentsTask(out, selected.encoded.cache, tuple(names))
        for split in splits:
            # All pairs of a split are ordered together.
            each = [np.zeros(0, np.int64)] if selected.pairs else windows(table, split, config)
            for number, blocks in enumerate(each):
                first = len(tasks[split])
                if selected.pairs:
                    window = plan_pairs(table, split, first, config, out)
                else:
                    where = (split, number, blocks, first, config, out)
                    window, plan = plan_window(table, selected.split_pieces, *where, weighted=selected.weighted)
                    sizes[split].add(plan.lengths, plan.row_offsets)
                    del plan
                plans[split].append(window)
                shards = _shard_tasks(selected, out, split, window)
                tasks[split] += shards
                yield from shards

    with closing(executor.map(perform, plan_tasks(), finished.have)) as results:
        for result in results:
            assert isinstance(result, PackResult | FileRecord)
            finished.add(result)
            if isinstance(result, PackResult):
                progress.advance(result.shard.tokens, rows=result.shard.rows, tokens=result.shard.tokens)
    progress.end()
    found = {split: [cast(PackResult, finished.get(task.record)) for task in tasks[split]] for split in splits}
    records = {
        split: SplitRecord(
            tuple(result.shard for result in found[split]),
            tuple(window.certificate for window in plans[split] if window.certificate is not None),
        )
        for split in splits
    }
    ledger = deepcopy(selected.ledger)
    account_rows(ledger, names, (result.written for split in splits for result in found[split]))
    files: tuple[FileRecord, ...] = ()
    if not selected.pairs:  # only packtrain's loader uses row sizes, and only for packed rows
        files = tuple(sizes[split].put(out, split_folder(config, split)) for split in splits)
    return Packed(records, cast(FileRecord, finished.get(RECORD)), files, ledger)


def _shard_tasks(selected: Selected, out: Store, split: str, window: WindowPlan) -> list[ShardTask]:
    config, cache, pairs = selected.config, selected.encoded.cache, selected.pairs
    return [
        ShardTask(
            out,
            cache,
            window.name,
            shards_folder(config, split),
            shard,
            Mask.of_sources(config),
            Alignment() if pairs else config.pack.alignment,
            selected.pad_id,
            config.output.format,
            loss_weights(config) if selected.weighted else None,
            pair_limits(config) if pairs else None,
        )
        for shard in window.shards
    ]


def loss_weights(config: RunConfig) -> LossWeights:
    """What the configuration multiplies loss weights by."""
    return LossWeights(tuple(source.loss_weight or 1.0 for source in config.sources), config.loss.divides)


def weighs_itself(table: Table) -> bool:
    """Whether some packed document has a trained token with another weight than 1."""
    return any(
        bool((some.has(WEIGHTED) & (some.copies > 0)).any())
        for some in (table.documents.at(here) for _, here in table.slices())
    )


def split_names(config: RunConfig) -> list[str]:
    """The splits that a run writes."""
    return ["train", "holdout"] if config.holdout.fraction > 0 else ["train"]


def weighs(config: RunConfig) -> bool:
    """Whether rows have `loss_weights` whatever their messages and examples say."""
    loss = config.loss
    return loss.divides or loss.column == "always" or any((one.loss_weight or 1) != 1 for one in config.sources)


def padding_id(config: RunConfig, tokenizer: TokenizerSpec) -> int:
    """The token id for alignment padding.

    Raises:
        ConfigError: `pack.align` or `pack.parallel` needs padding, and the tokenizer has none.
    """
    if tokenizer.pad_id is None and config.pack.alignment.pads:
        key, without = ("pack.align", "1") if config.pack.align > 1 else ("pack.parallel", "null")
        raise ConfigError(
            f"{key} pads with the tokenizer's padding or end-of-sequence token, but "
            f"{tokenizer.name} has neither; set {key}={without}"
        )
    return tokenizer.pad_id or 0


def split_folder(config: RunConfig, split: str) -> str:
    """Return the prefix of a split's files: "", or the split's name and a slash."""
    return f"{split}/" if config.holdout.fraction > 0 else ""


def shards_folder(config: RunConfig, split: str) -> str:
    """The folder of a split's shards."""
    return f"{split_folder(config, split)}shards"
