"""Plans the rows of the table's documents: windows, pieces, rows, their order, and which rows are in which shard.

A window is what is planned together. It holds whole blocks: parts, or files of a part that several small files share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.fingerprint import GOLDEN, mix
from ...schemas.layout import Certificate, LayoutPlan
from ...schemas.ragged import offsets_of, ranges, sums_of
from ...stages.arrays import numbers
from ...stages.pack.plan_rows import plan_rows
from ..store.open_store import Store
from .arrow_files import put_arrow
from .copies import mixes
from .row_form import RowForm
from .table import HELD_OUT, SPLIT, Documents, Table

if TYPE_CHECKING:  # workers import this to read layouts, and should not import pydantic
    from ...schemas.config.config import RunConfig

WINDOW_TOKENS = 4_000_000_000
"""Default tokens of a window. Most datasets fit into one window; its plan takes about 500 MB."""
PIECES_AT_ONCE = 1 << 20
"""Pieces of a layout to write at once."""
LAYOUT = pa.schema([("doc_id", pa.int64()), ("start", pa.int32()), ("length", pa.int32()), ("repeated", pa.int32())])
"""Columns of a planned piece: its document, its tokens, and how many of the first ones an earlier piece has."""
ROWS = pa.schema([("row_offset", pa.int64())])
"""Where the pieces of each row begin, and the number of pieces."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to lay out: rows `first_row:last_row` of one window's layout file."""

    index: int
    """Number of the shard within its split."""
    first_row: int
    last_row: int
    first_piece: int
    last_piece: int


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """One planned window of a split."""

    name: str
    """Name of its layout files below the output's folder: `{name}-pieces.arrow` and `{name}-rows.arrow`."""
    certificate: Certificate
    shards: tuple[ShardPlan, ...]
    tokens: NDArray[np.int32]
    """(R,) tokens of each row, with padding."""
    squares: NDArray[np.int64]
    """(R,) the sum of the squared lengths of each row's pieces, with padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """M pieces of documents to plan."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    repeated: NDArray[np.int32]
    """(M,) how many of the first tokens an earlier piece of the document has; they are not trained again."""

    @classmethod
    def joined(cls, some: "Sequence[Pieces]") -> "Pieces":
        """All of some."""
        return cls(*(np.concatenate([getattr(one, column.name) for one in some]) for column in fields(cls)))

    def at(self, index: "slice | NDArray[np.int64]") -> "Pieces":
        """Some of them."""
        return Pieces(self.documents[index], self.starts[index], self.lengths[index], self.repeated[index])


def windows(table: Table, split: str, config: "RunConfig", *, pairs: bool = False) -> list[NDArray[np.int64]]:
    """The blocks of each window of a split; see `compose`.

    Args:
        pairs: whether these are preference pairs, which are ordered all together.
    """
    totals = np.zeros(len(table.block_starts) - 1, np.int64)
    if pairs:
        return [np.arange(len(totals))]
    for here, rows in _packed_in(table, split):
        some = table.documents.at(here)
        tokens = some.copies[rows].astype(np.int64) * (some.kept[rows] + some.overlap[rows])
        np.add.at(totals, _blocks_of(table, rows + here.start), tokens)
    return compose(totals, table.block_sources, config.pack.window_tokens or WINDOW_TOKENS, config.seed)


def _packed_in(table: Table, split: str) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield (documents, places in them of those that a split packs, ascending)."""
    for _, here in table.slices():
        some = table.documents.at(here)
        yield here, np.flatnonzero((some.copies > 0) & (some.has(HELD_OUT) == (split == "holdout")))


def _blocks_of(table: Table, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) the block of each document."""
    return np.searchsorted(table.block_starts, documents, side="right") - 1


