"""Builds a run's ledger from the separate counts of encoding, planning and packing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import MaskConfig
from ...schemas.config.hints import setting
from ...schemas.ledger import Ledger, SourceLedger
from ...schemas.ragged import sums_of
from ...schemas.units import plural
from ...stages.mask.sampling import Outcome
from ...stages.tokenize.content_check import MOST, OTHERS
from ..encode.parts import PartRecord
from ..encode.sampled import sampled_turns
from ..inputs.scan import NOT_TAKEN
from .document_index import contaminated
from .select import Chosen
from .task import PackResult

_BY_LENGTH = ("cut_untrained", "cut_empty", "cut_equal", "overlong")
"""Reasons for dropped examples that a larger limit undoes."""
_EMPTY = frozenset({"empty", "empty_completion"})
"""Reasons for rejected rows that have the format's columns."""
_BY_TEMPLATE = frozenset({"lost_content", "template_error"})
"""Reasons for rejected rows that another chat template undoes."""


def fate_of_rows(total: SourceLedger, looked: str = "") -> str:
    """Say what happened to the rows, most frequent reason first: `10 rows, 2 gave examples (bad_json 5, too_long
    3); of 4 examples, all were left out (untrained 4)`.
    """

    def listed(reasons: dict[str, int]) -> str:
        named = sorted(reasons.items(), key=lambda one: -one[1])
        return f" ({', '.join(f'{reason} {count:,}' for reason, count in named)})" if named else ""

    rows = f"{plural(total.rows_read, 'row')}{looked}, {total.rows_used:,} gave examples"
    said = f"{rows}{listed({**total.rows_rejected, **total.rows_filtered})}"
    dropped = sum(total.examples_dropped.values())
    if not dropped:
        return said
    every = "all were" if dropped == total.examples_made > 1 else plural(dropped, "was", "were")
    every = "it was" if total.examples_made == 1 else every
    return f"{said}; of {plural(total.examples_made, 'example')}, {every} left out{listed(total.examples_dropped)}"


def nothing_left(total: SourceLedger, rejects: str, fits: str = "") -> str:
    """Say what to do if no example is left.

    Args:
        fits: a sentence with the format that the rows fit instead; see `formats.what_fits`.
    """
    if total.rows_read and total.rows_blank == total.rows_read:
        return "All are blank: remove the file, or fill it"
    too_short = sum(total.examples_dropped.get(reason, 0) for reason in _BY_LENGTH)
    if 2 * too_short > total.rows_read:
        return "A packed row is too short for them: raise truncate.max_length (--max-length), or the other limits"
    if total.examples_dropped.get("untrained", 0) >= total.tokens_encoded + sum(total.tokens_created.values()) > 0:
        return (
            "They have one token each, and the first token of a document is never trained: check which column is read "
            f"({setting('sources.0.keys.text', 'body')}), or pack them untrained ({setting('keep_untrained', 'true')})"
        )
    if 2 * total.examples_dropped.get("untrained", 0) > total.examples_made > 0:
        return (
            "The mask trains nothing in them: check that conversations have messages of the assistant (mask completion "
            f"trains the last message only if it is one), or take another mask ({setting('mask', 'all')})"
        )
    if total.rows_used and not total.rows_rejected:
        return "Check truncate.max_length, the mask, the filters and the limits"
    if fits:
        return f"All are in {rejects}. {fits}"
    if _EMPTY.issuperset(total.rows_rejected):
        return f"All are in {rejects}. Their columns are there but empty: check the program that wrote them"
    if _BY_TEMPLATE.issuperset(total.rows_rejected):
        return f"All are in {rejects}. Check tokenizer.chat_template"
    return f"All are in {rejects}. Check each source's format, and its keys ({setting('sources.0.keys.text', 'body')})"


