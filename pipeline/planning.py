"""From the catalogue to layout files: which pieces stand in which rows, and which rows in which shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.layout import Certificate, LayoutPlan
from ..schemas.splitmix import GOLDEN, mix
from ..stages.arrays import numbers
from ..stages.plan import plan_rows
from .catalogue import Catalogue
from .store import LocalStore

if TYPE_CHECKING:  # workers read layouts, and need no pydantic for it
    from ..schemas.config import RunConfig

WINDOW_TOKENS = 4_000_000_000
"""Planned together when the configuration says nothing: one window for most datasets, some 500 MB of plan."""
TOKEN_BYTES = 12
"""input_ids, labels and position_ids, four bytes each."""

PIECES = pa.schema(
    [
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("begin", pa.int32(), nullable=False),
        pa.field("run_begin", pa.int32(), nullable=False),
        pa.field("run_count", pa.int32(), nullable=False),
    ]
)
"""One planned piece: which tokens of which document, and where the document stands in its segment."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to lay out: rows `first_row:last_row` of one window's layout file."""

    window: int
    index: int
    """Number of the shard within its split."""
    first_row: int
    last_row: int
    first_piece: int
    last_piece: int
    tokens: int
    """Tokens, alignment padding included."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One planned window of a split."""

    name: str
    """Of its layout file, below the run's folder; `{name}-pieces.arrow` and `{name}-rows.arrow`."""
    certificate: Certificate
    shards: tuple[ShardPlan, ...]


def plan_split(
    store: LocalStore,
    split: str,
    config: "RunConfig",
    catalogue: Catalogue,
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
) -> list[WindowPlan]:
    """Plan every window of a split and put its layout where the shard tasks find it.

    Args:
        starts, lengths: (N,) what stays of each document; a length of 0 leaves it out of this split.
    """
    windows: list[WindowPlan] = []
    shard = 0
    for number, documents in enumerate(_windows(config, catalogue, lengths)):
        plan = plan_rows(
            lengths[documents],
            config.truncate.max_length,
            config.pack.strategy,
            max_docs=config.pack.max_docs,
            align=config.pack.align,
        )
        if config.pack.shuffle:
            plan = permute_rows(plan, window_seed(config.seed, number))
        name = f"_run/layout/{split}-{number:05d}"
        _save(store, name, plan, catalogue, documents, starts)
        shards = _shards(plan, number, shard, config)
        shard += len(shards)
        windows.append(WindowPlan(name, plan.certificate, shards))
    return windows


def window_seed(seed: int, number: int) -> int:
    """The seed of one window's order. Mixed, not added: SplitMix64's seeds must not lie its own step apart."""
    return int(mix64(np.array([number], dtype=np.uint64), seed)[0])


