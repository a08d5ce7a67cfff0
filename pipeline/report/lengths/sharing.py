"""What documents of one source row or group share at each length that is compared, found from their token ids.

For each length, documents are chosen, cut and grouped as a run of this length would do it. So if all groups are
compared, the factor is exactly what such a run reaches. Of much data, only every n-th group is compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....schemas.config.config import RunConfig
from ....schemas.ragged import begins_of, offsets_of, sums_of
from ....stages.forecast.estimate import SharedUnits
from ....stages.pack.shared_prefixes import share_prefixes
from ...pack.outcomes import limits_of
from ...pack.pack import Selected
from ...pack.segments import Segments
from ...pack.table import Documents, Table
from ...pack.units import first_trained, groups_of_several, set_group_keys
from .documents import copies_to_compare

COMPARED_TOKENS = 1_000_000
"""About so many tokens are compared at each length, of all groups or of every n-th."""


class ComparedLength(NamedTuple):
    """A length of documents that is compared, and the rows that they stand in."""

    limit: int
    """The most tokens of a document."""
    row_length: int
    """Capacity of the rows, at least `limit`."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedLengths:
    """What documents can share at each length."""

    share: str
    """The value of `pack.share` that is compared with `none`."""
    by_length: dict[ComparedLength, SharedUnits]
    """Compared length → the units of the documents that share at it."""
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
    """What all groups share at one length; a document that is packed twice counts twice."""

    members: list[int] = field(default_factory=list)
    """Tokens kept of each document that shares."""
    units: list[int] = field(default_factory=list)
    """Tokens that each unit takes in a row, with padding."""
    stored: int = 0
    """Tokens of the units, without padding."""
    kept: int = 0
    """Tokens that the length keeps of the documents of all groups."""
    kept_compared: int = 0
    """Tokens that it keeps of the groups that are compared."""

    def add(self, group: _SharedGroup, copies: int) -> None:
        """Add a group that is compared, and packed `copies` times."""
        self.members += group.members * copies
        self.units += group.units * copies
        self.stored += group.stored * copies

    def shared_units(self) -> SharedUnits:
        """All of them. The compared groups stand for all: if they have a fifth of the tokens, all save five times as
        much.
        """
        scale = self.kept / self.kept_compared if self.kept_compared else 1.0
        return SharedUnits(
            members=np.array(self.members, np.int64),
            units=np.array(self.units, np.int64),
            stored=self.stored,
            scale=scale,
        )