def open_ledger(
    names: Sequence[str],
    sources: Sequence[int],
    records: Sequence[PartRecord],
    not_taken: Mapping[str, int],
    mask: MaskConfig,
) -> Ledger:
    """Make a ledger with the counts of encoding: bytes, rows, examples made, tokens encoded.

    Args:
        names: names of the sources.
        sources: the source of each record.
        not_taken: by source, rows that were scanned but not encoded because of `max_rows`.
        mask: says which turns are trained, and so whose proofs count.
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
        _add(entry.template_dropped, record.dropped)
        entry.prompts_rewritten += record.rewritten
        _add(entry.unknown_roles, {role: rows for role, (rows, _) in record.roles.items()}, MOST)
        _add(entry.control_tokens, {token: rows for token, (rows, _) in record.control.items()}, MOST)
        _add(entry.turns_sampled, sampled_turns(record, mask))
        entry.straddles += record.straddles
        entry.boundaries += record.boundaries
    if mask.prove is None and ledger.total().turns_sampled.keys() <= {Outcome.EXACT}:
        for entry in ledger.sources.values():  # nothing to say, so the ledger is as without a sample
            entry.turns_sampled.clear()
    for name, count in not_taken.items():
        ledger.sources[name].rows_read += count
        _add(ledger.sources[name].rows_filtered, {NOT_TAKEN: count})
    return ledger


def account_documents(
    ledger: Ledger, names: Sequence[str], chosen: Chosen, splits: Mapping[str, NDArray[np.bool_]]
) -> list[int]:
    """Add what planning decided about every document.

    Returns:
        For each source, the supervised tokens that are first in a piece; pieces cut by the strategy are not included.
    """
    account = _Documents(ledger, names, chosen)
    account.left_out()
    account.packed(splits)
    account.truncated()
    account.copies()
    return account.sums(account.heads)


class _Documents:
    """Adds up counts of documents by source."""

    def __init__(self, ledger: Ledger, names: Sequence[str], chosen: Chosen) -> None:
        self.entries = [ledger.sources[name] for name in names]
        self.chosen = chosen
        catalogue = chosen.catalogue
        self.count = len(catalogue)
        self.sources = [part.source for part in catalogue.parts]
        self.bounds = catalogue.part_starts
        packed = chosen.packed
        once = chosen.sections(packed, copies=False)
        self.fresh = once.tokens(self.count)
        """(N,) tokens kept of each document, without counting copies; 0 for documents left out."""
        self.overlap = once.overlap(self.count)
        self.supervised = np.where(packed, catalogue.supervised_kept, 0).astype(np.int64)
        """(N,) how many of them are supervised."""
        labels = chosen.labels()
        if chosen.split is not None:
            documents = chosen.split.documents
            self.supervised[documents] = np.where(packed[documents], chosen.split.supervised, 0)
        self.unlabelled = packed & (labels <= 0)
        self.heads = np.where(packed, self.supervised - labels, 0) * chosen.selection.copies
        """(N,) how many supervised tokens are first in a piece, over all copies."""

    def sums(self, values: NDArray[np.integer[Any]] | NDArray[np.bool_]) -> list[int]:
        """Return the sum of (N,) values for each source."""
        out = [0] * len(self.entries)
        for source, total in zip(self.sources, sums_of(values, self.bounds).tolist(), strict=True):
            out[source] += total
        return out

    def add(self, field: str, values: NDArray[np.integer[Any]] | NDArray[np.bool_], reason: str | None = None) -> None:
        """Add the sums to a field of every source's entry, under a reason if the field has reasons."""
        for entry, total in zip(self.entries, self.sums(values), strict=True):
            if reason is not None:
                _add(getattr(entry, field), {reason: total})
            else:
                setattr(entry, field, getattr(entry, field) + total)

    def left_out(self) -> None:
        """Count the examples that are left out as a whole, by reason, and their tokens."""
        catalogue, selection = self.chosen.catalogue, self.chosen.selection
        for reason in selection.reasons[1:]:
            which = selection.left_out(reason)
            self.add("examples_dropped", which, reason)
            self.add("tokens_dropped", np.where(which, catalogue.lengths, 0), reason)
        if any(part.contaminated for part in catalogue.parts):
            self.add("examples_contaminated", contaminated(catalogue))
        gone = ~selection.stays
        self.add("asked_dropped", np.where(gone, catalogue.supervised, 0))
        self.add("asked_encoded", catalogue.supervised)

    def packed(self, splits: Mapping[str, NDArray[np.bool_]]) -> None:
        """Count packed examples."""
        chosen = self.chosen
        for split, which in splits.items():
            self.add("examples_packed", chosen.packed & which, split)
        self.add("examples_without_labels", self.unlabelled)
        self.add("turns_trained", np.where(chosen.packed, chosen.catalogue.turns, 0))
        self.add("turns_stop_next", np.where(chosen.packed, chosen.catalogue.next_stops, 0))
        self.add("turns_without_end", np.where(chosen.packed, chosen.catalogue.turns_without_end, 0))
        if chosen.split is not None:
            # A split document may have only one piece left, if the others are untrained.
            cut = np.zeros(self.count, dtype=np.bool_)
            cut[chosen.split.documents] = True
            self.add("examples_split", cut & chosen.packed)

    def truncated(self) -> None:
        """Count tokens that packed examples lose."""
        catalogue, packed = self.chosen.catalogue, self.chosen.packed
        lost = np.where(packed, catalogue.lengths - (catalogue.high - catalogue.low), 0)
        by_row = lost
        for reason, cut in (
            ("max_prompt_length", catalogue.prompt_cut),
            ("max_completion_length", catalogue.completion_cut),
        ):
            if cut is not None:
                self.add("tokens_truncated", np.where(packed, cut, 0), reason)
                by_row = by_row - np.where(packed, cut, 0)
        self.add("tokens_truncated", by_row, "max_length")
        self.add("examples_truncated", lost > 0)
        self.add("asked_truncated", np.where(packed, catalogue.supervised - catalogue.supervised_kept, 0))
        # untrained pieces of split examples
        pieces = np.where(packed, catalogue.high - catalogue.low - self.fresh, 0)
        self.add("tokens_dropped", pieces, "untrained_piece")
        self.add("asked_dropped", np.where(packed, catalogue.supervised_kept - self.supervised, 0))

    def copies(self) -> None:
        """Count tokens of all copies."""
        copies = self.chosen.selection.copies.astype(np.int64)
        further = np.maximum(copies - 1, 0)
        self.add("tokens_packed", copies * (self.fresh + self.overlap))
        self.add("tokens_created", copies * self.overlap, "overlap")
        self.add("tokens_created", further * self.fresh, "repeats")
        self.add("asked_repeated", further * self.supervised)
        self.add("examples_repeated", further)


