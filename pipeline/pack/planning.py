"""Plans layout files: which pieces go into which rows, and which rows into which shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.fingerprint import hash_bytes
from ...schemas.layout import Certificate, LayoutPlan
from ...schemas.ragged import offsets_of, ranges
from ...stages.arrays import numbers, view
from ...stages.mask.policy import Mask
from ...stages.pack.best_fit import rows_needed
from ...stages.pack.bounds import size_counts
from ...stages.pack.divisors import divisors, units_of
from ...stages.pack.plan import plan_rows
from ...stages.pack.row_count import tight_row_count
from ...stages.pack.tight import WORK
from ...stages.select.sections import Sections
from ..encode.parts import PartList
from ..store.open import Store, StoredFile
from .split import labels_cut
from .windows import Window, mix64, window_seed

if TYPE_CHECKING:  # workers import this to read layouts, and should not import pydantic
    from ...schemas.config.config import RunConfig

PIECES_AT_ONCE = 1 << 20
"""Pieces of a layout to write at once."""
TOKEN_BYTES, WEIGHT_BYTES = 12, 4
"""input_ids, labels and position_ids, four bytes each; and loss_weights."""

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
"""Columns of a planned piece: its document, its tokens, how many of its first tokens an earlier piece already has, and
where the document lies in its segment. In datasets with loss weights, also `scale`, which multiplies the weights.
"""
_SCALED = PIECES.append(pa.field("scale", pa.float64(), nullable=False))


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to lay out: rows `first_row:last_row` of one window's layout file."""

    index: int
    """Number of the shard within its split."""
    first_row: int
    last_row: int
    first_piece: int
    last_piece: int


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One planned window of a split."""

    name: str
    """Name of its layout files below the run's folder: `{name}-pieces.arrow` and `{name}-rows.arrow`."""
    certificate: Certificate | None
    """Proof that no plan needs many fewer rows; None for preference pairs."""
    shards: tuple[ShardPlan, ...]
    cuts: tuple[int, ...] = ()
    """For each source, the number of cuts through trained turns that the strategy made."""
    rows_unpadded: int = 0
    """Rows that the same pieces would need without padding; 0 for preference pairs."""
    files: tuple[StoredFile, ...] = ()
    """The layout files and the list of parts."""

    @property
    def parts(self) -> str:
        """Name of the file that lists the window's parts."""
        return f"{self.name}-parts.json"


def layout_name(split: str, number: int) -> str:
    """The name of a window's layout; see `WindowPlan.name`."""
    return f"_run/layout/{split}-{number:05d}"


def pairs_layout(split: str) -> str:
    """The name of the layout of a split of preference pairs."""
    return f"_run/layout/{split}"


def layout_files(name: str, *, pairs: bool) -> list[str]:
    """The names of a layout's files."""
    return (
        [f"{name}-pairs.arrow"] if pairs else [f"{name}-{end}" for end in ("parts.json", "pieces.arrow", "rows.arrow")]
    )


def plan_window(
    store: Store,
    split: str,
    number: int,
    first_shard: int,
    config: "RunConfig",
    window: Window,
    weighted: bool = False,
) -> tuple[WindowPlan, LayoutPlan]:
    """Plan a window of a split, and put its layout and the list of its parts for the shard tasks.

    Args:
        number: number of the window within the split.
        first_shard: number of shards of the earlier windows.
        weighted: whether the rows have `loss_weights`.
    """
    pack, plan = config.pack, arrange(window.sections, config, window_seed(config.seed, number))
    name = layout_name(split, number)
    files = _save(store, name, plan, window, piece_scales(plan, window, config) if weighted else None)
    padded = pack.alignment.padded(plan.lengths, plan.row_offsets)
    ends = np.cumsum(padded, dtype=np.int64)[plan.row_offsets[1:] - 1]
    shards = cut_shards(ends, plan.row_offsets, first_shard, TOKEN_BYTES + WEIGHT_BYTES * weighted, config)
    unpadded = rows_unpadded(plan, config)
    return WindowPlan(name, plan.certificate, shards, rows_unpadded=unpadded, files=files), plan