def compose(totals: NDArray[np.int64], sources: Sequence[int], limit: int, seed: int) -> list[NDArray[np.int64]]:
    """Group the blocks of one split into windows: the blocks of each window, ascending.

    With several windows, blocks are assigned in an order chosen by the seed, interleaving the sources, so that every
    window has blocks of every source.

    Args:
        totals: (blocks,) packed tokens of each block.
        sources: (blocks,) source of each block.
        limit: maximum tokens of a window; a block with more tokens becomes a separate window.
    """
    if int(totals.sum()) <= limit:
        return [np.arange(len(totals))]  # one window even without blocks, because an empty split still has one shard
    owners = np.array(sources)
    keys = mix64(np.arange(len(totals), dtype=np.uint64), seed)
    # The relative position of a block in its source; sorting by it interleaves sources of any sizes evenly.
    share = np.zeros(len(totals))
    for source in np.unique(owners):
        mine = np.flatnonzero(owners == source)
        mine = mine[np.argsort(keys[mine], kind="stable")]
        share[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    found: list[NDArray[np.int64]] = []
    window: list[int] = []
    size = 0
    for block in np.lexsort((owners, share)).tolist():
        if window and size + int(totals[block]) > limit:
            found.append(np.sort(window).astype(np.int64))
            window, size = [], 0
        window.append(block)
        size += int(totals[block])
    if window and size:
        found.append(np.sort(window).astype(np.int64))
    return found


def pieces_of(table: Table, split: str, blocks: NDArray[np.int64]) -> Pieces:
    """The pieces to plan of some blocks, each as often as its document is packed."""
    among = np.zeros(len(table.block_starts) - 1, np.bool_)
    among[blocks] = True
    none = np.zeros(0, np.int32)
    found = [Pieces(np.zeros(0, np.int64), none, none, none)]
    for here, rows in _packed_in(table, split):
        mine = rows if among.all() else rows[among[_blocks_of(table, rows + here.start)]]
        found.append(_pieces(table.documents.at(here), mine, here.start, table.pieces))
    out = Pieces.joined(found)
    found.clear()
    often = table.documents.copies[out.documents].astype(np.int64)
    if not (often > 1).any():
        return out
    index = np.repeat(np.arange(len(often)), often)
    # The first of r copies stands in the first r-th of the order, the second in the second, and so on. Equal repeats of
    # all documents give one pass after another.
    place = (ranges(0, often) + index / len(often)) / often[index]
    return out.at(index[np.argsort(place, kind="stable")])


def _pieces(some: Documents, rows: NDArray[np.int64], first: int, split_pieces: NDArray[Any]) -> Pieces:
    """The pieces of some documents of a slice, each once.

    Args:
        rows: their places in the slice, ascending.
        first: the slice's first document.
        split_pieces: of split documents, as in the table.
    """
    cut = some.has(SPLIT)[rows]
    whole = rows[~cut] if cut.any() else rows
    low = some.low[whole]
    out = Pieces(whole + first, low, some.high[whole] - low, np.zeros(len(whole), np.int32))
    if len(whole) == len(rows):
        return out
    owners, documents = split_pieces["document"], rows[cut] + first
    begins, ends = (np.searchsorted(owners, documents, side=side) for side in ("left", "right"))
    taken = split_pieces[ranges(begins, ends - begins)]
    both = Pieces.joined([out, Pieces(*(taken[name] for name in ("document", "start", "length", "repeated")))])
    return both.at(np.argsort(both.documents, kind="stable"))


def arrange(pieces: Pieces, config: "RunConfig", seed: int, *, pairs: bool = False) -> LayoutPlan:
    """Plan which piece goes into which row.

    Args:
        seed: of the order of rows, if they are shuffled.
        pairs: whether these are preference pairs, one in a row, however long.
    """
    pack, align, length = config.pack, config.pack.alignment.document, config.truncate.max_length
    if pairs:
        plan = plan_rows(pieces.lengths, max(2, int(pieces.lengths.max(initial=0))), "none")
    else:
        same = (pieces.documents << 32) + pieces.starts if mixes(config) else None
        plan = plan_rows(pieces.lengths, length, pack.strategy, max_docs=pack.max_docs, align=align, same=same)
    return permute_rows(plan, seed) if pack.shuffle else plan


def planned_pieces(plan: LayoutPlan, pieces: Pieces, here: slice = slice(None)) -> Pieces:
    """Some pieces of a plan, row by row. Only pieces that are packed whole have repeated tokens."""
    some = pieces.at(plan.order[here])
    starts = plan.starts[here].astype(np.int32) + some.starts
    return Pieces(some.documents, starts, plan.lengths[here], some.repeated)


def plan_window(
    table: Table,
    split: str,
    number: int,
    blocks: NDArray[np.int64],
    first_shard: int,
    config: "RunConfig",
    form: RowForm,
    out: Store,
) -> WindowPlan:
    """Plan a window of a split, and put its layout for the tasks of its shards.

    Args:
        number: of the window in its split.
        first_shard: number of shards of the earlier windows.
    """
    pieces = pieces_of(table, split, blocks)
    plan = arrange(pieces, config, window_seed(config.seed, number), pairs=form.pairs is not None)
    name = f"_run/layout/{split}-{number:05d}"

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, max(1, len(plan.order)), PIECES_AT_ONCE):
            some = planned_pieces(plan, pieces, slice(first, first + PIECES_AT_ONCE))
            columns = (some.documents, some.starts, some.lengths, some.repeated)
            yield pa.RecordBatch.from_arrays([numbers(column) for column in columns], schema=LAYOUT)

    put_arrow(out, f"{name}-pieces.arrow", LAYOUT, batches())
    rows = pa.RecordBatch.from_arrays([numbers(plan.row_offsets)], schema=ROWS)
    put_arrow(out, f"{name}-rows.arrow", ROWS, [rows])
    padded = form.alignment.padded(plan.lengths, plan.row_offsets).astype(np.int64)
    tokens, squares = (sums_of(each, plan.row_offsets) for each in (padded, padded * padded))
    shards = cut_shards(tokens, plan.row_offsets, first_shard, form.token_bytes, config.output.shard_bytes)
    return WindowPlan(name, plan.certificate, shards, tokens.astype(np.int32), squares)


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


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return SplitMix64 of each value under a seed: (N,) 64-bit numbers that look independent."""
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


def window_seed(seed: int, number: int) -> int:
    """Return the seed of one window's order. Seed and number are mixed, not added, because SplitMix64 seeds must not
    differ by its step.
    """
    return int(mix64(np.array([number], dtype=np.uint64), seed)[0])


def cut_shards(
    tokens: NDArray[np.int64], row_offsets: NDArray[np.int64], first_index: int, token_bytes: int, shard_bytes: int
) -> tuple[ShardPlan, ...]:
    """Cut the rows into shards of about equal size, each at most about `shard_bytes`; at least one shard.

    Args:
        tokens: (R,) of each row.
        row_offsets: (R + 1,) first piece of each row, then the number of pieces.
    """
    if not len(tokens):
        return (ShardPlan(first_index, 0, 0, 0, 0),)
    ends = np.cumsum(tokens)
    total = int(ends[-1])
    count = max(1, -(-total * token_bytes // shard_bytes))
    cuts = np.searchsorted(ends, np.arange(1, count + 1) * total // count, side="left") + 1
    rows = np.unique(np.concatenate([[0], np.minimum(cuts, len(ends))]))
    bounds, pieces = rows.tolist(), row_offsets[rows].tolist()
    return tuple(
        ShardPlan(first_index + number, *bounds[number : number + 2], *pieces[number : number + 2])
        for number in range(len(bounds) - 1)
    )
