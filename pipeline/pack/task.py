"""The pack task: makes one shard from rows of a layout."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.alignment import Alignment
from ...schemas.errors import IntegrityError
from ...schemas.jsontext import decode_note
from ...schemas.manifest import ShardRecord
from ...schemas.rows import PREFERENCE, packed_schema
from ...stages.mask.policy import Mask
from ..encode.parts import read_parts
from ..store.checksummed import seal, unseal
from ..store.open import Store
from .packed_task import packed_batches
from .planning import ShardPlan
from .preference.task import pair_batches
from .segments import Account, segments_of


@dataclass(frozen=True, slots=True)
class PackTask:
    """One shard to write."""

    out: Store
    cache: Store
    parts: str
    """Name of the list of the window's parts in `out`."""
    layout: str
    """Name of the window's layout."""
    prefix: str
    """Folder of the split's shards: `shards`, or `train/shards` and `holdout/shards`."""
    shard: ShardPlan
    mask: Mask
    alignment: Alignment
    pad_id: int
    format: str
    pairs: bool = False
    """Whether the rows are preference pairs."""
    weights: bool = False
    """Whether the rows have `loss_weights`."""

    @property
    def destination(self) -> Store:
        """The store that holds the task's record."""
        return self.out

    def run(self) -> "PackResult":
        """See `pack_shard`."""
        return pack_shard(self)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the shard."""
        return PREFERENCE if self.pairs else packed_schema(unpadded=self.alignment.unpadded, weights=self.weights)

    def __str__(self) -> str:
        return f"{self.prefix}, shard {self.shard.index} (rows {self.shard.first_row:,} to {self.shard.last_row:,})"

    @property
    def record(self) -> str:
        """Name of the shard's record."""
        return f"_run/{self.prefix}/{self.shard.index:05d}.json"


@dataclass(frozen=True, slots=True)
class PackResult:
    """A shard, and its counts for the ledger."""

    shard: ShardRecord
    trained_by: dict[int, int]
    """Trained labels, by the source's number."""
    heads_by: dict[int, int]
    """Labels lost at first tokens of pieces, by source."""
    padding_by: dict[int, int]
    """Alignment padding, by source."""
    written_by: dict[int, int]
    """All tokens with padding, by source."""
    record: str
    """Name of the record of this result."""
    seconds: float
    weights_by: dict[int, float] = field(default_factory=dict)
    """Sums of the loss weights of trained labels, by source; empty without weights."""


def pack_shard(task: PackTask) -> PackResult:
    """Run one task: lay out, write, put the shard, put its record.

    Raises:
        IntegrityError: an earlier run of the task wrote a different shard.
    """
    began = time.perf_counter()
    account, schema = Account(), task.schema
    store = task.out
    suffix = "arrow" if task.format == "arrow" else "parquet"
    with store.draft(task.prefix, sha256=True) as draft:
        sink = pa.PythonFile(draft.file, mode="w")
        if task.format == "arrow":
            # A stream, not a file, because datasets.load_from_disk reads streams.
            with pa.ipc.new_stream(sink, schema) as writer:
                for batch in _batches(task, account):
                    writer.write_batch(batch)
        else:
            with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=True) as writer:
                for batch in _batches(task, account):
                    writer.write_batch(batch)
        put = draft.result
        name = f"{task.prefix}/{task.shard.index:05d}-{put.hash[:16]}.{suffix}"
        store.put(draft, name, replace_damaged=True)
    rows = task.shard.last_row - task.shard.first_row
    shard = ShardRecord(name, put.bytes, put.hash, put.sha256, rows, account.tokens, account.trained, account.max_docs)
    trained, heads, padding, written = account.totals
    seconds = time.perf_counter() - began
    result = PackResult(shard, trained, heads, padding, written, task.record, seconds, account.weights)
    data = seal(msgspec.json.encode(result), task.record)
    if not store.put_bytes(task.record, data):
        there = unseal(store.read(task.record), task.record)
        if there is None:
            store.replace_bytes(task.record, data)
        elif (earlier := decode_note(there, PackResult)).shard != shard:
            raise IntegrityError(
                f"packing is not deterministic: {task} was {earlier.shard.name} before and is {name} now; "
                "please report it with the configuration"
            )
    return result


def _batches(task: PackTask, account: Account) -> Iterator[pa.RecordBatch]:
    if task.shard.first_row == task.shard.last_row:
        # datasets cannot open a stream without a batch
        yield pa.RecordBatch.from_pylist([], task.schema)
        return
    listed = read_parts(task.out, task.parts)
    segments = segments_of(tuple(listed.parts), tuple(listed.sources), task.cache, task.mask)
    where = (task.out, task.layout, task.shard, segments, account)
    yield from pair_batches(*where) if task.pairs else packed_batches(*where, task.alignment, task.pad_id)
