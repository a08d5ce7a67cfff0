"""Units: pieces that stand in one row, in their order. They are documents that begin alike and share these tokens in a
packed row (`pack.share`), or the two sides of a preference pair.

    outcomes.decide           which documents are packed, how much of each, and how often
    groups_of_several         which of these may share tokens
    share_in_groups           what they share ─► pieces in `Table.pieces`
    window_plan               places each unit in one row

Which documents may share is said by `pack.share`:

    row      neighbours in the table that were made of one source row
    group    all documents of a source that have one `group`, wherever they stand; of those without one, as for `row`

Of these, the documents that one split packs equally often are a group. What they share is found from their token ids,
after every other decision, so another limit or mask needs no tokenizing. Parts are read once more for it. A group
without a common beginning costs time, and nothing else.

The first piece of a unit of documents has no parent, every other one has; every document has one piece. The two pieces
of a preference pair are made when it is planned, by `pairs.sides_of`: nothing is compared for them.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.digests import text_number
from ...schemas.ragged import begins_of, offsets_of, ranges, starts_of
from ...stages.pack.shared_prefixes import SharedPrefixes, share_prefixes
from ..store.local import open_unnamed_file
from .segments import Segments
from .table import HELD_OUT, PIECE, SHARES, SPLIT, Documents, Pieces, Table

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

GROUP_BYTES = 128 << 20
"""Memory in which documents of a group are sorted together: 16 million tokens, or 260,000 documents of few tokens. Of a
larger group, the documents of each so many bytes share, in the order of the table."""
_TOKEN_BYTES = 8
"""A token is held twice: to be compared, and as bytes that sort as tokens do."""
_DOCUMENT_BYTES = 512
"""What the arrays and the bytes of a document take besides."""
_TEXTS = 1 << 16
"""Texts of groups that are in memory at once."""
_NEVER = np.iinfo(np.int32).max
"""The first trained token of a document without one."""


def unit_begins(pieces: Pieces, *, pairs: bool = False) -> NDArray[np.int64]:
    """(U,) the first piece of each unit; a piece that shares nothing is a unit by itself.

    Args:
        pairs: whether these are the sides of preference pairs, of which two are a unit even if they share nothing.
    """
    return np.arange(0, len(pieces), 2) if pairs else np.flatnonzero(pieces["parent"] == 0)


def take_units(pieces: Pieces, begins: NDArray[np.int64], units: NDArray[np.int64]) -> Pieces:
    """The pieces of some units, unit by unit.

    Args:
        begins: (U,) the first piece of each unit.
        units: which ones, in their new order; a unit may come several times.
    """
    # Of 5 pieces, units that begin at 0, 1 and 3 have 1, 2 and 2 pieces: units 2 and 0 are the pieces 3 4 0.
    sizes = np.diff(np.append(begins, len(pieces)))
    return np.take(pieces, ranges(begins[units], sizes[units]))  # for records, three times as fast as an index


# Which documents may share


def set_group_keys(table: Table, scratch: Path) -> None:
    """Give each document the key of its group, for `pack.share: group`, in place.

    Groups of two sources have different keys. Should two groups have one key, which one in 10**19 pairs of groups has,
    they are compared, and share what is equal.

    Args:
        scratch: a folder for an anonymous file.
    """
    count = len(table.documents)
    file = open_unnamed_file(scratch, 8 * max(count, 1))  # an empty file cannot be mapped
    keys = np.memmap(file, np.uint64, "r+", shape=(max(count, 1),))[:count]
    for source, documents in table.slices():
        keys[documents] = _keys_of_rows(table, documents)
        if table.groups is None:
            continue
        for first in range(documents.start, documents.stop, _TEXTS):
            last = min(first + _TEXTS, documents.stop)
            for doc_id, group in enumerate(table.groups.slice(first, last - first).to_pylist(), first):
                if group:
                    keys[doc_id] = text_number(group.encode(), source)
    table.group_keys = keys


def _keys_of_rows(table: Table, documents: slice) -> NDArray[np.uint64]:
    """(N,) a key for each document of a slice: equal for those that were made of the same source row."""
    # Row 7 of the second part is 2 * 2**32 + 7, which no row of another part is. Parts count from 1 here, because the
    # search gives how many parts begin at a document or before it.
    parts = np.searchsorted(table.origins.starts, np.arange(documents.start, documents.stop), side="right")
    return (parts.astype(np.uint64) << np.uint64(32)) + table.documents.line[documents].astype(np.uint64)


def group_keys_of(table: Table, documents: slice) -> NDArray[np.uint64]:
    """(N,) a key for each document of a slice: equal for those that may share tokens."""
    return _keys_of_rows(table, documents) if table.group_keys is None else table.group_keys[documents]


def groups_of_several(
    table: Table, copies: NDArray[np.uint16] | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the groups of documents that may share tokens: the documents of some groups, group by group, and (G + 1,)
    where each group begins among them. Documents that are alone in their group are left out before anything is done for
    each: most data has millions of them.

    Args:
        copies: (N,) how often each document of the table counts; None: as often as it is packed, if it is not cut.
    """
    if table.group_keys is not None:
        yield _groups_in(table, slice(0, len(table.documents)), copies)
        return
    # Documents of a row stand together, so some are looked at at a time, whatever the size of the table. Of a row that
    # stretches over two slices, as one of a million does, the documents of each slice are a group.
    for _, documents in table.slices():
        yield _groups_in(table, documents, copies)


