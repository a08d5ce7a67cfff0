"""Plans the rows of the table's documents: windows, pieces, rows, their order, and which rows are in which shard.

A window is what is planned together. It holds whole blocks: parts, or files of a part that several small files share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.fingerprint import mix64
from ...schemas.layout import Certificate, LayoutPlan
from ...schemas.ragged import offsets_of, ranges, sums_of
from ...stages.pack.plan_rows import plan_rows
from ..store.open_store import Store
from .outcomes import mixes
from .planned_rows import RowForm
from .shard import ShardPlan
from .table import HELD_OUT, PIECE, SHARES, SPLIT, Pieces, Table
from .units import unit_begins

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

WINDOW_TOKENS = 4_000_000_000
"""Default tokens of a window. Most datasets fit into one window; its plan takes about 500 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """One planned window of a split."""

    name: str
    """Name of its layout below the output's folder: `{name}.pieces` has its pieces, row by row, each a `table.PIECE`;
    `{name}.rows` where those of each row begin, and the number of pieces, as int64."""
    certificate: Certificate
    shards: tuple[ShardPlan, ...]
    tokens: NDArray[np.int32]
    """(R,) tokens of each row, with padding."""
    squares: NDArray[np.int64]
    """(R,) what attention costs in each row: the sum of n² over its pieces of n tokens, with padding; of a piece that
    continues p others n² + 2·n·p, twice the pairs of tokens that see each other."""


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
        tokens = some.copies[rows].astype(np.int64) * (some.kept + some.overlap - some.shared)[rows]
        np.add.at(totals, _blocks_of(table, rows + here.start), tokens)
    return compose(totals, table.block_sources, config.pack.window_tokens or WINDOW_TOKENS, config.seed)


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
    seed = window_seed(config.seed, number)
    certificate, row_offsets, pieces = plan_pieces(table, split, blocks, config, seed, pairs=form.pairs is not None)
    name = f"_run/layout/{split}-{number:05d}"
    for kind, numbers in (("pieces", pieces), ("rows", row_offsets)):
        with out.draft() as draft:
            draft.file.write(numbers.data)
            out.put(draft, f"{name}.{kind}")
    padded = form.alignment.padded(pieces["length"], row_offsets).astype(np.int64)
    continued = np.where(pieces["parent"] > 0, pieces["start"] - table.documents.low[pieces["document"]], 0)
    tokens = sums_of(padded, row_offsets)
    squares = sums_of(padded * (padded + 2 * continued.astype(np.int64)), row_offsets)
    shards = cut_shards(tokens, row_offsets, first_shard, form.token_bytes, config.output.shard_bytes)
    return WindowPlan(name, certificate, shards, tokens.astype(np.int32), squares)


def plan_pieces(
    table: Table, split: str, blocks: NDArray[np.int64], config: "RunConfig", seed: int, *, pairs: bool = False
) -> tuple[Certificate, NDArray[np.int64], Pieces]:
    """Plan the rows of some blocks. Return the certificate, (R + 1,) where the pieces of each row begin, and the
    pieces, row by row.

    Args:
        seed: of the order of rows, if they are shuffled.
        pairs: whether these are preference pairs, one in a row, however long.
    """
    pieces, pack = _pieces_of(table, split, blocks), config.pack
    lengths = np.ascontiguousarray(pieces["length"])
    if pack.share == "row":
        return _plan_units(pieces, config, seed)
    if pairs:
        plan = plan_rows(lengths, max(2, int(lengths.max(initial=0))), "none")
    else:
        same = (pieces["document"] << 32) + pieces["start"] if mixes(config) else None
        align, most, row = pack.alignment.document, pack.max_docs, config.row_length
        limit = config.longest_piece
        plan = plan_rows(lengths, limit, pack.strategy, row_length=row, max_docs=most, align=align, same=same)
    if pack.shuffle:
        plan = permute_rows(plan, seed)
    pieces = np.take(pieces, plan.order)  # three times as fast as an index, for records
    pieces["start"] += plan.starts.astype(np.int32)  # a strategy that cuts repeats nothing
    pieces["length"] = plan.lengths
    return plan.certificate, plan.row_offsets, pieces


