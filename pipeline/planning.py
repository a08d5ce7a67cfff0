"""From the catalogue to layout files: which pieces stand in which rows, and which rows in which shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.layout import Certificate, LayoutPlan
from ..stages.arrays import numbers, view
from ..stages.plan import plan_rows
from ..stages.sections import Sections
from .parts import PartList
from .stores import Store
from .windows import Window, mix64, window_seed

if TYPE_CHECKING:  # workers read layouts, and need no pydantic for it
    from ..schemas.config import RunConfig

PIECES_AT_ONCE = 1 << 20
"""Pieces of a layout that are written at once."""
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

    @property
    def parts(self) -> str:
        """Name of the list of the window's parts."""
        return f"{self.name}-parts.json"


def plan_window(
    store: Store, split: str, number: int, first_shard: int, config: "RunConfig", window: Window
) -> tuple[WindowPlan, LayoutPlan]:
    """Plan a window of a split and put its layout, and the list of its parts, where the shard tasks find them.

    Args:
        number: of the window within the split.
        first_shard: how many shards the windows before have.
    """
    plan = plan_rows(
        window.sections.lengths,
        config.truncate.max_length,
        config.pack.strategy,
        max_docs=config.pack.max_docs,
        align=config.pack.align,
    )
    if config.pack.shuffle:
        plan = permute_rows(plan, window_seed(config.seed, number))
    name = f"_run/layout/{split}-{number:05d}"
    _save(store, name, plan, window)
    return WindowPlan(name, plan.certificate, _shards(plan, number, first_shard, config)), plan


def inner_cuts(plan: LayoutPlan, sections: Sections) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(cuts,) documents that the strategy itself cut, once for each cut, and (cuts,) the token before which it did.

    Args:
        sections: what was planned.
    """
    inner = np.flatnonzero(plan.starts)
    which = plan.order[inner]
    return sections.documents[which], plan.starts[inner].astype(np.int32) + sections.starts[which]


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


def _save(store: Store, name: str, plan: LayoutPlan, window: Window) -> None:
    sections = window.sections
    listed = PartList(
        window.parts[0].cache.url if window.parts else "",
        [place.part for place in window.parts],
        [place.source for place in window.parts],
    )
    store.replace_bytes(f"{name}-parts.json", msgspec.json.encode(listed))

    def pieces() -> Iterator[pa.RecordBatch]:
        for first in range(0, max(1, len(plan.order)), PIECES_AT_ONCE):
            here = slice(first, first + PIECES_AT_ONCE)
            section = plan.order[here]
            document = sections.documents[section]
            columns = [
                window.documents[document],
                plan.starts[here].astype(np.int32) + sections.starts[section],
                plan.lengths[here],
                # Only sections that are packed whole have repeated tokens: a strategy that cuts gets none with any.
                sections.repeats_of(section),
                (np.searchsorted(window.segment_starts, document, side="right") - 1).astype(np.int32),
                window.begins[document],
                window.run_begins[document],
                window.run_counts[document],
            ]
            yield pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=PIECES)

    put_batches(store, f"{name}-pieces.arrow", PIECES, pieces())
    rows = pa.RecordBatch.from_arrays([numbers(plan.row_offsets)], names=["row_offset"])
    put_arrow(store, f"{name}-rows.arrow", rows)


def put_arrow(store: Store, name: str, batch: pa.RecordBatch) -> None:
    """Put one record batch as an Arrow file that can be mapped."""
    put_batches(store, name, batch.schema, iter([batch]))


def put_batches(store: Store, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Put record batches as an Arrow file that can be mapped, one of them in memory at a time."""
    with store.draft(name.rpartition("/")[0]) as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        store.put(draft, name, mend=True)


def read_rows(path: Path, first: int, last: int) -> list[NDArray[Any]]:
    """Rows first .. last - 1 of such a file, column by column; of numbers alone, none of them null."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all().slice(first, last - first)
    columns = []
    for column in table.columns:
        chunks = [view(chunk) for chunk in column.chunks]
        columns.append(chunks[0] if len(chunks) == 1 else np.concatenate(chunks))
    return columns


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