def compare_sharing(selected: Selected, lengths: Sequence[ComparedLength]) -> SharedLengths | None:
    """What documents can share at each length; None if the configuration does not let documents share, or none could.

    The configured value of `pack.share` is compared with `none`. If that is `none` itself, it is `group` where more
    documents can share by groups than by source rows, else `row`.
    """
    config = selected.config
    if not config.pack.can_share:
        return None
    copies = copies_to_compare(selected)
    share, table = _choose_groups(selected, copies)
    tokens_of_groups = _tokens_of_groups(table, copies)
    if not tokens_of_groups:
        return None
    # Of 3.2 million tokens, every fourth group is compared.
    step = -(-tokens_of_groups // COMPARED_TOKENS)
    segments = Segments.of(table)
    document_lengths = table.documents.length
    sums = {length: _Sums() for length in lengths}
    compared_tokens = 0
    for documents, offsets in groups_of_several(table, copies):
        compared_groups = [documents[first:last] for first, last in list(pairwise(offsets.tolist()))[::step]]
        compared = np.concatenate([np.zeros(0, np.int64), *compared_groups])
        compared_tokens += int(document_lengths[compared].sum(dtype=np.int64))
        for length in lengths:
            limit = length.limit
            sums[length].kept += _kept_tokens(document_lengths[documents], copies[documents], config, limit)
            sums[length].kept_compared += _kept_tokens(document_lengths[compared], copies[compared], config, limit)
        if not compared_groups:
            continue
        # All documents of a group are packed equally often, so its first one says how often.
        group_copies = copies[[group[0] for group in compared_groups]].tolist()
        groups = _Groups.of(table.documents.at(compared), [len(group) for group in compared_groups], segments)
        for length, shared_groups in _share_at_lengths(groups, config, lengths):
            for shared, count in zip(shared_groups, group_copies, strict=True):
                sums[length].add(shared, count)
    units = {length: sums[length].shared_units() for length in lengths}
    return SharedLengths(share=share, by_length=units, compared=compared_tokens, tokens=tokens_of_groups)


def _choose_groups(selected: Selected, copies: NDArray[np.uint16]) -> tuple[str, Table]:
    """The value of `pack.share` to compare, `row` or `group`, and a table whose groups are by it."""
    table = selected.table
    pack = selected.config.pack
    if pack.shares or table.groups is None:
        return pack.share if pack.shares else "row", table
    # A document without a group has its row as one, so by groups usually more documents can share than by rows. Not
    # always: examples of one row may have different groups, and then sharing by rows is what to compare.
    by_group = replace(table)  # the keys of groups are set in this one, and not in the run's table
    set_group_keys(by_group, scratch=selected.encoded.cache.scratch.root)
    if _tokens_of_groups(by_group, copies) > _tokens_of_groups(table, copies):
        return "group", by_group
    return "row", table


def _tokens_of_groups(table: Table, copies: NDArray[np.uint16]) -> int:
    """Tokens of the documents that are not alone in their group, each counted once."""
    return sum(
        int(table.documents.length[documents].sum(dtype=np.int64)) for documents, _ in groups_of_several(table, copies)
    )


def _kept_tokens(lengths: NDArray[np.int32], copies: NDArray[np.uint16], config: RunConfig, limit: int) -> int:
    """Tokens that a limit keeps of some documents, each counted as often as it is packed."""
    kept = np.minimum(lengths, limit)
    if config.truncate.overlong != "truncate":  # longer ones are dropped, or cut into pieces, which share nothing
        kept = np.where(lengths > limit, 0, lengths)
    return int((kept * copies.astype(np.int64)).sum())


class _Groups(NamedTuple):
    """The documents of G groups that are compared, group by group. Their tokens and spans are looked up once for all
    groups and lengths: that takes most of the time if it is done for each group, of which most have two documents.
    """

    documents: Documents
    offsets: list[int]
    """(G + 1,) group i has the documents from `offsets[i]` up to `offsets[i + 1]`."""
    tokens: list[NDArray[np.int32]]
    """The tokens of each document, before any cut."""
    ends: NDArray[np.int32]
    """(spans,) where the spans of the documents end."""
    supervised: NDArray[np.bool_]
    """(spans,) whether the mask trains them."""
    longest: list[int]
    """(G,) tokens of the longest document of each group, before any cut."""

    @classmethod
    def of(cls, documents: Documents, sizes: list[int], segments: Segments) -> "_Groups":
        """The groups of some documents.

        Args:
            sizes: how many documents each group has, at least one.
        """
        offsets = offsets_of(sizes)
        tokens = segments.tokens(documents, starts=np.zeros_like(documents.length), lengths=documents.length)
        ends, supervised = segments.spans(documents)
        longest = np.maximum.reduceat(documents.length, offsets[:-1])
        return cls(documents, offsets.tolist(), tokens, ends, supervised, longest.tolist())


def _share_at_lengths(
    groups: _Groups, config: RunConfig, lengths: Sequence[ComparedLength]
) -> Iterator[tuple[ComparedLength, list[_SharedGroup]]]:
    """Yield each length with what each group shares there, the longest rows first.

    At two neighbouring lengths, most groups are not cut at either. Then they share what they shared at the length
    before: comparing them again would take most of the time.
    """
    reusable: list[_SharedGroup | None] = [None] * len(groups.longest)
    limit_before = 0
    for length in sorted(lengths, key=lambda length: (length.row_length, length.limit), reverse=True):
        for number, (longest, shared) in enumerate(zip(groups.longest, reusable, strict=True)):
            is_cut = longest > min(length.limit, limit_before)
            # Units that fit longer rows may be too long for these, and some of their documents begin another unit.
            if is_cut or shared is None or max(shared.units, default=0) > length.row_length:
                reusable[number] = None
        shared_groups = _share_at(groups, config, length, reusable)
        yield length, shared_groups
        reusable = list(shared_groups)
        limit_before = length.limit


def _share_at(
    groups: _Groups, config: RunConfig, length: ComparedLength, reusable: Sequence[_SharedGroup | None]
) -> list[_SharedGroup]:
    """What each group shares at one length, if its documents are chosen and cut as in a run of this length.

    Args:
        reusable: (G,) what each group shares there; None if that is to be found.
    """
    documents = groups.documents
    limits = replace(limits_of(config), max_length=length.limit)
    # (K,) the first token that is kept of each document, and one past the last.
    low, high = limits.stretch(documents.length)
    # A run drops documents without a label, and so they share nothing.
    is_packed = np.ones(len(documents), np.bool_) if config.keep_untrained else _have_labels(groups, low, high)
    if limits.overlong != "truncate":
        is_packed &= documents.length <= length.limit
    # (K,) how many kept tokens come before the first trained one.
    trained = first_trained(documents.span_count, low, groups.ends, groups.supervised)
    shared_groups = list[_SharedGroup]()
    for (begin, end), shared in zip(pairwise(groups.offsets), reusable, strict=True):
        if shared is None:
            kept = np.flatnonzero(is_packed[begin:end]) + begin
            tokens = [groups.tokens[document][low[document] : high[document]] for document in kept.tolist()]
            align = config.pack.alignment.document
            shared = _share(tokens, trained[kept], row_length=length.row_length, align=align)
        shared_groups.append(shared)
    return shared_groups


def _share(tokens: list[NDArray[np.int32]], trained: NDArray[np.int64], row_length: int, align: int) -> _SharedGroup:
    """What K documents share.

    Args:
        tokens: of each document, those that are kept.
        trained: (K,) how many of these come before the first trained one. Only they are shared, so that each label
            belongs to one document.
        row_length: the most tokens of a unit.
        align: what each piece is padded to.
    """
    if len(tokens) < 2:
        return _SharedGroup(members=[], units=[], stored=0)
    prefixes = share_prefixes(tokens, trained, row_length, align)
    # Whether each document shares with any other.
    shares_tokens = prefixes.shares_tokens
    # (pieces that share,) kept tokens of the document of each piece, in the order of `prefixes`.
    lengths = np.array([len(tokens[place]) for place in prefixes.order[shares_tokens].tolist()], np.int64)
    # A piece repeats the last token that it shares. Documents of 9, 7 and 5 tokens that share 0, 4 and 3 have pieces of
    # 9, 4 and 3: one unit of 16 tokens.
    pieces = lengths - np.maximum(prefixes.shared[shares_tokens] - 1, 0)
    unit_begins = np.flatnonzero(prefixes.begins_unit[shares_tokens])
    units = sums_of(-(-pieces // align) * align, np.append(unit_begins, len(pieces)))
    return _SharedGroup(members=lengths.tolist(), units=units.tolist(), stored=int(pieces.sum()))


def _have_labels(groups: _Groups, low: NDArray[np.int32], high: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(K,) whether a label is left of each document: a supervised token behind its first kept one.

    Args:
        low, high: (K,) the first kept token of each document, and one past the last.
    """
    span_count = groups.documents.span_count
    offsets = offsets_of(span_count)
    # Kept from token 10 on, a document with the supervised tokens 5 to 10 has none: nothing predicts token 10.
    begins = np.maximum(begins_of(groups.ends, offsets), np.repeat(low + 1, span_count))
    ends = np.minimum(groups.ends, np.repeat(high, span_count))
    # Every document has a span, as `reduceat` needs.
    has_labels: NDArray[np.bool_] = np.logical_or.reduceat(groups.supervised & (ends > begins), offsets[:-1])
    return has_labels