def _plan_units(pieces: Pieces, config: "RunConfig", seed: int) -> tuple[Certificate, NDArray[np.int64], Pieces]:
    """As `plan_pieces`, of pieces that share tokens: each unit stands in one row, and its pieces in their order."""
    pack, row_length = config.pack, config.row_length
    align = pack.alignment.document
    begins = unit_begins(pieces)
    counts = np.diff(np.append(begins, len(pieces)))
    padded = -(-pieces["length"].astype(np.int64) // align) * align
    sizes = sums_of(padded, np.append(begins, len(pieces)))
    same = ((pieces["document"] << 32) + pieces["start"])[begins] if mixes(config) else None
    plan = plan_rows(sizes, row_length, pack.strategy, row_length=row_length, align=align, same=same)
    if pack.shuffle:
        plan = permute_rows(plan, seed)
    row_offsets = offsets_of(sums_of(counts[plan.order], plan.row_offsets))
    tokens = int(pieces["length"].sum(dtype=np.int64))
    certificate = replace(plan.certificate, tokens=tokens, pieces=len(pieces))
    return certificate, row_offsets, np.take(pieces, ranges(begins[plan.order], counts[plan.order]))


def _pieces_of(table: Table, split: str, blocks: NDArray[np.int64]) -> Pieces:
    """The pieces to plan of some blocks, each as often as its document is packed."""
    among = np.zeros(len(table.block_starts) - 1, np.bool_)
    among[blocks] = True
    found = [np.zeros(0, PIECE)]
    shares = np.zeros(len(table.documents) if len(table.units) else 0, np.bool_)
    for here, rows in _packed_in(table, split):
        mine = rows if among.all() else rows[among[_blocks_of(table, rows + here.start)]]
        mine = mine + here.start
        if len(shares):
            in_units = (table.documents.flags[mine] & SHARES) > 0
            shares[mine[in_units]] = True
            mine = mine[~in_units]
        found.append(_whole_or_cut(table, mine))
    if len(shares):
        found.append(table.units[shares[table.units["document"]]])
    out = np.concatenate(found)
    found.clear()
    begins = unit_begins(out)
    often = table.documents.copies[out["document"][begins]].astype(np.int64)
    if not (often > 1).any():
        return out
    index = np.repeat(np.arange(len(often)), often)
    # The first of r copies stands in the first r-th of the order, the second in the second, and so on. Equal repeats of
    # all documents give one pass after another.
    place = (ranges(0, often) + index / len(often)) / often[index]
    chosen = index[np.argsort(place, kind="stable")]
    sizes = np.diff(np.append(begins, len(out)))
    return np.take(out, ranges(begins[chosen], sizes[chosen]))


def _whole_or_cut(table: Table, rows: NDArray[np.int64]) -> Pieces:
    """The pieces of some documents, ascending, each once."""
    documents = table.documents
    cut = (documents.flags[rows] & SPLIT) > 0
    whole = rows[~cut]
    out = np.zeros(len(whole), PIECE)
    out["document"], out["start"] = whole, documents.low[whole]
    out["length"] = documents.high[whole] - documents.low[whole]
    if len(whole) == len(rows):
        return out
    owners = table.pieces["document"]
    begins, ends = (np.searchsorted(owners, rows[cut], side=side) for side in ("left", "right"))
    both = np.concatenate([out, table.pieces[ranges(begins, ends - begins)]])
    return np.take(both, np.argsort(both["document"], kind="stable"))


def _packed_in(table: Table, split: str) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield (documents, places in them of those that a split packs, ascending)."""
    for _, here in table.slices():
        some = table.documents.at(here)
        yield here, np.flatnonzero((some.copies > 0) & (some.has(HELD_OUT) == (split == "holdout")))


def _blocks_of(table: Table, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) the block of each document."""
    return np.searchsorted(table.block_starts, documents, side="right") - 1


def permute_rows(plan: LayoutPlan, seed: int) -> LayoutPlan:
    """Return the same rows in another order, chosen by the seed.

    Rows are sorted by a hash of their index and the seed, so the order does not depend on the machine or on a library's
    random generator.
    """
    order = np.argsort(mix64(np.arange(plan.rows, dtype=np.uint64), seed), kind="stable")
    sizes = np.diff(plan.row_offsets)[order]
    take = ranges(plan.row_offsets[:-1][order], sizes)
    return LayoutPlan(plan.order[take], plan.starts[take], plan.lengths[take], offsets_of(sizes), plan.certificate)


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
