"""Opens a run's ledger with the counts of encoding, and says in words what it holds."""

from collections.abc import Mapping, Sequence

from ...schemas.config.config import RunConfig
from ...schemas.ledger import Ledger, SourceLedger
from ...schemas.units import plural
from ...stages.mask.sampling import Outcome
from ...stages.tokenize.content_check import MOST, OTHERS, ROLES, TOKENS
from ...stages.tokenize.encode import DROPPED as TEMPLATE_DROPPED
from ..encode.parts import DROPPED, REJECTED, PartRecord
from ..encode.sampled import sampled_turns
from ..inputs.scan import NOT_TAKEN

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
            "(keys.text=body), or pack them untrained (keep_untrained=true)"
        )
    if 2 * total.examples_dropped.get("untrained", 0) > total.examples_made > 0:
        return (
            "The mask trains nothing in them: check that conversations have messages of the assistant; mask completion "
            "trains the last message only if it is one, mask=assistant trains each of them"
        )
    if total.rows_used and not total.rows_rejected:
        return "Check truncate.max_length, the mask, the filters and the limits"
    if fits:
        return f"All are in {rejects}. {fits}"
    if _EMPTY.issuperset(total.rows_rejected):
        return f"All are in {rejects}. Their columns are there but empty: check the program that wrote them"
    if _BY_TEMPLATE.issuperset(total.rows_rejected):
        return f"All are in {rejects}. Check tokenizer.chat_template"
    return f"All are in {rejects}. Check each source's format, and its keys (keys.text=body)"


def open_ledger(
    config: RunConfig, sources: Sequence[int], records: Sequence[PartRecord], not_taken: Mapping[str, int]
) -> Ledger:
    """Make a ledger with the counts of encoding: bytes, rows, examples made, tokens encoded.

    Args:
        config: its masks say which turns are trained, and so whose proofs count.
        sources: the source of each record.
        not_taken: by source, rows that were scanned but not encoded because of `max_rows`.
    """
    ledger = Ledger({source.name: SourceLedger() for source in config.sources})
    masks = [config.mask_of(source) for source in config.sources]
    for source, record in zip(sources, records, strict=True):
        entry = ledger.sources[config.sources[source].name]
        entry.bytes_read += record.bytes_read
        entry.rows_read += record.rows
        entry.rows_used += record.rows_used
        entry.rows_blank += record.blank
        counts = record.counts
        for kind in (REJECTED, "rows_filtered", "examples_skipped", DROPPED, TEMPLATE_DROPPED):
            _add(getattr(entry, kind), counts.found.get(kind, {}))
        for kind in (ROLES, TOKENS):
            _add(getattr(entry, kind), counts.found.get(kind, {}), MOST)
        entry.examples_made += counts.examples + counts.of(DROPPED)
        entry.tokens_encoded += counts.tokens - counts.end_of_sequence - counts.special
        _add(entry.tokens_created, {"end_of_sequence": counts.end_of_sequence, "special": counts.special})
        _add(entry.turns_sampled, sampled_turns(counts, masks[source]))
        entry.straddles += counts.straddles
        entry.boundaries += counts.boundaries
    if config.mask.prove is None and ledger.total().turns_sampled.keys() <= {Outcome.EXACT}:
        for entry in ledger.sources.values():  # nothing to say, so the ledger is as without a sample
            entry.turns_sampled.clear()
    for name, count in not_taken.items():
        ledger.sources[name].rows_read += count
        _add(ledger.sources[name].rows_filtered, {NOT_TAKEN: count})
    return ledger


def _add(totals: dict[str, int], more: dict[str, int], most: int | None = None) -> None:
    """Add counts; beyond `most` keys, to those of `OTHERS`."""
    for key, count in more.items():
        if most is not None and key not in totals and len(totals) >= most:
            key = OTHERS
        if count:
            totals[key] = totals.get(key, 0) + count
