"""Plans the rows of the table's documents: windows, pieces, rows, their order, and which rows are in which shard.

A window is what is planned together. It holds whole blocks: parts, or files of a part that several small files share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
from .units import take_units, unit_begins

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
    """(R,) what attention costs in each row: the sum of n² over its pieces of n tokens, with padding. A piece that
    continues p tokens of other pieces adds n² + 2·n·p. That is about twice the number of pairs of tokens that see each
    other."""


def windows(table: Table, split: str, config: "RunConfig", form: RowForm) -> list[NDArray[np.int64]]:
    """The blocks of each window of a split, ascending. Preference pairs that are not packed are one window: their plan
    needs no rows to be filled, only an order.
    """
    totals = np.zeros(len(table.block_starts) - 1, np.int64)
    if not form.is_packed:
        return [np.arange(len(totals))]
    documents = table.documents
    for doc_ids in _packed_in(table, split):
        # What rows hold of one copy: repeated tokens once more, shared ones only in another document's piece.
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
        seed: of the run.
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
    if window and size:  # blocks of which this split packs nothing make no window
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
        blocks: of the window.
        first_shard: number of shards of the earlier windows.
        out: where the layout is put.
    """
    seed = window_seed(config.seed, number)
    certificate, row_offsets, pieces = plan_pieces(table, split, blocks, config, seed, form)
    name = f"_run/layout/{split}-{number:05d}"
    for kind, numbers in (("pieces", pieces), ("rows", row_offsets)):
        with out.draft() as draft:
            draft.file.write(numbers.data)
            out.put(draft, f"{name}.{kind}")
    padded = form.alignment.padded(pieces["length"], row_offsets).astype(np.int64)
    # What a piece with a parent continues: the tokens of its document, from the first one kept (`low`) to its own first
    # one. All others have parent 0, also the later pieces of a cut document, whose tokens do not see the earlier ones.
    first_kept = table.documents.low[pieces["document"]]
    tokens_before = np.where(pieces["parent"] > 0, pieces["start"] - first_kept, 0).astype(np.int64)
    tokens = sums_of(padded, row_offsets)
    # Causal attention computes half of a square of n tokens, and n times as many as come before: twice that is stored.
    squares = sums_of(padded * (padded + 2 * tokens_before), row_offsets)
    shards = cut_shards(tokens, row_offsets, first_shard, form.token_bytes, config.output.shard_bytes)
    return WindowPlan(name, certificate, shards, tokens=tokens.astype(np.int32), squares=squares)


