"""A run's ledger: the records of parts open it, the table says what became of every document, and the shards what was
written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.dataset.ledger import Ledger, SourceLedger
from ...schemas.tables.reasons import OUTCOMES
from ...stages.select.copies import is_later_copy
from ...stages.tokenize.encode import TEMPLATE_DROPPED
from ...stages.tokenize.encode_counts import (
    COLUMNS_NOT_READ,
    DROPPED,
    KEYS_NOT_READ,
    MOST_NAMES,
    MOST_ROLES,
    NOT_JSON,
    OTHERS,
    REJECTED,
    ROLES,
    SPECIAL,
    WITH_SPECIAL,
)
from ..encode.parts import PartRecord
from ..inputs.scan import NOT_TAKEN
from .planned_rows import Written
from .table import CONTAMINATED, HELD_OUT, SPLIT, Documents, Table


def open_ledger(
    names: Sequence[str], sources: Sequence[int], records: Sequence[PartRecord], not_taken: Mapping[str, int]
) -> Ledger:
    """Make a ledger with the counts of encoding: rows, examples made, tokens encoded.

    Args:
        names: the sources, in order.
        sources: the source of each record.
        not_taken: by source, rows that were scanned but not encoded because of `max_rows`.
    """
    ledger = Ledger({name: SourceLedger() for name in names})
    for source, record in zip(sources, records, strict=True):
        entry = ledger.sources[names[source]]
        entry.rows_read += record.rows
        entry.rows_used += record.rows_used
        entry.rows_blank += record.blank
        counts = record.counts
        # Each kind has the name of a field of `SourceLedger`, which maps a reason to a count.
        for kind in (REJECTED, "rows_filtered", "examples_skipped", DROPPED, TEMPLATE_DROPPED):
            _add(getattr(entry, kind), counts.by_kind.get(kind, {}))
        _add(entry.unknown_roles, counts.by_kind.get(ROLES, {}), max_keys=MOST_ROLES)
        _add(entry.special_in_contents, counts.by_kind.get(SPECIAL, {}), max_keys=MOST_ROLES)
        entry.examples_with_special += counts.total(WITH_SPECIAL)
        _add(entry.columns_not_read, counts.by_kind.get(COLUMNS_NOT_READ, {}), max_keys=MOST_NAMES)
        _add(entry.keys_not_read, counts.by_kind.get(KEYS_NOT_READ, {}), max_keys=MOST_NAMES)
        entry.call_arguments_not_json += counts.total(NOT_JSON)
        entry.examples_made += counts.examples + counts.total(DROPPED)
        # Tokens that are not of the row's text were created by the run.
        entry.tokens_encoded += counts.tokens - counts.end_of_sequence - counts.special
        _add(entry.tokens_created, {"end_of_sequence": counts.end_of_sequence, "special": counts.special})
        entry.straddles += counts.straddles
    for name, count in not_taken.items():
        ledger.sources[name].rows_read += count
        _add(ledger.sources[name].rows_filtered, {NOT_TAKEN: count})
    return ledger


def account_table(ledger: Ledger, table: Table, *, holds_out: bool, repeated: str = "overlap") -> None:
    """Add what was decided about every document.

    Args:
        holds_out: whether documents may be held out.
        repeated: what the ledger calls tokens that pieces of a document repeat: `overlap`, or `prompt` of pairs whose
            row stores the prompt twice.
    """
    entries = list(ledger.sources.values())
    for source, rows in table.slices():
        entry = entries[source]
        documents = table.documents.at(rows)
        _count_left_out(entry, documents)
        _count_packed(entry, documents, holds_out)
        _count_lost(entry, documents)
        _count_copies(entry, documents, repeated)
    _count_equal(ledger, table)


def account_rows(ledger: Ledger, rows: Iterable[Mapping[int, Written]]) -> None:
    """Add what was written, so that the ledger closes only if it is what was decided.

    Args:
        rows: of each shard, the number of a source → what the shard holds of it.
    """
    entries = list(ledger.sources.values())
    for by_source in rows:
        for source, written in by_source.items():
            entry = entries[source]
            entry.labels_trained += written.trained
            entry.weight_trained += written.weight
            entry.labels_first_token += written.first_tokens
            entry.labels_masked += written.tokens - written.trained - written.first_tokens
            # The tokens of documents are counted by `_count_copies`; rows add only their padding.
            entry.tokens_packed += written.padding
            entry.turns_cut += written.cuts
            entry.copies_together += written.together
            _add(entry.tokens_created, {"alignment": written.padding})


def _count_left_out(entry: SourceLedger, documents: Documents) -> None:
    """Count the examples that are left out as a whole, by reason, and their tokens."""
    _add(entry.examples_dropped, _by_reason(documents, np.ones(len(documents), np.int32)))
    _add(entry.tokens_dropped, _by_reason(documents, documents.length))
    _add(entry.supervised_dropped, _by_reason(documents, documents.supervised))
    entry.supervised_encoded += _sum(documents.supervised)
    entry.examples_contaminated += _sum(documents.has(CONTAMINATED))


def _by_reason(documents: Documents, values: NDArray[np.int32]) -> dict[str, int]:
    """Reason → the sum of the values of the documents that are left out for it.

    Args:
        values: (N,) a value of each document.
    """
    # Sums of whole numbers below 2**53, which float64 holds exactly.
    sums = np.bincount(documents.outcome, weights=values, minlength=len(OUTCOMES)).astype(np.int64).tolist()
    return dict(zip(OUTCOMES[1:], sums[1:], strict=True))  # the first outcome is to be packed


def _count_packed(entry: SourceLedger, documents: Documents, holds_out: bool) -> None:
    """Count packed examples."""
    packed = documents.copies > 0
    held_out = documents.has(HELD_OUT)
    _add(entry.examples_packed, {"train": _sum(packed & ~held_out)})
    if holds_out:
        _add(entry.examples_packed, {"holdout": _sum(packed & held_out)})
    entry.examples_without_labels += _sum(packed & (documents.labels <= 0))
    entry.examples_split += _sum(packed & documents.has(SPLIT))
    entry.turns_trained += _sum(documents.turns, packed)
    entry.turns_stop_next += _sum(documents.next_stops, packed)
    entry.turns_without_stop += _sum(documents.turns_without_stop, packed)


def _count_lost(entry: SourceLedger, documents: Documents) -> None:
    """Count tokens that packed examples lose: beyond the limits of length, and in pieces that are not packed."""
    packed = documents.copies > 0
    within_limits = documents.high - documents.low
    truncated = np.where(packed, documents.length - within_limits, 0)
    entry.examples_truncated += _sum(truncated > 0)
    _add(entry.tokens_truncated, {"max_length": _sum(truncated)})
    entry.supervised_truncated += _sum(documents.supervised - documents.supervised_kept, packed)
    # Of an example that was split, pieces in which nothing would be trained are not packed. Such a piece may still have
    # a supervised token: its first one, which can have no label.
    untrained = documents.supervised_kept - documents.supervised_packed
    _add(entry.tokens_dropped, {"untrained_piece": _sum(within_limits - documents.kept, packed)})
    _add(entry.supervised_dropped, {"untrained_piece": _sum(untrained, packed)})


def _count_equal(ledger: Ledger, table: Table) -> None:
    """Count packed examples that are equal to an earlier one.

    Only those with a first half of a digest that occurs twice are sorted by both halves, which takes several times as
    long as sorting numbers.
    """
    documents = table.documents
    packed = np.flatnonzero(documents.copies)
    # Of first halves 7 3 7 9, sorted 3 7 7 9, the one that comes again is 7.
    ordered = np.sort(documents.first_digest[packed])
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    candidates = packed[:0]
    if len(repeated):  # mostly none, and then no look-up of every document
        candidates = packed[np.isin(documents.first_digest[packed], repeated)]
    later = candidates[is_later_copy(documents.first_digest[candidates], documents.second_digest[candidates])]
    for entry, first, last in zip(ledger.sources.values(), table.bounds[:-1], table.bounds[1:], strict=True):
        entry.examples_equal += int(np.count_nonzero((later >= first) & (later < last)))


def _count_copies(entry: SourceLedger, documents: Documents, repeated: str) -> None:
    """Count tokens of all copies.

    A document of 10 tokens that is packed 3 times, in two pieces of which the second one repeats 2 tokens, takes
    3 * (10 + 2) = 36 packed tokens. Of these the run created 3 * 2 by overlap, and 2 * 10 by packing it again.
    """
    copies = documents.copies.astype(np.int64)
    further_copies = np.maximum(copies - 1, 0)
    # In rows: repeated tokens stand once more, shared ones only in another document's piece.
    stored = documents.kept + documents.overlap - documents.shared
    entry.tokens_packed += _sum(copies * stored)
    entry.tokens_shared += _sum(copies * documents.shared)
    _add(entry.tokens_created, {repeated: _sum(copies * documents.overlap)})
    _add(entry.tokens_created, {"repeats": _sum(further_copies * documents.kept)})
    entry.supervised_repeated += _sum(further_copies * documents.supervised_packed)
    entry.examples_repeated += _sum(further_copies)


def _sum(values: NDArray[Any], counted: NDArray[np.bool_] | None = None) -> int:
    """The sum of values; with `counted`, only of those for which it is true."""
    if counted is None:
        return int(values.sum(dtype=np.int64))
    return int(values.sum(dtype=np.int64, where=counted))


def _add(totals: dict[str, int], counts: Mapping[str, int], max_keys: int | None = None) -> None:
    """Add counts by key. Once there are `max_keys` keys, further ones are counted together, as `OTHERS`."""
    for key, count in counts.items():
        if max_keys is not None and key not in totals and len(totals) >= max_keys:
            key = OTHERS
        if count:
            totals[key] = totals.get(key, 0) + count
