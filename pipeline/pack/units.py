"""Units: pieces that stand in one row, in their order. They are documents of a group that begin alike, and share these
tokens in a packed row (`pack.share`), or the two sides of a preference pair.

    outcomes.decide           which documents are packed, how much of each, and how often
    groups.groups_of_several  which of them may share
    share_in_groups           what they share ─► `Table.units`
    window_plan               places each unit in one row

A unit of documents is a run of pieces in `Table.units`: the first one has no parent, every other one has. Every
document keeps one piece. What is shared is found from token ids, after every other decision, so another limit or mask
needs no tokenizing. Parts are read once more for it.

Both pieces of a preference pair are made when it is planned, by `pairs.sides_of`. Nothing is compared for them.
"""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import begins_of, offsets_of
from ...stages.pack.shared_prefixes import SharedPrefixes, share_prefixes
from ..store.local import open_unnamed_file
from .groups import groups_of_several
from .segments import Segments
from .table import PIECE, SHARES, Documents, Pieces, Table

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig

_NEVER = np.iinfo(np.int32).max
"""The first trained token of a document without one."""


def unit_begins(pieces: Pieces, *, pairs: bool = False) -> NDArray[np.int64]:
    """(U,) the first piece of each unit; a piece that shares nothing is a unit by itself.

    Args:
        pairs: whether these are the sides of preference pairs, of which two are a unit even if they share nothing.
    """
    return np.arange(0, len(pieces), 2) if pairs else np.flatnonzero(pieces["parent"] == 0)


def share_prompts(table: Table) -> None:
    """Store the prompt of each preference pair once, in place: of its tokens, the rejected side repeats only the last.

    A pair needs no comparison: both sides begin with the prompt by construction.
    """
    for _, rows in table.slices():
        overlap = table.documents.overlap[rows]
        np.minimum(overlap, 1, out=overlap)


def share_in_groups(table: Table, segments: Segments, config: "RunConfig", scratch: Path) -> None:
    """Find what the documents of each group share, in place. Documents that were cut into several pieces share nothing.

    Args:
        segments: of the table.
        scratch: a folder for an anonymous file.
    """
    file = open_unnamed_file(scratch)
    for documents, offsets in groups_of_several(table):
        for first, last in pairwise(offsets.tolist()):
            _share_group(table, segments, documents[first:last], config).tofile(file)
    file.flush()
    if file.tell():
        table.units = np.memmap(file, PIECE, "r")


def _share_group(table: Table, segments: Segments, doc_ids: NDArray[np.int64], config: "RunConfig") -> Pieces:
    """The pieces of those documents of a group that share tokens, unit by unit; says so in their columns `shared`,
    `overlap` and `flags`.
    """
    group = table.documents.at(doc_ids)
    prefixes = prefixes_of(group, segments, config.row_length, config.pack.alignment.document)
    order = prefixes.order[prefixes.is_in_group]
    shared = prefixes.shared[prefixes.is_in_group]
    pieces = np.zeros(len(order), PIECE)
    pieces["document"] = doc_ids[order]
    pieces["start"] = group.low[order] + np.maximum(shared - 1, 0)
    pieces["length"] = group.high[order] - pieces["start"]
    pieces["repeated"] = shared > 0
    pieces["parent"] = prefixes.parents[prefixes.is_in_group]
    table.documents.shared[pieces["document"]] = shared
    table.documents.overlap[pieces["document"]] = shared > 0
    table.documents.flags[pieces["document"]] |= SHARES
    return pieces


def prefixes_of(group: Documents, segments: Segments, row_length: int, align: int) -> SharedPrefixes:
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
    offsets = offsets_of(span_count)
    low = np.repeat(low, span_count)
    begins = np.maximum(begins_of(ends, offsets), low)
    places = np.where(supervised & (ends > begins), begins - low, _NEVER)
    first: NDArray[np.int64] = np.minimum.reduceat(places, offsets[:-1]).astype(np.int64)
    return first
