"""What documents of one source row or group share at each length that is compared, found from their token ids.

At each length the documents are those that a run of this length would pack, cut as it would cut them, and in the same
groups. So where all groups are compared, the factor is that of such a run; else every n-th group is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....schemas.config.config import RunConfig
from ....schemas.ragged import begins_of, offsets_of, sums_of
from ....stages.forecast.estimate import SharedUnits
from ...pack.groups import groups_of_several, set_group_keys
from ...pack.outcomes import limits_of
from ...pack.pack import Selected
from ...pack.segments import Segments
from ...pack.table import Documents, Table
from ...pack.units import prefixes_of
from .documents import copies_to_compare

COMPARED_TOKENS = 4_000_000
"""About so many tokens are compared at each length, of all groups or of every n-th. Of chats with an example a turn,
that takes 0.2 seconds for six lengths together, because a group that a length does not cut is compared once."""


class Lengths(NamedTuple):
    """A length that is compared."""

    limit: int
    """The most tokens of a document."""
    row_length: int
    """Capacity of the rows, at least `limit`."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedLengths:
    """What documents can share at each length."""

    share: str
    """The value of `pack.share` that is compared with `none`."""
    at: dict[Lengths, SharedUnits]
    compared: int
    """Tokens of the documents that were compared, each counted once."""
    tokens: int
    """Tokens of all documents that can share."""


class _SharedGroup(NamedTuple):
    """What a group shares at one length."""

    members: list[int]
    """Tokens kept of each document that shares."""
    units: list[int]
    """Tokens that each unit takes in a row, with padding."""
    stored: int
    """Tokens of the units, without padding."""


@dataclass(slots=True)
class _Sums:
    """What all groups share at one length, copies apart."""

    members: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    stored: int = 0
    kept: int = 0
    """Tokens that the length keeps of the documents of all groups."""
    kept_compared: int = 0
    """The same of the groups that are compared."""

    def add(self, group: _SharedGroup, copies: int) -> None:
        """Add a group that is compared, and packed `copies` times."""
        self.members += group.members * copies
        self.units += group.units * copies
        self.stored += group.stored * copies

    def shared_units(self) -> SharedUnits:
        """All of them; the share that is saved of the compared groups is taken for that of all groups."""
        scale = self.kept / self.kept_compared if self.kept_compared else 1.0
        return SharedUnits(np.array(self.members, np.int64), np.array(self.units, np.int64), self.stored, scale)


