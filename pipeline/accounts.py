"""The ledger of a run, put together from what encoding, planning and packing each counted for themselves."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..schemas.ledger import Ledger, SourceLedger
from ..stages.truncate import Kept
from .catalogue import Catalogue
from .pack import PackResult
from .parts import PartRecord


def open_ledger(names: Sequence[str], sources: Sequence[int], records: Sequence[PartRecord]) -> Ledger:
    """What encoding counted: bytes, rows, examples made, tokens encoded.

    Args:
        names: of the sources.
        sources: which source each record belongs to.
    """
    ledger = Ledger({name: SourceLedger() for name in names})
    for source, record in zip(sources, records, strict=True):
        entry = ledger.sources[names[source]]
        entry.bytes_read += record.bytes_read
        entry.rows_read += record.rows
        entry.rows_used += record.rows_used
        entry.rows_blank += record.blank
        _add(entry.rows_rejected, record.rejected)
        _add(entry.rows_filtered, record.filtered)
        _add(entry.examples_skipped, record.skipped)
        _add(entry.examples_dropped, record.refused)
        entry.examples_made += record.examples + sum(record.refused.values())
        entry.tokens_encoded += record.tokens - record.end_of_sequence - record.special
        _add(entry.tokens_created, {"end_of_sequence": record.end_of_sequence, "special": record.special})
        entry.straddles += record.straddles
        entry.boundaries += record.boundaries
    return ledger


def account_documents(
    ledger: Ledger,
    names: Sequence[str],
    catalogue: Catalogue,
    kept: Kept,
    splits: dict[str, NDArray[np.bool_]],
) -> None:
    """What planning decided about every document."""
    sources = catalogue.source_of(np.arange(len(catalogue), dtype=np.int64))
    packed = kept.lengths > 0
    lost = (catalogue.lengths - kept.lengths).astype(np.int64)
    asked_lost = (catalogue.asked - catalogue.asked_kept).astype(np.int64)
    unlabelled = packed & (catalogue.asked_kept - catalogue.head_kept <= 0)
    reasons = {
        "untrained": kept.untrained,
        "cut_untrained": kept.cut_untrained,
        "overlong": kept.overlong,
        "empty": kept.empty,
    }
    for index, name in enumerate(names):
        entry = ledger.sources[name]
        mine = sources == index
        for reason, which in reasons.items():
            here = mine & which
            if here.any():
                _add(entry.examples_dropped, {reason: int(here.sum())})
                _add(entry.tokens_dropped, {reason: int(catalogue.lengths[here].sum(dtype=np.int64))})
                entry.asked_dropped += int(catalogue.asked[here].sum(dtype=np.int64))
        for split, which in splits.items():
            if count := int((mine & packed & which).sum()):
                _add(entry.examples_packed, {split: count})
        here = mine & packed
        entry.tokens_packed += int(kept.lengths[here].sum(dtype=np.int64))
        entry.tokens_truncated += int(lost[here].sum())
        entry.examples_truncated += int((lost[here] > 0).sum())
        entry.examples_without_labels += int((mine & unlabelled).sum())
        entry.asked_truncated += int(asked_lost[here].sum())
        entry.asked_encoded += int(catalogue.asked[mine].sum(dtype=np.int64))


def account_shards(ledger: Ledger, names: Sequence[str], catalogue: Catalogue, results: Sequence[PackResult]) -> None:
    """What was really written: labels as they stand in the shards, and padding."""
    for result in results:
        for part, count in result.trained.items():
            ledger.sources[names[catalogue.parts[part].source]].labels_trained += count
        for part, count in result.heads.items():
            ledger.sources[names[catalogue.parts[part].source]].labels_head += count
        for part, count in result.padding.items():
            entry = ledger.sources[names[catalogue.parts[part].source]]
            _add(entry.tokens_created, {"alignment": count})
            entry.tokens_packed += count
        # What is written, not what was planned: so that the ledger closes only if the two agree.
        for part, count in result.written.items():
            entry = ledger.sources[names[catalogue.parts[part].source]]
            entry.labels_not_asked += count - result.trained.get(part, 0) - result.heads.get(part, 0)


def _add(totals: dict[str, int], more: dict[str, int]) -> None:
    for key, count in more.items():
        if count:
            totals[key] = totals.get(key, 0) + count