def rows_unpadded(plan: LayoutPlan, config: "RunConfig") -> int:
    """Count the rows that the pieces of a plan would need without padding, by the same strategy."""
    pack = config.pack
    if pack.alignment.document == 1 or pack.strategy not in ("bfd", "tight", "bfd_split"):
        return len(plan.row_offsets) - 1
    counts = size_counts(plan.lengths, config.truncate.max_length)
    if pack.strategy == "tight":
        return tight_row_count(plan.lengths, counts, pack.max_docs, WORK)
    return rows_needed(counts, pack.max_docs)


def arrange(sections: Sections, config: "RunConfig", seed: int) -> LayoutPlan:
    """Plan which piece goes into which row.

    Args:
        seed: seed of the order of rows, if they are shuffled.
    """
    pack = config.pack
    align = pack.alignment.document
    plan = plan_rows(sections.lengths, config.truncate.max_length, pack.strategy, max_docs=pack.max_docs, align=align)
    return permute_rows(plan, seed) if pack.shuffle else plan


def inner_cuts(plan: LayoutPlan, sections: Sections) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return, for each cut that the strategy made, (cuts,) the document and (cuts,) the token before which it cuts.

    Args:
        sections: the planned sections.
    """
    inner = np.flatnonzero(plan.starts)
    which = plan.order[inner]
    return sections.documents[which], plan.starts[inner].astype(np.int32) + sections.starts[which]


def permute_rows(plan: LayoutPlan, seed: int) -> LayoutPlan:
    """Return the same rows in another order, chosen by the seed.

    Rows are sorted by a hash of their index and the seed, so the order does not depend on the machine or on a library's
    random generator. The mixer is SplitMix64's finaliser (Steele, Lea, Flood, 2014).
    """
    rows = plan.rows
    keys = mix64(np.arange(rows, dtype=np.uint64), seed)
    order = np.argsort(keys, kind="stable")
    sizes = np.diff(plan.row_offsets)[order]
    take = ranges(plan.row_offsets[:-1][order], sizes)
    return LayoutPlan(plan.order[take], plan.starts[take], plan.lengths[take], offsets_of(sizes), plan.certificate)


def piece_scales(plan: LayoutPlan, window: Window, config: "RunConfig") -> NDArray[np.float64]:
    """(D,) what the loss weights of each planned piece are multiplied by: `loss_weight` of its source, divided by the
    trained labels of its document or conversation if `loss.normalize` asks for it.
    """
    document = window.sections.documents[plan.order]
    sources = np.array([place.source for place in window.parts], dtype=np.int64)
    part = np.searchsorted(window.part_starts, document, side="right") - 1
    scales = np.array([source.loss_weight or 1.0 for source in config.sources])[sources[part]]
    if window.labels is None or window.copies is None:
        return scales
    count = len(window.documents)
    lost = np.zeros(count, dtype=np.int64)
    cut, places = inner_cuts(plan, window.sections)
    if len(cut):
        order = np.argsort(cut, kind="stable")
        np.add.at(lost, cut[order], labels_cut(window, cut[order], places[order], Mask.of(config.mask)))
    units = np.arange(count, dtype=np.int64)
    if window.conversations is not None:
        units = units_of(window.conversations, window.part_starts)
    out: NDArray[np.float64] = scales / divisors(units, window.labels, window.copies, lost)[document]
    return out


def columns_of(
    plan: LayoutPlan, window: Window, here: slice, scales: NDArray[np.float64] | None = None
) -> list[NDArray[Any]]:
    """Return the columns of `PIECES` for some pieces of a plan.

    Args:
        scales: see `piece_scales`; a further column, if it is not None.
    """
    sections = window.sections
    section = plan.order[here]
    document = sections.documents[section]
    return [
        window.documents[document],
        plan.starts[here].astype(np.int32) + sections.starts[section],
        plan.lengths[here],
        # Only sections that are packed whole have repeated tokens; strategies that cut get sections without them.
        sections.repeats_of(section),
        (np.searchsorted(window.segment_starts, document, side="right") - 1).astype(np.int32),
        window.begins[document],
        window.run_begins[document],
        window.run_counts[document],
        *([] if scales is None else [scales[here]]),
    ]


def _save(
    store: Store, name: str, plan: LayoutPlan, window: Window, scales: NDArray[np.float64] | None
) -> tuple[StoredFile, ...]:
    schema = PIECES if scales is None else _SCALED
    listed = PartList(
        window.parts[0].cache.url if window.parts else "",
        [place.part for place in window.parts],
        [place.source for place in window.parts],
    )
    data = msgspec.json.encode(listed)
    store.replace_bytes(f"{name}-parts.json", data)

    def pieces() -> Iterator[pa.RecordBatch]:
        for first in range(0, max(1, len(plan.order)), PIECES_AT_ONCE):
            columns = columns_of(plan, window, slice(first, first + PIECES_AT_ONCE), scales)
            yield pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=schema)

    rows = pa.RecordBatch.from_arrays([numbers(plan.row_offsets)], names=["row_offset"])
    return (
        StoredFile(f"{name}-parts.json", len(data), hash_bytes(data)),
        put_batches(store, f"{name}-pieces.arrow", schema, pieces()),
        put_arrow(store, f"{name}-rows.arrow", rows),
    )


def put_arrow(store: Store, name: str, batch: pa.RecordBatch) -> StoredFile:
    """Put one record batch as a mappable Arrow file."""
    return put_batches(store, name, batch.schema, iter([batch]))


def put_batches(store: Store, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> StoredFile:
    """Put record batches as a mappable Arrow file, holding one batch in memory at a time."""
    with store.draft(name.rpartition("/")[0]) as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        put = draft.result
        store.put(draft, name, replace_damaged=True)
    return StoredFile(name, put.bytes, put.hash)


def read_rows(path: Path, first: int, last: int) -> list[NDArray[Any]]:
    """Read rows first..last - 1 of a mappable Arrow file, by column; columns must be numbers without nulls."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all().slice(first, last - first)
    columns = []
    for column in table.columns:
        chunks = [view(chunk) for chunk in column.chunks]
        columns.append(chunks[0] if len(chunks) == 1 else np.concatenate(chunks))
    return columns


