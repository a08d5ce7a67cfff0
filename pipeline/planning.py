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
from ..stages.sections import Sections
from .catalogue import Catalogue
from .stores import Store

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
        pa.field("repeated", pa.int32(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("begin", pa.int32(), nullable=False),
        pa.field("run_begin", pa.int32(), nullable=False),
        pa.field("run_count", pa.int32(), nullable=False),
    ]
)
"""One planned piece: which tokens of which document, how many of the first ones an earlier piece has already, and where
the document stands in its segment."""


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
    certificate: Certificate | None
    """None for rows that are not packed."""
    shards: tuple[ShardPlan, ...]
    cut_documents: NDArray[np.int64]
    """(cuts,) documents that the strategy cut, once for each cut."""
    cut_places: NDArray[np.int32]
    """(cuts,) the token of the document before which it was cut."""


def plan_split(
    store: Store, split: str, config: "RunConfig", catalogue: Catalogue, sections: Sections
) -> list[WindowPlan]:
    """Plan every window of a split and put its layout where the shard tasks find it.

    Args:
        sections: the stretches of documents that belong to this split.
    """
    windows: list[WindowPlan] = []
    shard = 0
    for number, mine in enumerate(_windows(config, catalogue, sections)):
        plan = plan_rows(
            mine.lengths,
            config.truncate.max_length,
            config.pack.strategy,
            max_docs=config.pack.max_docs,
            align=config.pack.align,
        )
        if config.pack.shuffle:
            plan = permute_rows(plan, window_seed(config.seed, number))
        name = f"_run/layout/{split}-{number:05d}"
        _save(store, name, plan, catalogue, mine)
        shards = _shards(plan, number, shard, config)
        shard += len(shards)
        windows.append(WindowPlan(name, plan.certificate, shards, *inner_cuts(plan, mine)))
    return windows


def inner_cuts(plan: LayoutPlan, sections: Sections) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(cuts,) documents that the strategy itself cut, once for each cut, and (cuts,) the token before which it did."""
    inner = np.flatnonzero(plan.starts)
    which = plan.order[inner]
    return sections.documents[which], plan.starts[inner].astype(np.int32) + sections.starts[which]


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


def _windows(config: "RunConfig", catalogue: Catalogue, sections: Sections) -> Iterator[Sections]:
    """What is planned together, in catalogue order within a window.

    With several windows the parts are dealt to them in an order chosen by the seed, source by source in turn, so
    that every window sees every source.
    """
    limit = config.pack.window_tokens or WINDOW_TOKENS
    if int(sections.lengths.sum(dtype=np.int64)) <= limit:
        yield sections  # also when there are none: an empty split still has a shard to open
        return
    # Running sums, and not reduceat, which knows no empty range: a part may have no document at all.
    sums = np.zeros(len(sections) + 1, dtype=np.int64)
    np.cumsum(sections.lengths, out=sums[1:])
    starts = np.searchsorted(sections.documents, catalogue.part_starts)
    totals = np.diff(sums[starts])
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
            yield _of_parts(sections, starts, window)
            window, size = [], 0
        window.append(part)
        size += int(totals[part])
    if window and size:
        yield _of_parts(sections, starts, window)


def _of_parts(sections: Sections, starts: NDArray[np.int64], parts: list[int]) -> Sections:
    return sections.take(np.concatenate([np.arange(starts[part], starts[part + 1]) for part in sorted(parts)]))


def _save(store: Store, name: str, plan: LayoutPlan, catalogue: Catalogue, sections: Sections) -> None:
    doc_ids = sections.documents[plan.order]
    # Only sections that are packed whole have repeated tokens: a strategy that cuts gets none with any.
    repeated = sections.repeats[plan.order]
    segment = (np.searchsorted(catalogue.segment_starts, doc_ids, side="right") - 1).astype(np.int32)
    columns = [
        doc_ids,
        plan.starts.astype(np.int32) + sections.starts[plan.order],
        plan.lengths,
        repeated,
        segment,
        catalogue.begins[doc_ids],
        catalogue.run_begins[doc_ids],
        catalogue.run_counts[doc_ids],
    ]
    batch = pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=PIECES)
    put_arrow(store, f"{name}-pieces.arrow", batch)
    rows = pa.RecordBatch.from_arrays([numbers(plan.row_offsets)], names=["row_offset"])
    put_arrow(store, f"{name}-rows.arrow", rows)


def put_arrow(store: Store, name: str, batch: pa.RecordBatch) -> None:
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
    cuts = cut_rows(ends, TOKEN_BYTES, config.output.shard_bytes)
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


def cut_rows(ends: NDArray[np.int64], token_bytes: int, shard_bytes: int) -> NDArray[np.int64]:
    """(shards + 1,) where shards of about equal size begin and end, each at most about `shard_bytes`.

    Args:
        ends: (R,) tokens of the first r rows, for r from 1; at least one row.
    """
    total = int(ends[-1])
    count = max(1, -(-total * token_bytes // shard_bytes))
    targets = np.arange(1, count + 1, dtype=np.int64) * total // count
    cuts = np.searchsorted(ends, targets, side="left") + 1
    return np.unique(np.concatenate([[0], np.minimum(cuts, len(ends))]))