def account_shards(ledger: Ledger, names: Sequence[str], results: Sequence[PackResult]) -> None:
    """Add what was written: labels in the shards, and padding."""
    for result in results:
        for source, count in result.trained_by.items():
            ledger.sources[names[source]].labels_trained += count
        for source, weight in result.weights_by.items():
            ledger.sources[names[source]].weight_trained += weight
        for source, count in result.heads_by.items():
            ledger.sources[names[source]].labels_head += count
        for source, count in result.padding_by.items():
            entry = ledger.sources[names[source]]
            _add(entry.tokens_created, {"alignment": count})
            entry.tokens_packed += count
        # Count what was written, not what was planned, so that the ledger closes only if the two agree.
        for source, count in result.written_by.items():
            entry = ledger.sources[names[source]]
            entry.labels_not_asked += count - result.trained_by.get(source, 0) - result.heads_by.get(source, 0)


def account_cuts(ledger: Ledger, names: Sequence[str], cuts: Sequence[int]) -> None:
    """Add cuts through trained turns, by source."""
    for name, count in zip(names, cuts, strict=True):
        ledger.sources[name].turns_cut += count


def _add(totals: dict[str, int], more: dict[str, int], most: int | None = None) -> None:
    """Add counts; beyond `most` keys, to those of `OTHERS`."""
    for key, count in more.items():
        if most is not None and key not in totals and len(totals) >= most:
            key = OTHERS
        if count:
            totals[key] = totals.get(key, 0) + count
