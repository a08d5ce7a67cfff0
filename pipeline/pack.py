"""The pack task: rows of a layout → one shard."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..schemas.errors import IntegrityError
from ..schemas.manifest import ShardRecord
from ..schemas.rows import PACKED
from ..stages.arrays import view
from ..stages.layout import Pieces, lay_out
from ..stages.mask import Mask
from .parts import EncodedPart, PartFile, Segment, read_parts
from .planning import ShardPlan
from .stores import Store

CHUNK_TOKENS = 1 << 18
"""Tokens laid out at once: three columns of a mebibyte stay in the cache, and are a good record batch."""


@dataclass(frozen=True, slots=True)
class PackTask:
    """One shard to write."""

    out: Store
    cache: Store
    parts: str
    """Name of the list of parts in `out`, in the order of the catalogue."""
    layout: str
    """Name of the window's layout."""
    prefix: str
    """Folder of the split's shards: `shards`, or `train/shards` and `holdout/shards`."""
    shard: ShardPlan
    mask: Mask
    align: int
    pad_id: int
    format: str

    def __str__(self) -> str:
        return f"{self.prefix}, shard {self.shard.index} (rows {self.shard.first_row:,} to {self.shard.last_row:,})"

    @property
    def record(self) -> str:
        """Where the shard's record stands."""
        return f"_run/{self.prefix}/{self.shard.index:05d}.json"


@dataclass(frozen=True, slots=True)
class PackResult:
    """A shard, and what the ledger wants to know of it."""

    shard: ShardRecord
    trained: dict[int, int]
    """Labels that count, by part."""
    heads: dict[int, int]
    """Labels lost at the heads of pieces, by part."""
    padding: dict[int, int]
    """Alignment padding, by part."""
    written: dict[int, int]
    """All tokens, padding included, by part."""
    record: str
    """Name of the record that this result was put under."""
    seconds: float


def pack_shard(task: PackTask) -> PackResult:
    """Run one task: gather, write, put the shard, put its record."""
    began = time.perf_counter()
    account = Account()
    return put_shard(task, PACKED, _batches(task, account), account, began)


class ShardTask(Protocol):
    """What every task that writes a shard knows of it."""

    @property
    def out(self) -> Store: ...
    @property
    def prefix(self) -> str: ...
    @property
    def shard(self) -> ShardPlan: ...
    @property
    def format(self) -> str: ...
    @property
    def record(self) -> str: ...


def put_shard(
    task: ShardTask, schema: pa.Schema, batches: Iterator[pa.RecordBatch], account: "Account", began: float
) -> PackResult:
    """Write the batches as a shard, put it, put its record.

    Args:
        account: filled as the batches are made.
        began: when the task did, of `time.perf_counter`.

    Raises:
        IntegrityError: the task was run before and wrote something else.
    """
    store = task.out
    suffix = "arrow" if task.format == "arrow" else "parquet"
    with store.draft(task.prefix, sha256=True) as draft:
        sink = pa.PythonFile(draft.file, mode="w")
        if task.format == "arrow":
            # A stream, not a file: that is what datasets.load_from_disk reads.
            with pa.ipc.new_stream(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        else:
            with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=True) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        put = draft.result
        name = f"{task.prefix}/{task.shard.index:05d}-{put.hash[:16]}.{suffix}"
        store.put(draft, name, mend=True)
    rows = task.shard.last_row - task.shard.first_row
    shard = ShardRecord(name, put.bytes, put.hash, put.sha256, rows, account.tokens, account.trained, account.max_docs)
    trained, heads, padding, written = account.totals
    result = PackResult(shard, trained, heads, padding, written, task.record, time.perf_counter() - began)
    if not store.put_bytes(task.record, msgspec.json.encode(result)):
        earlier = msgspec.json.decode(store.read(task.record) or b"{}", type=PackResult)
        if earlier.shard != shard:
            raise IntegrityError(
                f"packing is not deterministic: {task} was {earlier.shard.name} before and is {name} now; "
                "please report it with the configuration"
            )
    return result


