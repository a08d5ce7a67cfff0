"""The lines of a ledger in sections, as the terminal's table and the card of a dataset show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...schemas.ledger import Ledger, SourceLedger
from ...schemas.reasons import NOT_DRAWN

ALL = "all"
"""Name of the column with the sum over all sources."""
Stress = Literal["", "head", "detail", "cut", "trained"]
"""How a line stands out: the first of its section, a detail, tokens that were cut off, labels that are trained."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line; zeros in all columns are left out."""

    label: str
    """In words; a reason's key comes from the manifest."""
    values: tuple[float, ...]
    """One for each column."""
    inner: bool = False
    """Whether it is a part of the line above that is not."""
    stress: Stress = ""


def ledger_columns(ledger: Ledger, *, sources: bool = True) -> tuple[list[str], list[SourceLedger]]:
    """Names and counts of a ledger's columns: by source and in total, or only in total without `sources`."""
    names = list(ledger.sources) if sources else []
    columns = [ledger.sources[name] for name in names]
    if len(names) != 1:
        names.append(ALL)
        columns.append(ledger.total())
    return names, columns


def _short(value: float) -> float:
    """With six digits; whole numbers as such."""
    return int(value) if value == int(value) else float(f"{value:.6g}")


def ledger_sections(columns: Sequence[SourceLedger]) -> list[list[Line]]:
    """Rows, examples, tokens and labels, each as a section of lines."""
    sections: list[list[Line]] = []

    def add(label: str, values: Sequence[float], stress: Stress, inner: bool) -> None:
        if any(values):
            sections[-1].append(Line(label, tuple(values), inner, stress))

    def head(label: str, field: str, stress: Stress = "head") -> None:
        sections.append([])
        add(label, [getattr(column, field) for column in columns], stress, inner=False)

    def outer(label: str, field: str) -> None:
        add(label, [getattr(column, field) for column in columns], "detail", inner=False)

    def part(label: str, field: str, stress: Stress = "") -> None:
        add(label, [getattr(column, field) for column in columns], stress, inner=True)

    def reasons(label: str, field: str, stress: Stress = "detail") -> None:
        for key in sorted({key for column in columns for key in getattr(column, field)}):
            what = "not drawn" if key == NOT_DRAWN else label
            add(f"{what}: {key}", [getattr(column, field).get(key, 0) for column in columns], stress, inner=True)

    head("rows read", "rows_read")
    part("used", "rows_used")
    reasons("rejected", "rows_rejected")
    reasons("filtered", "rows_filtered")
    part("blank", "rows_blank", "detail")
    head("examples made", "examples_made")
    reasons("packed", "examples_packed")
    reasons("dropped", "examples_dropped")
    reasons("never made", "examples_skipped")
    part("of these, in evaluation rows", "examples_contaminated")
    part("of these, further copies", "examples_repeated", "detail")
    part("copies in a row with another one", "copies_together", "detail")
    part("of these, truncated", "examples_truncated", "detail")
    part("of these, in pieces", "examples_split", "detail")
    part("of these, without a label", "examples_without_labels", "detail")
    head("tokens encoded", "tokens_encoded")
    reasons("created", "tokens_created")
    reasons("truncated", "tokens_truncated", "cut")
    reasons("dropped", "tokens_dropped")
    part("packed", "tokens_packed")
    head("labels trained", "labels_trained", "trained")
    weights = [column.weight_trained for column in columns]
    add("sum of loss weights", [_short(one) for one in weights], "trained", inner=True)
    whole = weights[-1] or 1.0  # the sum over all sources, or the only column
    add("of the loss, in %", [_short(100 * one / whole) for one in weights], "trained", inner=True)
    part("lost at heads of pieces", "labels_head", "detail")
    part("masked", "labels_not_asked", "detail")
    outer("turns trained", "turns_trained")
    part("without an end-of-turn token", "turns_without_end", "detail")
    part("ended by the next header", "turns_stop_next", "detail")
    outer("cuts through trained turns", "turns_cut")
    outer("tokens across a boundary", "straddles")
    reasons("left out by the template", "template_dropped")
    reasons("unknown role", "unknown_roles")
    reasons("special token in contents", "control_tokens")
    reasons("sampling proof", "turns_sampled")
    return sections
