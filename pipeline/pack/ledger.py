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
        for kind in (REJECTED, "rows_filtered", "examples_skipped", DROPPED, TEMPLATE_DROPPED):
            _add(getattr(entry, kind), counts.found.get(kind, {}))
        _add(entry.unknown_roles, counts.found.get(ROLES, {}), MOST_ROLES)
        _add(entry.special_in_contents, counts.found.get(SPECIAL, {}), MOST_ROLES)
        entry.examples_with_special += counts.of(WITH_SPECIAL)
        _add(entry.columns_not_read, counts.found.get(COLUMNS_NOT_READ, {}), MOST_NAMES)
        _add(entry.keys_not_read, counts.found.get(KEYS_NOT_READ, {}), MOST_NAMES)
        entry.call_arguments_not_json += counts.of(NOT_JSON)
        entry.examples_made += counts.examples + counts.of(DROPPED)
        entry.tokens_encoded += counts.tokens - counts.end_of_sequence - counts.special
        _add(entry.tokens_created, {"end_of_sequence": counts.end_of_sequence, "special": counts.special})
        entry.straddles += counts.straddles
    for name, count in not_taken.items():
        ledger.sources[name].rows_read += count
        _add(ledger.sources[name].rows_filtered, {NOT_TAKEN: count})
    return ledger


def account_table(ledger: Ledger, table: Table, *, holds_out: bool) -> None:
    """Add what was decided about every document.

    Args:
        holds_out: whether documents may be held out.
    """
    entries = list(ledger.sources.values())
    for source, here in table.slices():
        entry, some = entries[source], table.documents.at(here)
        _left_out(entry, some)
        _packed(entry, some, holds_out)
        _truncated(entry, some)
        _copies(entry, some)
    _equal(ledger, table)


def account_rows(ledger: Ledger, rows: Iterable[Mapping[int, Written]]) -> None:
    """Add what was written, so that the ledger closes only if it is what was decided."""
    entries = list(ledger.sources.values())
    for written in rows:
        for source, one in written.items():
            entry = entries[source]
            entry.labels_trained += one.trained
            entry.weight_trained += one.weight
            entry.labels_first_token += one.heads
            entry.labels_masked += one.tokens - one.trained - one.heads
            entry.tokens_packed += one.padding
            entry.turns_cut += one.cuts
            entry.copies_together += one.together
            _add(entry.tokens_created, {"alignment": one.padding})


def _left_out(entry: SourceLedger, some: Documents) -> None:
    """Count the examples that are left out as a whole, by reason, and their tokens."""
    counts = np.bincount(some.outcome, minlength=len(OUTCOMES)).tolist()
    tokens = np.bincount(some.outcome, weights=some.length, minlength=len(OUTCOMES)).astype(np.int64).tolist()
    _add(entry.examples_dropped, dict(zip(OUTCOMES[1:], counts[1:], strict=True)))
    _add(entry.tokens_dropped, dict(zip(OUTCOMES[1:], tokens[1:], strict=True)))
    entry.examples_contaminated += _sum(some.has(CONTAMINATED))
    supervised = np.bincount(some.outcome, weights=some.supervised, minlength=len(OUTCOMES)).astype(np.int64).tolist()
    _add(entry.supervised_dropped, dict(zip(OUTCOMES[1:], supervised[1:], strict=True)))
    entry.supervised_encoded += _sum(some.supervised)


def _packed(entry: SourceLedger, some: Documents, holds_out: bool) -> None:
    """Count packed examples."""
    packed, held_out = some.copies > 0, some.has(HELD_OUT)
    _add(entry.examples_packed, {"train": _sum(packed & ~held_out)})
    if holds_out:
        _add(entry.examples_packed, {"holdout": _sum(packed & held_out)})
    entry.examples_without_labels += _sum(packed & (some.labels <= 0))
    entry.examples_split += _sum(packed & some.has(SPLIT))
    entry.turns_trained += _sum(some.turns, packed)
    entry.turns_stop_next += _sum(some.next_stops, packed)
    entry.turns_without_stop += _sum(some.turns_without_stop, packed)


def _truncated(entry: SourceLedger, some: Documents) -> None:
    """Count tokens that packed examples lose."""
    packed = some.copies > 0
    stretch = some.high - some.low
    lost = np.where(packed, some.length - stretch, 0)
    entry.examples_truncated += _sum(lost > 0)
    _add(entry.tokens_truncated, {"max_length": _sum(lost)})
    entry.supervised_truncated += _sum(some.supervised - some.supervised_kept, packed)
    # untrained pieces of split examples
    _add(entry.tokens_dropped, {"untrained_piece": _sum(stretch - some.kept, packed)})
    _add(entry.supervised_dropped, {"untrained_piece": _sum(some.supervised_kept - some.supervised_packed, packed)})


def _equal(ledger: Ledger, table: Table) -> None:
    """Count packed examples that are equal to an earlier one. Only those with a first half of a digest that
    occurs twice are sorted by both halves, which takes several times as long.
    """
    documents = table.documents
    packed = np.flatnonzero(documents.copies)
    ordered = np.sort(documents.first_digest[packed])
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    packed = packed[np.isin(documents.first_digest[packed], repeated)] if len(repeated) else packed[:0]
    later = packed[is_later_copy(documents.first_digest[packed], documents.second_digest[packed])]
    for entry, first, last in zip(ledger.sources.values(), table.bounds[:-1], table.bounds[1:], strict=True):
        entry.examples_equal += int(np.count_nonzero((later >= first) & (later < last)))


def _copies(entry: SourceLedger, some: Documents) -> None:
    """Count tokens of all copies."""
    copies = some.copies.astype(np.int64)
    further = np.maximum(copies - 1, 0)
    entry.tokens_packed += _sum(copies * (some.kept + some.overlap - some.shared))
    entry.tokens_shared += _sum(copies * some.shared)
    _add(entry.tokens_created, {"overlap": _sum(copies * some.overlap), "repeats": _sum(further * some.kept)})
    entry.supervised_repeated += _sum(further * some.supervised_packed)
    entry.examples_repeated += _sum(further)


def _sum(values: NDArray[Any], which: NDArray[np.bool_] | None = None) -> int:
    return int(values.sum(dtype=np.int64) if which is None else values.sum(dtype=np.int64, where=which))


def _add(totals: dict[str, int], more: Mapping[str, int], most: int | None = None) -> None:
    """Add counts; beyond `most` keys, to those of `OTHERS`."""
    for key, count in more.items():
        if most is not None and key not in totals and len(totals) >= most:
            key = OTHERS
        if count:
            totals[key] = totals.get(key, 0) + count