def _groups_in(
    table: Table, documents: slice, copies: NDArray[np.uint16] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The groups of several documents of a slice, in the order of their first documents: the doc ids, group by group,
    and (G + 1,) where each group begins among them.

    Args:
        copies: (N,) how often each document of the table counts; None: as often as it is packed, if it is not cut.
    """
    columns = table.documents.at(documents)
    often = np.where(columns.has(SPLIT), 0, columns.copies)  # documents that are cut share nothing
    if copies is not None:
        often = copies[documents]
    counted = np.flatnonzero(often)
    keys = group_keys_of(table, documents)[counted]
    held_out = columns.has(HELD_OUT)[counted]
    often = often[counted]
    # Stable, so the documents of a group stay in the order of the table.
    order = np.lexsort((often, held_out, keys))
    doc_ids = counted[order] + documents.start
    # Of the keys 4 4 4 9 9, of which the third document is held out, groups begin at 0, 2 and 3.
    begins_group = np.zeros(len(order), np.bool_)
    begins_group[:1] = True  # a slice, because there may be no document
    for column in (keys[order], held_out[order], often[order]):
        begins_group[1:] |= column[1:] != column[:-1]
    # A group of more than `GROUP_BYTES` is divided where the bytes before a document, counted from the group's first
    # one, pass a multiple of it. With 4 in place of 128 MiB, documents of 3, 2 and 2 bytes have 0, 3 and 5 before
    # them: the third one begins a new group.
    tokens = (columns.high - columns.low)[counted[order]].astype(np.int64)
    bytes_before = starts_of(_TOKEN_BYTES * tokens + _DOCUMENT_BYTES)
    begins = np.flatnonzero(begins_group)
    bytes_before -= np.repeat(bytes_before[begins], np.diff(np.append(begins, len(order))))
    begins_group[1:] |= bytes_before[1:] // GROUP_BYTES != bytes_before[:-1] // GROUP_BYTES

    # Only groups of several documents, in the order of their first ones.
    begins = np.flatnonzero(begins_group)
    sizes = np.diff(np.append(begins, len(order)))
    begins = begins[sizes > 1]
    sizes = sizes[sizes > 1]
    by_first = np.argsort(doc_ids[begins], kind="stable")
    return doc_ids[ranges(begins[by_first], sizes[by_first])], offsets_of(sizes[by_first])


# What they share


def share_prompts(table: Table) -> None:
    """Store the prompt of each preference pair once, in place: of its tokens, the rejected side repeats only the last.

    A pair needs no comparison: both sides begin with the prompt by construction.
    """
    for _, rows in table.slices():
        overlap = table.documents.overlap[rows]
        np.minimum(overlap, 1, out=overlap)


def share_in_groups(table: Table, segments: Segments, config: "RunConfig", file: IO[bytes]) -> None:
    """Find what the documents of each group share; add the pieces of those that do to a file, unit by unit. Documents
    that were cut into several pieces share nothing.

    Args:
        segments: of the table.
        file: takes a `PIECE` after another.
    """
    for documents, offsets in groups_of_several(table):
        for first, last in pairwise(offsets.tolist()):
            _share_group(table, segments, documents[first:last], config).tofile(file)


def _share_group(table: Table, segments: Segments, doc_ids: NDArray[np.int64], config: "RunConfig") -> Pieces:
    """The pieces of the documents of a group that share tokens, unit by unit. Sets the columns `shared`, `overlap` and
    `flags` of these documents. Documents that share nothing get no piece here: they are packed as one whole piece.
    """
    group = table.documents.at(doc_ids)  # a copy: what is set below is set in the table itself
    prefixes = _prefixes_of(group, segments, config.row_length, config.pack.alignment.document)
    # A unit shares tokens as a whole or not at all, so a parent stands as many pieces before its child as before.
    shares_tokens = prefixes.shares_tokens
    order = prefixes.order[shares_tokens]  # (P,) places in the group
    shared = prefixes.shared[shares_tokens]  # (P,) first tokens of each that it shares
    pieces = np.zeros(len(order), PIECE)
    pieces["document"] = doc_ids[order]
    # Of 5 tokens of which 3 are shared, a piece has the last 3: the last shared one, repeated, and 2 of its own.
    pieces["start"] = group.low[order] + np.maximum(shared - 1, 0)
    pieces["length"] = group.high[order] - pieces["start"]
    pieces["repeated"] = shared > 0
    pieces["parent"] = prefixes.parents[shares_tokens]
    table.documents.shared[pieces["document"]] = shared
    table.documents.overlap[pieces["document"]] = shared > 0  # of the shared tokens, one is stored again
    table.documents.flags[pieces["document"]] |= SHARES
    return pieces


def _prefixes_of(group: Documents, segments: Segments, row_length: int, align: int) -> SharedPrefixes:
    """What the documents of a group share, of the tokens from `low` to `high` of each, in rows of a capacity."""
    tokens = segments.tokens(group, group.low, group.high - group.low)
    ends, supervised = segments.spans(group)
    return share_prefixes(tokens, first_trained(group.span_count, group.low, ends, supervised), row_length, align)


def first_trained(
    span_count: NDArray[np.int32], low: NDArray[np.int32], ends: NDArray[np.int32], supervised: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(K,) the first supervised token of each document, counted from its first kept one.

    Args:
        span_count: (K,) how many spans each has.
        low: (K,) the first kept token of each.
        ends, supervised: (spans,) of the documents, as `Segments.spans` gives them.
    """
    # Of a document whose spans end at 4, 9 and 12, the last two supervised, with the first kept token 6: its spans
    # begin at 6, 6 and 9, the first has no kept token, and the first supervised token is 6 - 6 = 0.
    offsets = offsets_of(span_count)
    low = np.repeat(low, span_count)
    begins = np.maximum(begins_of(ends, offsets), low)
    places = np.where(supervised & (ends > begins), begins - low, _NEVER)
    first: NDArray[np.int64] = np.minimum.reduceat(places, offsets[:-1]).astype(np.int64)
    return first
