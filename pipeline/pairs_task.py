"""The task of preference data: rows of a layout → one shard of pairs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.rows import PREFERENCE
from ..stages.arrays import lists, view
from .pack import CHUNK_TOKENS, Account, PackResult, mapped, put_shard
from .parts import EncodedPart, PartFile, read_parts
from .planning import ShardPlan
from .stores import Store

_INT = pa.int32()
LAYOUT = pa.schema(
    [
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("segment", _INT, nullable=False),
        pa.field("begin", _INT, nullable=False),
        *(pa.field(f"{part}_{what}", _INT, nullable=False) for what in ("start", "length") for part in "pcr"),
    ]
)
"""One pair to write: which document, the first of its tokens within its segment, and of prompt, chosen and rejected
completion which stretch of these tokens stays."""


@dataclass(frozen=True, slots=True)
class PairTask:
    """One shard of pairs to write."""

    out: Store
    cache: Store
    parts: str
    """Name of the list of parts in `out`: paths, in the order of the catalogue."""
    layout: str
    """Name of the split's layout."""
    prefix: str
    """Folder of the split's shards."""
    shard: ShardPlan
    format: str

    def __str__(self) -> str:
        return f"{self.prefix}, shard {self.shard.index} (rows {self.shard.first_row:,} to {self.shard.last_row:,})"

    @property
    def record(self) -> str:
        """Where the shard's record stands."""
        return f"_run/{self.prefix}/{self.shard.index:05d}.json"


def write_pairs(task: PairTask) -> PackResult:
    """Run one task: gather, write, put the shard, put its record."""
    began = time.perf_counter()
    account = Account()
    return put_shard(task, PREFERENCE, _batches(task, account), account, began)


def _account(account: Account, sources: NDArray[np.int32], lengths: list[NDArray[np.int32]]) -> None:
    """Add rows with so many tokens of prompt, chosen and rejected completion."""
    prompt, chosen, rejected = (one.astype(np.int64) for one in lengths)
    # Without a prompt, nothing comes before the first token of a completion that it could be predicted from.
    heads = np.where(prompt == 0, 2, 0)
    written = prompt + chosen + rejected
    account.tokens += int(written.sum())
    account.max_docs = 1
    account.add(sources, chosen + rejected - heads, heads, np.zeros_like(heads), written)


def _batches(task: PairTask, account: Account) -> Iterator[pa.RecordBatch]:
    if task.shard.first_row == task.shard.last_row:
        yield pa.RecordBatch.from_pylist([], PREFERENCE)  # datasets cannot open a stream without a batch
        return
    layout = mapped(task.out.local(f"{task.layout}-pairs.arrow"))
    rows = layout.slice(task.shard.first_row, task.shard.last_row - task.shard.first_row)
    doc_ids, segments, begins, *stretches = map(view, rows.columns)
    starts, lengths = stretches[:3], stretches[3:]
    listed = read_parts(task.out, task.parts)
    tokens, sources = _segments(tuple(listed.parts), tuple(listed.sources), task.cache)
    ends = np.cumsum(sum(one.astype(np.int64) for one in lengths))
    first = 0
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + CHUNK_TOKENS, side="right")))
        here = slice(first, last)
        mine = [tokens[number] for number in segments[here].tolist()]
        columns = [
            _gathered(mine, begins[here] + start[here], length[here], field)
            for start, length, field in zip(starts, lengths, list(PREFERENCE)[:3], strict=True)
        ]
        columns.append(lists(np.arange(last - first + 1), doc_ids[here], PREFERENCE.field("doc_ids").type))
        _account(account, sources[segments[here]], [length[here] for length in lengths])
        yield pa.RecordBatch.from_arrays(columns, schema=PREFERENCE)
        first = last


def _gathered(
    tokens: list[NDArray[np.int32]], begins: NDArray[Any], lengths: NDArray[np.int32], field: pa.Field
) -> pa.ListArray:
    """(R,) lists: of each row's tokens the `lengths` from `begins` on."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    stretches = [
        t[begin : begin + length] for t, begin, length in zip(tokens, begins.tolist(), lengths.tolist(), strict=True)
    ]
    return lists(offsets, np.concatenate(stretches), field.type)


@lru_cache(maxsize=1)
def _segments(
    files: tuple[PartFile, ...], sources: tuple[int, ...], cache: Store
) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
    """The tokens of every segment, mapped, and (segments,) which source each belongs to."""
    tokens, owners = list[NDArray[np.int32]](), list[int]()
    for file, source in zip(files, sources, strict=True):
        batches = EncodedPart(file.path(cache)).batches
        tokens += [view(batch.column("input_ids").values) for batch in batches]
        owners += [source] * len(batches)
    return tokens, np.array(owners, dtype=np.int32)


def forget_segments() -> None:
    """Let go of the parts that are mapped."""
    _segments.cache_clear()