def plan_pieces(
    table: Table, split: str, blocks: NDArray[np.int64], config: "RunConfig", seed: int, form: RowForm
) -> tuple[Certificate, NDArray[np.int64], Pieces]:
    """Plan the rows of some blocks. Return the certificate, (R + 1,) where the pieces of each row begin, and the
    pieces, row by row.

    Args:
        seed: of the order of rows, if they are shuffled.
    """
    pack = config.pack
    align = form.alignment.document
    pairs = form.pairs is not None and form.is_packed
    has_units = form.branches or pairs  # else every piece is placed by itself
    pieces = _pieces_of(table, split, blocks, pairs=pairs)
    first_pieces = pieces  # of each unit; without units, each piece is one
    sizes = np.ascontiguousarray(pieces["length"])
    longest = config.longest_piece
    row_length = config.row_length
    max_docs = pack.max_docs
    if has_units:
        begins = unit_begins(pieces, pairs=pairs)
        first_pieces = pieces[begins]
        # Every piece of a unit is padded: of pieces of 5 and 3 tokens, aligned to 4, the unit takes 8 + 4 = 12.
        padded = -(-sizes.astype(np.int64) // align) * align
        sizes = sums_of(padded, np.append(begins, len(pieces)))
        longest = row_length
        # `share_prefixes` and the limits of pairs make no longer units; `plan_rows` would cut them without a word.
        assert sizes.max(initial=0) <= row_length, "a unit is longer than a row"
        if pairs and max_docs is not None:  # a unit of two pieces; with `pack.share`, there is no `max_docs`
            max_docs //= 2
    elif not form.is_packed:  # each preference pair in a row of its own, however long
        longest = max(2, int(sizes.max(initial=0)))  # `plan_rows` takes no length below 2
        row_length = longest
    same = None
    if has_copies(config):
        # Copies of a piece have one number, by which rows keep them apart: the doc id in the high 32 bits, the start in
        # the low ones.
        same = (first_pieces["document"] << 32) + first_pieces["start"]
    plan = plan_rows(sizes, longest, pack.strategy, row_length=row_length, max_docs=max_docs, align=align, same=same)
    if pack.shuffle:
        plan = permute_rows(plan, seed)
    if not has_units:
        pieces = np.take(pieces, plan.order)  # for records, three times as fast as an index
        pieces["start"] += plan.starts.astype(np.int32)  # a strategy that cuts repeats nothing
        pieces["length"] = plan.lengths
        return plan.certificate, plan.row_offsets, pieces
    # The plan's rows hold units; from here on, pieces. A row of 2 units, which have 3 pieces and 2, has 5 pieces.
    sizes_of_units = np.diff(np.append(begins, len(pieces)))
    row_offsets = offsets_of(sums_of(sizes_of_units[plan.order], plan.row_offsets))
    # The plan was of units and their padding; a certificate counts pieces and tokens of documents.
    tokens = int(pieces["length"].sum(dtype=np.int64))
    certificate = replace(plan.certificate, tokens=tokens, pieces=len(pieces))
    return certificate, row_offsets, take_units(pieces, begins, plan.order)


def _pieces_of(table: Table, split: str, blocks: NDArray[np.int64], *, pairs: bool) -> Pieces:
    """The pieces to plan of some blocks, each as often as its document is packed.

    Args:
        pairs: whether these are preference pairs to pack, of which each gives two pieces.
    """
    in_window = np.zeros(len(table.block_starts) - 1, np.bool_)
    in_window[blocks] = True
    documents = table.documents
    stored = table.pieces  # of documents that are split or share tokens; others are one whole piece
    is_planned = np.zeros(len(documents) if len(stored) else 0, np.bool_)  # of those with stored pieces
    pieces_of_slices = [np.zeros(0, PIECE)]  # so that there is something to concatenate, even without documents
    for doc_ids in _packed_in(table, split):
        if not in_window.all():
            doc_ids = doc_ids[in_window[_blocks_of(table, doc_ids)]]
        if pairs:
            pieces_of_slices.append(sides_of(documents.at(doc_ids), doc_ids))
            continue
        if len(stored):
            is_stored = (documents.flags[doc_ids] & (SPLIT | SHARES)) > 0
            is_planned[doc_ids[is_stored]] = True
            doc_ids = doc_ids[~is_stored]
        whole_pieces = np.zeros(len(doc_ids), PIECE)
        whole_pieces["document"] = doc_ids
        whole_pieces["start"] = documents.low[doc_ids]
        whole_pieces["length"] = documents.high[doc_ids] - documents.low[doc_ids]
        pieces_of_slices.append(whole_pieces)
    if len(stored):
        # A unit is of the window of its first document, wherever the others are.
        begins = unit_begins(stored)
        sizes = np.diff(np.append(begins, len(stored)))
        pieces_of_slices.append(stored[np.repeat(is_planned[stored["document"][begins]], sizes)])
    pieces = np.concatenate(pieces_of_slices)
    pieces_of_slices.clear()  # which would double the memory of what follows
    begins = unit_begins(pieces, pairs=pairs)
    if len(stored):  # stored pieces stand last until here: now all units get the order of their first documents
        pieces = take_units(pieces, begins, np.argsort(pieces["document"][begins], kind="stable"))
        begins = unit_begins(pieces)
    copies = documents.copies[pieces["document"][begins]].astype(np.int64)
    if not (copies > 1).any():
        return pieces
    unit_of_copy = np.repeat(np.arange(len(copies)), copies)
    # The first of r copies stands in the first r-th of the order, the second in the second, and so on. Equal repeats of
    # all documents give one pass after another: of units 0 and 1 twice, the places are 0 .25 .5 .75, so 0 1 0 1.
    place = (ranges(0, copies) + unit_of_copy / len(copies)) / copies[unit_of_copy]
    return take_units(pieces, begins, unit_of_copy[np.argsort(place, kind="stable")])


def _packed_in(table: Table, split: str) -> Iterator[NDArray[np.int64]]:
    """Yield the doc ids of the documents that a split packs, ascending, for one slice of the table at a time."""
    for _, rows in table.slices():
        documents = table.documents.at(rows)
        is_packed = (documents.copies > 0) & (documents.has(HELD_OUT) == (split == "holdout"))
        yield np.flatnonzero(is_packed) + rows.start


def _blocks_of(table: Table, doc_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) the block of each document: of blocks that start at 0, 40 and 58, document 57 is of block 1."""
    return np.searchsorted(table.block_starts, doc_ids, side="right") - 1


def permute_rows(plan: LayoutPlan, seed: int) -> LayoutPlan:
    """Return the same rows in another order, chosen by the seed.

    Rows are sorted by a hash of their index and the seed, so the order does not depend on the machine or on a library's
    random generator.
    """
    order = np.argsort(mix64(np.arange(plan.rows, dtype=np.uint64), seed), kind="stable")
    # Rows of 2, 1 and 3 pieces in the order 2 0 1 have 3, 2 and 1: the pieces 3 4 5 0 1 2.
    sizes = np.diff(plan.row_offsets)[order]
    pieces = ranges(plan.row_offsets[:-1][order], sizes)
    return LayoutPlan(
        order=plan.order[pieces],
        starts=plan.starts[pieces],
        lengths=plan.lengths[pieces],
        row_offsets=offsets_of(sizes),
        certificate=plan.certificate,
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
        first_index: number of the first shard in its split.
        token_bytes: bytes of a token in all columns of a row together.
        shard_bytes: the most bytes of a shard.
    """
    if not len(tokens):
        return (ShardPlan(first_index, first_row=0, last_row=0, first_piece=0, last_piece=0),)
    ends = np.cumsum(tokens)
    total = int(ends[-1])
    count = max(1, -(-total * token_bytes // shard_bytes))
    # Each shard ends with the row in which its share of the tokens ends. Rows of 4, 4 and 4 tokens in two shards: 6
    # tokens end in the second row, so the shards have two rows and one.
    last_rows = np.searchsorted(ends, np.arange(1, count + 1) * total // count, side="left") + 1
    # Shares that end in one row, as where it is longer than a shard, are one shard.
    bounds = np.unique(np.concatenate([[0], np.minimum(last_rows, len(ends))]))
    row_bounds = bounds.tolist()
    piece_bounds = row_offsets[bounds].tolist()
    shards = []
    for number, (first_row, last_row) in enumerate(pairwise(row_bounds)):
        first_piece = piece_bounds[number]
        last_piece = piece_bounds[number + 1]
        shards.append(ShardPlan(first_index + number, first_row, last_row, first_piece, last_piece))
    return tuple(shards)
