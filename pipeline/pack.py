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
from ..schemas.jsontext import decode_note
from ..schemas.manifest import ShardRecord
from ..schemas.rows import PACKED
from ..stages.arrays import view
from ..stages.layout import Pieces, lay_out
from ..stages.mask import Mask
from .parts import EncodedPart, PartFile, Segment, read_parts
from .planning import ShardPlan, read_rows
from .sealed import seal, unseal
from .stores import Store

CHUNK_TOKENS = 1 << 18
"""Tokens laid out at once: three columns of a mebibyte stay in the cache, and are a good record batch."""


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
    trained_by: dict[int, int]
    """Labels that count, by the number of their source."""
    heads_by: dict[int, int]
    """Labels lost at the heads of pieces, by source."""
    padding_by: dict[int, int]
    """Alignment padding, by source."""
    written_by: dict[int, int]
    """All tokens, padding included, by source."""
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
    data = seal(msgspec.json.encode(result))
    if not store.put_bytes(task.record, data):
        there = unseal(store.read(task.record))
        if there is None:
            store.replace_bytes(task.record, data)
        elif (earlier := decode_note(there, PackResult)).shard != shard:
            raise IntegrityError(
                f"packing is not deterministic: {task} was {earlier.shard.name} before and is {name} now; "
                "please report it with the configuration"
            )
    return result


class Account:
    """Adds up what was laid out, by source."""

    def __init__(self) -> None:
        self.tokens = 0
        self.max_docs = 0
        self.totals: tuple[dict[int, int], ...] = ({}, {}, {}, {})

    @property
    def trained(self) -> int:
        """Labels that count, in all."""
        return sum(self.totals[0].values())

    def add(self, sources: NDArray[np.int32], *counts: NDArray[np.generic]) -> None:
        """Trained labels, lost heads, padding and all tokens of each piece."""
        for totals, values in zip(self.totals, counts, strict=True):
            sums = np.bincount(sources, weights=values)
            for source in np.flatnonzero(sums).tolist():
                totals[source] = totals.get(source, 0) + int(sums[source])


def _batches(task: PackTask, account: Account) -> Iterator[pa.RecordBatch]:
    if task.shard.first_row == task.shard.last_row:
        yield pa.RecordBatch.from_pylist([], PACKED)  # datasets cannot open a stream without a batch
        return
    row_offsets = view(mapped(task.out.local(f"{task.layout}-rows.arrow")).column(0))
    row_offsets = row_offsets[task.shard.first_row : task.shard.last_row + 1] - task.shard.first_piece
    pieces = task.out.local(f"{task.layout}-pieces.arrow")
    columns = read_rows(pieces, task.shard.first_piece, task.shard.last_piece)
    doc_ids, starts, lengths, repeated, segments, begins, run_begins, run_counts = columns
    listed = read_parts(task.out, task.parts)
    library = _library(tuple(listed.parts), tuple(listed.sources), task.cache, task.mask)
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
        tokens = library.tokens(segments[here])
        run_ends, asked = library.runs(segments[here], run_begins[here], run_counts[here])
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
                run_ends=run_ends,
                run_asked=asked,
                run_offsets=run_offsets,
            ),
            task.align,
            task.pad_id,
        )
        padding = padded[here] - lengths[here]
        account.add(library.sources[segments[here]], laid.trained, laid.heads, padding, padded[here])
        yield laid.batch
        first = last


class _Library:
    """The segments of a window's parts. Tokens and runs stay in the files; a bit a run says whether it is asked for."""

    def __init__(self, files: tuple[PartFile, ...], sources: tuple[int, ...], cache: Store, mask: Mask) -> None:
        owners: list[int] = []
        bits: list[NDArray[np.uint8]] = []
        self._tokens: list[NDArray[np.int32]] = []
        self._ends: list[NDArray[np.int32]] = []
        for file, source in zip(files, sources, strict=True):
            for batch in EncodedPart(file.path(cache)).batches:
                segment = Segment.of(batch, mask)
                self._tokens.append(segment.tokens)
                self._ends.append(view(batch.column("runs").values.field("end")))
                bits.append(np.packbits(segment.runs >= 0, bitorder="little"))
                owners.append(source)
        self.sources = np.array(owners, dtype=np.int32)
        """(segments,) which source each belongs to."""
        sizes = np.array([0, *map(len, bits)], dtype=np.int64)
        self._begins = 8 * np.cumsum(sizes)
        """(segments + 1,) the bit of each one's first run."""
        self._bits = np.concatenate([np.zeros(0, np.uint8), *bits])

    def tokens(self, segments: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """All tokens of each piece's segment."""
        tokens = self._tokens
        return [tokens[n] for n in segments.tolist()]

    def runs(
        self, segments: NDArray[np.int32], begins: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(runs,) where the runs of each piece's document end, one after another, and whether they are asked for."""
        ends = self._ends
        spans = zip(segments.tolist(), begins.tolist(), (begins + counts).tolist(), strict=True)
        found = np.concatenate([ends[n][a:b] for n, a, b in spans])
        first = np.cumsum(counts, dtype=np.int64) - counts
        bit = np.arange(len(found)) + np.repeat(self._begins[segments] + begins - first, counts)
        return found, (self._bits[bit >> 3] >> (bit & 7).astype(np.uint8) & 1).view(np.bool_)


@lru_cache(maxsize=1)
def _library(files: tuple[PartFile, ...], sources: tuple[int, ...], cache: Store, mask: Mask) -> _Library:
    return _Library(files, sources, cache, mask)


def forget_library() -> None:
    """Let go of the parts that are mapped."""
    _library.cache_clear()


def mapped(path: Path) -> pa.RecordBatch:
    """The one record batch of an Arrow file, through a memory map."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).get_batch(0)