def permute_rows(plan: LayoutPlan, seed: int) -> LayoutPlan:
    """The same rows in another order, chosen by the seed.

    The order sorts the rows by a mixed hash of their index, so it depends on nothing but the seed: neither on the
    machine nor on a library's random generator. The mixer is SplitMix64's finaliser (Steele, Lea, Flood, 2014).
    """
    rows = plan.rows
    keys = mix64(np.arange(rows, dtype=np.uint64), seed)
    order = np.argsort(keys, kind="stable")
    sizes = np.diff(plan.row_offsets)[order]
    offsets = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    take = np.arange(int(offsets[-1]), dtype=np.int64)
    take += np.repeat(plan.row_offsets[:-1][order] - offsets[:-1], sizes)
    return LayoutPlan(plan.order[take], plan.starts[take], plan.lengths[take], offsets, plan.certificate)


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 of each value under a seed: (N,) 64-bit numbers that look independent."""
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


def _windows(config: "RunConfig", catalogue: Catalogue, lengths: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
    """Documents planned together, in catalogue order within a window.

    With several windows the parts are dealt to them in an order chosen by the seed, source by source in turn, so
    that every window sees every source.
    """
    limit = config.pack.window_tokens or WINDOW_TOKENS
    if int(lengths.sum(dtype=np.int64)) <= limit:
        yield np.flatnonzero(lengths)  # also when it is empty: an empty split still has a shard to open
        return
    # Running sums, and not reduceat, which knows no empty range: a part may have no document at all.
    sums = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=sums[1:])
    totals = np.diff(sums[catalogue.part_starts])
    sources = np.array([part.source for part in catalogue.parts])
    keys = mix64(np.arange(len(totals), dtype=np.uint64), config.seed)
    # The place of a part in its own source, as a share: sorting by it interleaves sources of any sizes evenly.
    share = np.zeros(len(totals))
    for source in np.unique(sources):
        mine = np.flatnonzero(sources == source)
        mine = mine[np.argsort(keys[mine], kind="stable")]
        share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    window: list[int] = []
    size = 0
    for part in np.lexsort((sources, share)).tolist():
        if window and size + int(totals[part]) > limit:
            yield _documents(catalogue, window, lengths)
            window, size = [], 0
        window.append(part)
        size += int(totals[part])
    if window and size:
        yield _documents(catalogue, window, lengths)


def _documents(catalogue: Catalogue, parts: list[int], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    ranges = [np.arange(catalogue.part_starts[p], catalogue.part_starts[p + 1]) for p in sorted(parts)]
    documents: NDArray[np.int64] = np.concatenate(ranges)
    return documents[lengths[documents] > 0]


def _save(
    store: LocalStore,
    name: str,
    plan: LayoutPlan,
    catalogue: Catalogue,
    documents: NDArray[np.int64],
    starts: NDArray[np.int32],
) -> None:
    doc_ids = documents[plan.order]
    segment = (np.searchsorted(catalogue.segment_starts, doc_ids, side="right") - 1).astype(np.int32)
    columns = [
        doc_ids,
        plan.starts.astype(np.int32) + starts[doc_ids],
        plan.lengths,
        segment,
        catalogue.begins[doc_ids],
        catalogue.run_begins[doc_ids],
        catalogue.run_counts[doc_ids],
    ]
    batch = pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=PIECES)
    put_arrow(store, f"{name}-pieces.arrow", batch)
    rows = pa.RecordBatch.from_arrays([numbers(plan.row_offsets)], names=["row_offset"])
    put_arrow(store, f"{name}-rows.arrow", rows)


def put_arrow(store: LocalStore, name: str, batch: pa.RecordBatch) -> None:
    """Put one record batch as an Arrow file that can be mapped."""
    with store.draft(name.rpartition("/")[0]) as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        store.put(draft, name, mend=True)


def _shards(plan: LayoutPlan, window: int, first_index: int, config: "RunConfig") -> tuple[ShardPlan, ...]:
    """Cut the rows into shards of about equal size, each at most about `output.shard_bytes`."""
    if not plan.rows:
        return (ShardPlan(window, first_index, 0, 0, 0, 0, 0),)
    align = config.pack.align
    padded = -(-plan.lengths.astype(np.int64) // align) * align
    ends = np.cumsum(padded)[plan.row_offsets[1:] - 1]
    total = int(ends[-1])
    count = max(1, -(-total * TOKEN_BYTES // config.output.shard_bytes))
    targets = np.arange(1, count + 1, dtype=np.int64) * total // count
    cuts = np.searchsorted(ends, targets, side="left") + 1
    cuts = np.unique(np.concatenate([[0], np.minimum(cuts, plan.rows)]))
    shards = []
    for index, (first, last) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
        tokens = int(ends[last - 1]) - (int(ends[first - 1]) if first else 0)
        shards.append(
            ShardPlan(
                window,
                first_index + index,
                first,
                last,
                int(plan.row_offsets[first]),
                int(plan.row_offsets[last]),
                tokens,
            )
        )
    return tuple(shards)