class Account:
    """Adds up what was laid out, by part of the cache (and so by source)."""

    def __init__(self) -> None:
        self.tokens = 0
        self.max_docs = 0
        self.totals: tuple[dict[int, int], ...] = ({}, {}, {}, {})

    @property
    def trained(self) -> int:
        """Labels that count, in all."""
        return sum(self.totals[0].values())

    def add(self, parts: NDArray[np.int32], *counts: NDArray[np.generic]) -> None:
        """Trained labels, lost heads, padding and all tokens of each piece."""
        for totals, values in zip(self.totals, counts, strict=True):
            sums = np.bincount(parts, weights=values)
            for part in np.flatnonzero(sums).tolist():
                totals[part] = totals.get(part, 0) + int(sums[part])


def _batches(task: PackTask, account: Account) -> Iterator[pa.RecordBatch]:
    if task.shard.first_row == task.shard.last_row:
        yield pa.RecordBatch.from_pylist([], PACKED)  # datasets cannot open a stream without a batch
        return
    pieces = mapped(task.out.local(f"{task.layout}-pieces.arrow"))
    row_offsets = view(mapped(task.out.local(f"{task.layout}-rows.arrow")).column(0))
    row_offsets = row_offsets[task.shard.first_row : task.shard.last_row + 1] - task.shard.first_piece
    columns = pieces.slice(task.shard.first_piece, task.shard.last_piece - task.shard.first_piece)
    doc_ids, starts, lengths, repeated, segments, begins, run_begins, run_counts = map(view, columns.columns)
    library = _library(read_parts(task.out, task.parts), task.cache, task.mask)
    padded = -(-lengths // task.align) * task.align if task.align > 1 else lengths
    ends = np.cumsum(padded, dtype=np.int64)[row_offsets[1:] - 1]
    account.tokens = int(ends[-1])
    account.max_docs = int(np.diff(row_offsets).max())

    first = 0
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + CHUNK_TOKENS, side="right")))
        low, high = int(row_offsets[first]), int(row_offsets[last])
        here = slice(low, high)
        begin = (begins[here] + starts[here]).tolist()
        end = (begins[here] + starts[here] + lengths[here]).tolist()
        run_begin = run_begins[here].tolist()
        run_end = (run_begins[here] + run_counts[here]).tolist()
        numbers = segments[here].tolist()
        tokens, runs = library.views(numbers)
        coded = np.concatenate([r[a:b] for r, a, b in zip(runs, run_begin, run_end, strict=True)])
        asked = coded >= 0
        run_offsets = np.zeros(high - low + 1, dtype=np.int64)
        np.cumsum(run_counts[here], out=run_offsets[1:])
        laid = lay_out(
            Pieces(
                tokens=[t[a:b] for t, a, b in zip(tokens, begin, end, strict=True)],
                starts=starts[here],
                lengths=lengths[here],
                repeated=repeated[here],
                doc_ids=doc_ids[here],
                row_offsets=row_offsets[first : last + 1] - low,
                run_ends=np.where(asked, coded, ~coded),
                run_asked=asked,
                run_offsets=run_offsets,
            ),
            task.align,
            task.pad_id,
        )
        padding = padded[here] - lengths[here]
        account.add(library.parts[segments[here]], laid.trained, laid.heads, padding, padded[here])
        yield laid.batch
        first = last


class _Library:
    """The segments of all parts, opened when they are first needed."""

    def __init__(self, files: tuple[PartFile, ...], cache: Store, mask: Mask) -> None:
        self._segments: list[Segment] = []
        parts: list[int] = []
        for index, file in enumerate(files):
            segments = EncodedPart(file.path(cache)).segments(mask)
            self._segments += segments
            parts += [index] * len(segments)
        self.parts = np.array(parts, dtype=np.int32)
        self._tokens = [segment.tokens for segment in self._segments]
        self._runs = [segment.runs for segment in self._segments]

    def views(self, numbers: list[int]) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]]:
        """The token and run arrays of each piece's segment."""
        tokens, runs = self._tokens, self._runs
        return [tokens[n] for n in numbers], [runs[n] for n in numbers]


@lru_cache(maxsize=1)
def _library(files: tuple[PartFile, ...], cache: Store, mask: Mask) -> _Library:
    return _Library(files, cache, mask)


def mapped(path: Path) -> pa.RecordBatch:
    """The one record batch of an Arrow file, through a memory map."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).get_batch(0)
