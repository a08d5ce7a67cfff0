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
from .outcomes import has_copies
from .pairs import sides_of
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


def windows(table: Table, split: str, config: "RunConfig", form: RowForm) -> list[NDArray[np.int64]]:
    """The blocks of each window of a split; see `compose`. Preference pairs that are not packed are ordered all
    together.
    """
    totals = np.zeros(len(table.block_starts) - 1, np.int64)
    if not form.is_packed:
        return [np.arange(len(totals))]
    documents = table.documents
    for doc_ids in _packed_in(table, split):
        stored = documents.kept[doc_ids] + documents.overlap[doc_ids] - documents.shared[doc_ids]
        np.add.at(totals, _blocks_of(table, doc_ids), documents.copies[doc_ids].astype(np.int64) * stored)
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
    source_of_block = np.array(sources)
    keys = mix64(np.arange(len(totals), dtype=np.uint64), seed)
    # The relative position of a block in its source; sorting by it interleaves sources of any sizes evenly. Sources of
    # 2 and 4 blocks have .25 .75 and .125 .375 .625 .875: each block of the first stands between two of the second.
    position = np.zeros(len(totals))
    for source in np.unique(source_of_block):
        blocks = np.flatnonzero(source_of_block == source)
        blocks = blocks[np.argsort(keys[blocks], kind="stable")]
        position[blocks] = (np.arange(len(blocks)) + 0.5) / len(blocks)
    windows_of_blocks: list[NDArray[np.int64]] = []
    window: list[int] = []
    size = 0
    for block in np.lexsort((source_of_block, position)).tolist():
        if window and size + int(totals[block]) > limit:
            windows_of_blocks.append(np.sort(window).astype(np.int64))
            window = []
            size = 0
        window.append(block)
        size += int(totals[block])
    if window and size:
        windows_of_blocks.append(np.sort(window).astype(np.int64))
    return windows_of_blocks


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
    certificate, row_offsets, pieces = plan_pieces(table, split, blocks, config, seed, form)
    name = f"_run/layout/{split}-{number:05d}"
    for kind, numbers in (("pieces", pieces), ("rows", row_offsets)):
        with out.draft() as draft:
            draft.file.write(numbers.data)
            out.put(draft, f"{name}.{kind}")
    padded = form.alignment.padded(pieces["length"], row_offsets).astype(np.int64)
    # What a piece continues: the tokens of its document, from the first one kept (`low`) to its own first one.
    first_kept = table.documents.low[pieces["document"]]
    tokens_before = np.where(pieces["parent"] > 0, pieces["start"] - first_kept, 0).astype(np.int64)
    tokens = sums_of(padded, row_offsets)
    # Causal attention computes half of a square of n tokens, and n times as many as come before: twice that is stored.
    squares = sums_of(padded * (padded + 2 * tokens_before), row_offsets)
    shards = cut_shards(tokens, row_offsets, first_shard, form.token_bytes, config.output.shard_bytes)
    return WindowPlan(name, certificate, shards, tokens.astype(np.int32), squares)


def plan_pieces(
    table: Table, split: str, blocks: NDArray[np.int64], config: "RunConfig", seed: int, form: RowForm
) -> tuple[Certificate, NDArray[np.int64], Pieces]:
    """Plan the rows of some blocks. Return the certificate, (R + 1,) where the pieces of each row begin, and the
    pieces, row by row.

    Args:
        seed: of the order of rows, if they are shuffled.
    """
    pack = config.pack
    pairs = form.pairs is not None and form.is_packed
    pieces = _pieces_of(table, split, blocks, pairs=pairs)
    if form.branches or pairs:
        return _plan_units(pieces, unit_begins(pieces, pairs=pairs), config, seed, pairs=pairs)
    lengths = np.ascontiguousarray(pieces["length"])
    if not form.is_packed:  # each in a row of its own, however long
        plan = plan_rows(lengths, max(2, int(lengths.max(initial=0))), "none")
    else:
        # Copies of a piece have one number, by which rows keep them apart.
        same = (pieces["document"] << 32) + pieces["start"] if has_copies(config) else None
        plan = plan_rows(
            lengths,
            config.longest_piece,
            pack.strategy,
            row_length=config.row_length,
            max_docs=pack.max_docs,
            align=pack.alignment.document,
            same=same,
        )
    if pack.shuffle:
        plan = permute_rows(plan, seed)
    pieces = np.take(pieces, plan.order)  # three times as fast as an index, for records
    pieces["start"] += plan.starts.astype(np.int32)  # a strategy that cuts repeats nothing
    pieces["length"] = plan.lengths
    return plan.certificate, plan.row_offsets, pieces