def compare_sharing(selected: Selected, lengths: Sequence[Lengths]) -> SharedLengths | None:
    """What `pack.share` stores once at each length: as configured; if that is `none`, `group` where groups have more
    documents than source rows, else `row`. None if the configuration does not let documents share, or none could.
    """
    config = selected.config
    if not config.pack.can_share:
        return None
    copies = copies_to_compare(selected)
    share, table = _choose_groups(selected, copies)
    tokens_of_groups = _tokens_of_groups(table, copies)
    if not tokens_of_groups:
        return None
    step = -(-tokens_of_groups // COMPARED_TOKENS)
    segments = Segments.of(table)
    sums = {at: _Sums() for at in lengths}
    compared_tokens = 0
    for documents, offsets in groups_of_several(table, copies):
        compared_groups = [documents[first:last] for first, last in list(pairwise(offsets.tolist()))[::step]]
        compared = np.concatenate([np.zeros(0, np.int64), *compared_groups])
        document_lengths = table.documents.length
        compared_tokens += int(document_lengths[compared].sum(dtype=np.int64))
        for at in lengths:
            sums[at].kept += _kept_tokens(document_lengths[documents], copies[documents], config, at.limit)
            sums[at].kept_compared += _kept_tokens(document_lengths[compared], copies[compared], config, at.limit)
        for doc_ids in compared_groups:
            shared = _share_at_each(table.documents.at(doc_ids), segments, config, lengths)
            for at in lengths:
                sums[at].add(shared[at], int(copies[doc_ids[0]]))
    units = {at: sums[at].shared_units() for at in lengths}
    return SharedLengths(share, units, compared_tokens, tokens_of_groups)


def _choose_groups(selected: Selected, copies: NDArray[np.uint16]) -> tuple[str, Table]:
    """The value of `pack.share` to compare, and the table with the groups of it."""
    table = selected.table
    pack = selected.config.pack
    if pack.shares or table.groups is None:
        return pack.share if pack.shares else "row", table
    # A group has all examples of a row, unless a reader divides them, and may have those of other rows.
    by_group = replace(table)
    set_group_keys(by_group, selected.encoded.cache.scratch.root)
    if _tokens_of_groups(by_group, copies) > _tokens_of_groups(table, copies):
        return "group", by_group
    return "row", table


def _tokens_of_groups(table: Table, copies: NDArray[np.uint16]) -> int:
    """Tokens of the documents that are not alone in their group, each counted once."""
    return sum(
        int(table.documents.length[documents].sum(dtype=np.int64)) for documents, _ in groups_of_several(table, copies)
    )


def _kept_tokens(lengths: NDArray[np.int32], copies: NDArray[np.uint16], config: RunConfig, limit: int) -> int:
    """Tokens of documents that a limit keeps, copies apart."""
    kept = np.minimum(lengths, limit)
    if config.truncate.overlong != "truncate":  # longer ones are dropped, or cut into pieces, which share nothing
        kept = np.where(lengths > limit, 0, lengths)
    return int((kept * copies.astype(np.int64)).sum())


def _share_at_each(
    group: Documents, segments: Segments, config: RunConfig, lengths: Sequence[Lengths]
) -> dict[Lengths, _SharedGroup]:
    """What the documents of a group share at each length."""
    longest = int(group.length.max())
    shared = dict[Lengths, _SharedGroup]()
    of_longer_rows: _SharedGroup | None = None
    for at in sorted(lengths, key=lambda at: (at.row_length, at.limit), reverse=True):
        is_cut = longest > at.limit
        # Units that also fit shorter rows are the units of shorter rows: no document began one for want of space.
        if not is_cut and of_longer_rows is not None and max(of_longer_rows.units, default=0) <= at.row_length:
            shared[at] = of_longer_rows
            continue
        shared[at] = _share_at(group, segments, config, at)
        if not is_cut:
            of_longer_rows = shared[at]
    return shared


def _share_at(group: Documents, segments: Segments, config: RunConfig, at: Lengths) -> _SharedGroup:
    """What the documents of a group share at one length, if they are decided and cut as in a run of this length."""
    limits = replace(limits_of(config), max_length=at.limit)
    low, high = limits.stretch(group.length)
    group.low[:] = low
    group.high[:] = high
    stays = np.ones(len(group), np.bool_) if config.keep_untrained else _have_labels(group, segments)
    if limits.overlong != "truncate":
        stays &= group.length <= at.limit
    kept = group.at(np.flatnonzero(stays))
    if len(kept) < 2:
        return _SharedGroup([], [], 0)
    align = config.pack.alignment.document
    prefixes = prefixes_of(kept, segments, at.row_length, align)
    is_in_group = prefixes.is_in_group
    lengths = (kept.high - kept.low)[prefixes.order][is_in_group].astype(np.int64)
    pieces = lengths - np.maximum(prefixes.shared[is_in_group] - 1, 0)
    unit_begins = np.flatnonzero(prefixes.begins_unit[is_in_group])
    units = sums_of(-(-pieces // align) * align, np.append(unit_begins, len(pieces)))
    return _SharedGroup(lengths.tolist(), units.tolist(), int(pieces.sum()))


def _have_labels(group: Documents, segments: Segments) -> NDArray[np.bool_]:
    """(K,) whether a label is left of each document: a supervised token behind its first kept one."""
    ends, supervised = segments.spans(group)
    offsets = offsets_of(group.span_count)
    begins = np.maximum(begins_of(ends, offsets), np.repeat(group.low + 1, group.span_count))
    ends = np.minimum(ends, np.repeat(group.high, group.span_count))
    has_labels: NDArray[np.bool_] = np.logical_or.reduceat(supervised & (ends > begins), offsets[:-1])
    return has_labels
