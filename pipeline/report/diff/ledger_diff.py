"""Compares the ledgers of two datasets line by line, and their splits figure by figure."""

from collections.abc import Iterator, Mapping

from ....schemas.ledger import Ledger, SourceLedger
from ....schemas.manifest import Manifest, SplitRecord
from .changes import ALL, LedgerLine, Measure

LABELS = {
    "bytes_read": "bytes read",
    "rows_read": "rows read",
    "rows_used": "rows used",
    "rows_rejected": "rows rejected",
    "rows_filtered": "rows filtered",
    "rows_blank": "rows blank",
    "examples_made": "examples made",
    "examples_packed": "examples packed",
    "examples_dropped": "examples dropped",
    "examples_skipped": "examples never made",
    "examples_repeated": "further copies of examples",
    "examples_truncated": "packed examples truncated",
    "examples_split": "packed examples split",
    "examples_without_labels": "packed examples without a label",
    "examples_contaminated": "examples that share text with evaluation rows",
    "tokens_encoded": "tokens encoded",
    "tokens_created": "tokens created",
    "tokens_truncated": "tokens truncated",
    "tokens_dropped": "tokens dropped",
    "tokens_packed": "tokens packed",
    "labels_trained": "labels trained",
    "labels_head": "labels lost at heads of pieces",
    "labels_not_asked": "packed tokens masked",
    "asked_encoded": "supervised tokens",
    "asked_repeated": "supervised tokens of further copies",
    "asked_truncated": "supervised tokens truncated",
    "asked_dropped": "supervised tokens dropped",
    "turns_trained": "turns trained",
    "turns_without_end": "turns without an end-of-turn token",
    "turns_stop_next": "turns ended by the next header",
    "turns_cut": "cuts through trained turns",
    "straddles": "tokens across a boundary",
    "boundaries": "boundaries",
    "template_dropped": "left out by the template",
    "unknown_roles": "unknown role",
    "control_tokens": "special token in contents",
    "turns_sampled": "sampling proof of turns",
    "weight_trained": "sum of loss weights",
}
"""Words for each field of `SourceLedger`, in the order of a diff."""


def ledger_change(a: Ledger, b: Ledger) -> list[LedgerLine]:
    """Return every line that is not 0 in both: the sum of all sources first, if there are several, then each source."""
    names = [*a.sources, *(name for name in b.sources if name not in a.sources)]
    pairs = [(name, a.sources.get(name, SourceLedger()), b.sources.get(name, SourceLedger())) for name in names]
    if len(pairs) > 1:
        pairs.insert(0, (ALL, a.total(), b.total()))
    return [line for name, one, other in pairs for line in _lines(name, one, other)]


def _lines(source: str, a: SourceLedger, b: SourceLedger) -> Iterator[LedgerLine]:
    for name, label in LABELS.items():
        one, other = getattr(a, name), getattr(b, name)
        if isinstance(one, Mapping):
            for reason in sorted({*one, *other}):
                numbers = one.get(reason, 0), other.get(reason, 0)
                if any(numbers):
                    yield LedgerLine(source, name, reason, f"{label}: {reason}", *numbers)
        elif one or other:
            yield LedgerLine(source, name, None, label, one, other)


def packing_change(a: Manifest, b: Manifest) -> list[Measure]:
    """Return the figures of all splits of both datasets, changed or not."""
    splits = [*a.splits, *(name for name in b.splits if name not in a.splits)]
    out = []
    for split in splits:
        one, other = ({} if split not in each.splits else _figures(each, each.splits[split]) for each in (a, b))
        for key in [*one, *(key for key in other if key not in one)]:
            name, unit = key
            out.append(Measure(split, name, unit, one.get(key), other.get(key)))
    return out


def _figures(manifest: Manifest, split: SplitRecord) -> dict[tuple[str, str], float]:
    tokens, rows = split.tokens, split.rows
    out: dict[tuple[str, str], float] = {("pairs" if manifest.preference else "rows", "count"): rows}
    if split.windows:
        bound = sum(window.bound for window in split.windows)
        pieces = sum(window.pieces for window in split.windows)
        out[("bound", "count")] = bound
        out[("gap to the bound", "share")] = rows / bound - 1 if bound else 0.0
        out[("fill", "share")] = split.fill(manifest.max_length)
        out[("pieces", "count")] = pieces
        out[("pieces a row", "number")] = pieces / max(rows, 1)
    out[("tokens", "count")] = tokens
    out[("tokens a row", "number")] = tokens / max(rows, 1)
    out[("labels trained", "count")] = split.trained
    out[("trained share", "share")] = split.trained_share
    out[("shards", "count")] = len(split.shards)
    out[("bytes", "bytes")] = sum(shard.bytes for shard in split.shards)
    return out