def read_lengths(out: Store, name: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return `lengths` and `row_offsets` of a window's `LayoutPlan`, from its layout files."""
    columns = []
    for file, column in (("pieces", "length"), ("rows", "row_offset")):
        with pa.memory_map(str(out.local(f"{name}-{file}.arrow"))) as source:
            chunks = pa.ipc.open_file(source).read_all().column(column).chunks
        columns.append(np.concatenate([view(chunk) for chunk in chunks]))
    return columns[0], columns[1]


def cut_shards(
    ends: NDArray[np.int64],
    row_offsets: NDArray[np.int64],
    first_index: int,
    token_bytes: int,
    config: "RunConfig",
) -> tuple[ShardPlan, ...]:
    """Cut the rows into shards of about equal size, each at most about `output.shard_bytes`; at least one shard.

    Args:
        ends: (R,) running sum of the rows' tokens.
        row_offsets: (R + 1,) first piece of each row, then the number of pieces.
    """
    if not len(ends):
        return (ShardPlan(first_index, 0, 0, 0, 0),)
    cuts = cut_rows(ends, token_bytes, config.output.shard_bytes)
    pieces = row_offsets[cuts].tolist()
    rows = cuts.tolist()
    return tuple(
        ShardPlan(first_index + i, rows[i], rows[i + 1], pieces[i], pieces[i + 1]) for i in range(len(rows) - 1)
    )


def cut_rows(ends: NDArray[np.int64], token_bytes: int, shard_bytes: int) -> NDArray[np.int64]:
    """Return (shards + 1,) where shards of about equal size begin and end, each at most about `shard_bytes`.

    Args:
        ends: (R,) running sum of the rows' tokens; at least one row.
    """
    total = int(ends[-1])
    count = max(1, -(-total * token_bytes // shard_bytes))
    targets = np.arange(1, count + 1, dtype=np.int64) * total // count
    cuts = np.searchsorted(ends, targets, side="left") + 1
    return np.unique(np.concatenate([[0], np.minimum(cuts, len(ends))]))