def _plan_units(
    pieces: Pieces, begins: NDArray[np.int64], config: "RunConfig", seed: int, *, pairs: bool
) -> tuple[Certificate, NDArray[np.int64], Pieces]:
    """As `plan_pieces`, of units: each stands in one row, and its pieces in their order.

    Args:
        begins: (U,) the first piece of each unit.
        pairs: whether each unit is a preference pair, and so has two pieces.
    """
    pack = config.pack
    row_length = config.row_length
    align = pack.alignment.document
    counts = np.diff(np.append(begins, len(pieces)))
    padded = -(-pieces["length"].astype(np.int64) // align) * align
    sizes = sums_of(padded, np.append(begins, len(pieces)))
    assert sizes.max(initial=0) <= row_length, "a plan would cut longer units without a word"
    same = ((pieces["document"] << 32) + pieces["start"])[begins] if has_copies(config) else None
    # Only units of two pieces say how many of them a row may have; `pack.share` does not go with `pack.max_docs`.
    max_units = pack.max_docs // 2 if pairs and pack.max_docs is not None else None
    plan = plan_rows(
        sizes, row_length, pack.strategy, row_length=row_length, max_docs=max_units, align=align, same=same
    )
    if pack.shuffle:
        plan = permute_rows(plan, seed)
    row_offsets = offsets_of(sums_of(counts[plan.order], plan.row_offsets))
    tokens = int(pieces["length"].sum(dtype=np.int64))
    certificate = replace(plan.certificate, tokens=tokens, pieces=len(pieces))
    return certificate, row_offsets, np.take(pieces, ranges(begins[plan.order], counts[plan.order]))


def _pieces_of(table: Table, split: str, blocks: NDArray[np.int64], *, pairs: bool) -> Pieces:
    """The pieces to plan of some blocks, each as often as its document is packed.

    Args:
        pairs: whether these are preference pairs to pack, of which each gives two pieces.
    """
    in_window = np.zeros(len(table.block_starts) - 1, np.bool_)
    in_window[blocks] = True
    pieces_of_slices = [np.zeros(0, PIECE)]
    shares = np.zeros(len(table.documents) if len(table.units) else 0, np.bool_)
    for doc_ids in _packed_in(table, split):
        if not in_window.all():
            doc_ids = doc_ids[in_window[_blocks_of(table, doc_ids)]]
        if len(shares):
            in_units = (table.documents.flags[doc_ids] & SHARES) > 0
            shares[doc_ids[in_units]] = True
            doc_ids = doc_ids[~in_units]
        if pairs:
            pieces_of_slices.append(sides_of(table.documents.at(doc_ids), doc_ids))
        else:
            pieces_of_slices.append(_whole_or_cut(table, doc_ids))
    if len(shares):
        # A unit is of the window of its first document, wherever the others are.
        begins_of_units = unit_begins(table.units)
        is_in_window = shares[table.units["document"][begins_of_units]]
        sizes_of_units = np.diff(np.append(begins_of_units, len(table.units)))
        pieces_of_slices.append(table.units[np.repeat(is_in_window, sizes_of_units)])
    pieces = np.concatenate(pieces_of_slices)
    pieces_of_slices.clear()  # which would double the memory of what follows
    begins = unit_begins(pieces, pairs=pairs)
    copies = table.documents.copies[pieces["document"][begins]].astype(np.int64)
    if not (copies > 1).any():
        return pieces
    unit_of_copy = np.repeat(np.arange(len(copies)), copies)
    # The first of r copies stands in the first r-th of the order, the second in the second, and so on. Equal repeats of
    # all documents give one pass after another: of units 0 and 1 twice, the places are 0 .25 .5 .75, so 0 1 0 1.
    place = (ranges(0, copies) + unit_of_copy / len(copies)) / copies[unit_of_copy]
    units = unit_of_copy[np.argsort(place, kind="stable")]
    sizes = np.diff(np.append(begins, len(pieces)))
    return np.take(pieces, ranges(begins[units], sizes[units]))


def _whole_or_cut(table: Table, doc_ids: NDArray[np.int64]) -> Pieces:
    """The pieces of some documents, ascending, each once."""
    documents = table.documents
    is_cut = (documents.flags[doc_ids] & SPLIT) > 0
    uncut = doc_ids[~is_cut]
    pieces = np.zeros(len(uncut), PIECE)
    pieces["document"] = uncut
    pieces["start"] = documents.low[uncut]
    pieces["length"] = documents.high[uncut] - documents.low[uncut]
    if len(uncut) == len(doc_ids):
        return pieces
    document_of_piece = table.pieces["document"]
    begins = np.searchsorted(document_of_piece, doc_ids[is_cut], side="left")
    ends = np.searchsorted(document_of_piece, doc_ids[is_cut], side="right")
    pieces = np.concatenate([pieces, table.pieces[ranges(begins, ends - begins)]])
    return np.take(pieces, np.argsort(pieces["document"], kind="stable"))


def _packed_in(table: Table, split: str) -> Iterator[NDArray[np.int64]]:
    """Yield the doc ids of those that a split packs, ascending; those of one slice of the table at a time."""
    for _, rows in table.slices():
        documents = table.documents.at(rows)
        is_packed = (documents.copies > 0) & (documents.has(HELD_OUT) == (split == "holdout"))
        yield np.flatnonzero(is_packed) + rows.start


def _blocks_of(table: Table, doc_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) the block of each document."""
    return np.searchsorted(table.block_starts, doc_ids, side="right") - 1


def permute_rows(plan: LayoutPlan, seed: int) -> LayoutPlan:
    """Return the same rows in another order, chosen by the seed.

    Rows are sorted by a hash of their index and the seed, so the order does not depend on the machine or on a library's
    random generator.
    """
    order = np.argsort(mix64(np.arange(plan.rows, dtype=np.uint64), seed), kind="stable")
    sizes = np.diff(plan.row_offsets)[order]
    pieces = ranges(plan.row_offsets[:-1][order], sizes)
    return LayoutPlan(
        plan.order[pieces], plan.starts[pieces], plan.lengths[pieces], offsets_of(sizes), plan.certificate
    )


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
    # Each shard ends with the row in which its share of the tokens ends. Rows of 4, 4 and 4 tokens in two shards: 6
    # tokens end in the second row, so the shards have two rows and one.
    last_rows = np.searchsorted(ends, np.arange(1, count + 1) * total // count, side="left") + 1
    rows = np.unique(np.concatenate([[0], np.minimum(last_rows, len(ends))]))
    row_bounds = rows.tolist()
    piece_bounds = row_offsets[rows].tolist()
    return tuple(
        ShardPlan(first_index + number, *row_bounds[number : number + 2], *piece_bounds[number : number + 2])
        for number in range(len(row_bounds) - 1)
    )
