"""The ledger as a flow: from sources over rows, examples and tokens to trained tokens.

Node names contain a space or a colon, which source names never do.
"""

from dataclasses import dataclass, field

from ....schemas.ledger import Ledger, SourceLedger
from ....schemas.reasons import DECISIONS, LOSSES, reasons_of
from ....schemas.report import Flow, LedgerFlow, Link, Reject
from ....schemas.units import plural, share

USED, BLANK = "used rows", "blank rows"
FOUND, MADE = "found examples", "made examples"
ENCODED, PACKED = "encoded tokens", "packed tokens"
TRAINED, SUPERVISED = "trained tokens", "supervised tokens"
HEADS, MASKED = "first tokens of pieces", "masked tokens"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Rejects:
    """Examples of rejected rows."""

    shown: list[Reject] = field(default_factory=list)
    file: str | None = None
    """The file that lists all rejected rows."""


def flow_of(ledger: Ledger, rejects: Rejects | None = None) -> Flow:
    """The flow of a run's ledger, or of a plan's.

    Args:
        rejects: None if unknown.
    """
    rejects = rejects or Rejects()
    fates = [_fate(name, {name: entry}, entry) for name, entry in ledger.sources.items()]
    total = ledger.total()
    if len(fates) > 1:
        fates.insert(0, _fate(ALL, ledger.sources, total))
    return Flow(
        sentence=_sentence(total),
        fates=fates,
        reasons=reasons_of(total),
        rejects=rejects.shown,
        rejected=rejected_of(total),
        rejects_file=rejects.file,
    )


def rejected_of(total: SourceLedger) -> dict[str, int]:
    """Unusable rows and examples by reason, most frequent first."""
    out = dict(total.rows_rejected)
    for reason, number in total.examples_dropped.items():
        if reason not in DECISIONS:
            out[reason] = out.get(reason, 0) + number
    return dict(sorted(out.items(), key=lambda one: (-one[1], one[0])))


def asked_left(entry: SourceLedger) -> int:
    """Packed tokens that the mask selects for training. First tokens of pieces are among them, though never trained."""
    return entry.asked_encoded + entry.asked_repeated - entry.asked_truncated - entry.asked_dropped


def is_packed(entry: SourceLedger) -> bool:
    """Whether shards were written, so that trained labels are counted."""
    return bool(entry.labels_trained or entry.labels_head or entry.labels_not_asked)


def _fate(name: str, sources: "dict[str, SourceLedger]", entry: SourceLedger) -> LedgerFlow:
    rows, tokens = _Links(), _Links()
    for source, one in sources.items():
        rows.add(source, USED, one.rows_used, "kept")
        rows.reasons(source, "rejected", one.rows_rejected, "lost")
        rows.reasons(source, "filtered", one.rows_filtered, "lost")
        rows.add(source, BLANK, one.rows_blank, "lost")
        tokens.add(source, ENCODED, one.tokens_encoded, "kept")
    examples = _Links()
    if entry.examples_skipped:
        examples.add(FOUND, MADE, entry.examples_made, "kept")
        examples.reasons(FOUND, "never made", entry.examples_skipped, "lost")
    examples.reasons(MADE, "packed", entry.examples_packed, "kept")
    examples.reasons(MADE, "dropped", entry.examples_dropped, "lost")
    for reason, number in entry.tokens_created.items():
        tokens.add(f"created: {reason}", ENCODED, number, "created")
    tokens.add(ENCODED, PACKED, entry.tokens_packed, "kept")
    tokens.reasons(ENCODED, "truncated", entry.tokens_truncated, "lost")
    tokens.reasons(ENCODED, "dropped", entry.tokens_dropped, "lost")
    if is_packed(entry):
        tokens.add(PACKED, TRAINED, entry.labels_trained, "trained")
        tokens.add(PACKED, HEADS, entry.labels_head, "untrained")
        tokens.add(PACKED, MASKED, entry.labels_not_asked, "untrained")
    else:
        tokens.add(PACKED, SUPERVISED, asked_left(entry), "trained")
        tokens.add(PACKED, MASKED, entry.tokens_packed - asked_left(entry), "untrained")
    return LedgerFlow(name, rows.links, examples.links, tokens.links)


class _Links:
    """Collects links and leaves out empty ones."""

    def __init__(self) -> None:
        self.links: list[Link] = []

    def add(self, source: str, target: str, number: int, kind: str) -> None:
        if number:
            self.links.append(Link(source, target, number, kind))

    def reasons(self, source: str, what: str, numbers: dict[str, int], kind: str) -> None:
        for reason, number in numbers.items():
            self.add(source, f"{what}: {reason}", number, kind)


def _sentence(total: SourceLedger) -> str:
    examples = sum(total.examples_packed.values())
    are = "is" if examples == 1 else "are"
    which = "all packed as" if examples == total.examples_made else f"of which {examples:,} {are} packed as"
    words = [
        f"{plural(total.rows_used, 'row')} of {total.rows_read:,} "
        f"{'was' if total.rows_used == 1 else 'were'} used and gave {plural(total.examples_made, 'example')}, "
        f"{which} {plural(total.tokens_packed, 'token')}."
    ]
    whole = total.tokens_encoded
    lost = [*_lost("truncated", total.tokens_truncated), *_lost("dropped", total.tokens_dropped)]
    if lost and whole:
        sum_lost = sum(number for _, number in lost)
        most = sorted(lost, key=lambda one: -one[1])[:3]
        largest = ", ".join(f"{what} {share(number / whole)}" for what, number in most)
        words.append(f"{share(sum_lost / whole)} of the encoded tokens are lost: {largest}.")
    elif whole:
        words.append("No token was lost.")
    rejected = sum(rejected_of(total).values())
    if rejected:
        words.append(f"{plural(rejected, 'row or example', 'rows or examples')} could not be used.")
    return " ".join(words)


def _lost(what: str, numbers: dict[str, int]) -> list[tuple[str, int]]:
    return [(f"{LOSSES.get(reason, what)} (`{reason}`)", number) for reason, number in numbers.items() if number]
