"""The page of a report: one HTML file without scripts, from one template that escapes every text.

Shapes are drawn in SVG coordinates from 0 to 100, stretched to the page; labels are HTML beside them, so that they keep
their size on a phone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ...schemas.dataset.ledger import SourceLedger
from ...schemas.escape import escape
from ...schemas.report.flow import Flow
from ...schemas.report.length_choice import Choice, Histogram
from ...schemas.report.report import Packing, Report, SplitFigures
from ...schemas.report.shown_rows import ShownRow
from ...schemas.units import plural, share
from .grid import Section, clipped
from .lengths.advised import lost_at
from .sections import facts, lead, sections

MAX_BYTES = 300_000
"""Maximum number of bytes of a page, unless names are very long."""
_TEXT = 20_000
"""Maximum number of characters of a text."""
_FLOWS = 12
"""Maximum number of sources that have a bar of their own."""
_STEPS = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)]
"""Shares between two lines of a scale."""
_LABEL = 8.0
"""Least distance of two labels of an axis: the width of `131,072`, and half of it for one that ends at its place."""
Labels = Sequence[tuple[float, str]]
"""(place on an axis, text)."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars, with a line and marks over them."""

    title: str
    alt: str
    bars: Sequence[tuple[float, float, float, str]]
    """(x, width, height, text for the mouse)."""
    ticks: Labels
    line: Sequence[tuple[float, float]] = ()
    """(x, height) of its corners."""
    scale: Labels = ()
    """The heights that are marked, for the line."""
    marks: Labels = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar whose parts add up to the whole."""

    name: str
    words: str
    parts: Sequence[tuple[str, float, float, str]]
    """(class, x, width, text for the mouse)."""


def report_html(report: Report) -> bytes:
    """The page of a run or a plan. It has fewer rows as text, rejects and hits if they need more than `MAX_BYTES`."""
    page = _page(report)
    shorter = _halved(report)
    return page if len(page) <= MAX_BYTES or shorter == report else report_html(shorter)


def _halved(report: Report) -> Report:
    """The report with half of the rows as text, the rejects and the hits."""
    training = report.training
    flow = report.flow
    contamination = report.contamination
    return replace(
        report,
        training=training and replace(training, rows=training.rows[: len(training.rows) // 2]),
        flow=flow and replace(flow, rejects=flow.rejects[: len(flow.rejects) // 2]),
        contamination=contamination
        and replace(contamination, shown=contamination.shown[: len(contamination.shown) // 2]),
    )


def _page(report: Report) -> bytes:
    choice = report.choice
    packing = report.packing
    training = report.training
    return page_html(
        f"{'Plan for' if report.kind == 'plan' else 'Packing report of'} {report.name}",
        f"{lead(report)}. {report.made_at[:16].replace('T', ' ')} UTC, packtrain {report.packtrain}.",
        sections(report),
        facts=list(facts(report)),
        charts={
            "choice": [lengths_chart(choice)] if choice is not None and choice.documents else [],
            "packing": fills_charts(packing) if packing is not None else [],
        },
        stacks=token_stacks(report.flow) if report.flow is not None else [],
        rows=training.rows if training is not None else [],
        rows_absent=training.rows_absent if training is not None else None,
        configuration=report.made.configuration if report.made is not None else "",
    )


def page_html(title: str, lead: str, sections: Sequence[Section], **drawn: Any) -> bytes:
    """A page of sections.

    Args:
        drawn: what is shown beside them: facts, charts by the name of their section, stacks (in `flow`), rows as text
            or why there are none (in `training`), the configuration (in `made`).
    """
    nothing: dict[str, Any] = {"charts": {}}
    nothing |= dict.fromkeys(("facts", "stacks", "rows", "rows_absent", "configuration"), ())
    return _template().render({"title": title, "lead": lead, "sections": sections} | nothing | drawn).encode()


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(exact="{:,}".format, plural=plural, strip=strip)
    return environment.get_template("page.html.jinja")


def _shown(value: object) -> object:
    """Every text that the template inserts: not too long, and without characters that hide or reorder text."""
    return escape(clipped(value, _TEXT)) if type(value) is str else value


def lengths_chart(choice: Choice) -> Chart:
    """What each length loses, over the histogram of lengths."""
    points = choice.points
    edges = choice.lengths.edges
    counts = choice.lengths.counts
    shortest = next((edge for edge, count in zip(edges, counts, strict=False) if count), 1)
    low = max(min(points[0].max_length, shortest), 1)
    high = max(points[-1].max_length, edges[-1], low + 1)

    def x(length: float) -> float:
        """Logarithmic, from 2 to 98."""
        return round(2 + 96 * (math.log(max(length, low)) - math.log(low)) / (math.log(high) - math.log(low)), 2)

    losses = {point.max_length: lost_at(point) for point in points}
    largest_loss = max(losses.values())
    # At most four lines: a largest loss of 7 % has lines at 2, 4 and 6 %.
    step = next((step for step in _STEPS if largest_loss <= 4 * step), 1.0)
    advised = choice.advice.max_length if choice.advice is not None else choice.max_length
    marks = [(x(choice.max_length), f"configured {choice.max_length:,}")]
    if advised != choice.max_length:
        marks.append((x(advised), f"advised {advised:,}"))
    bars = "documents" if choice.pairs is None else "pairs"
    return Chart(
        f"Line: the share of trained tokens that each max_length loses. Bars: {bars} by length, at most "
        f"{max(counts):,} in one",
        "; ".join(f"{length:,} loses {share(loss, 2)}" for length, loss in losses.items()),
        _bars(edges, counts, x),
        _spaced([(x(length), f"{length:,}") for length in losses]),
        [(x(length), round(90 * loss / (largest_loss or 1.0), 2)) for length, loss in losses.items()],
        [
            (round(90 * step * line / largest_loss, 2), share(step * line, 4))
            for line in range(1, int(largest_loss / step) + 1)
        ],
        marks,
    )


def _spaced(labels: Labels) -> Labels:
    """The labels of an axis without those that would run into the one before."""
    kept = list[tuple[float, str]]()
    for place, text in labels:
        if not kept or place - kept[-1][0] >= _LABEL:
            kept.append((place, text))
    return kept


def fills_charts(packing: Packing) -> list[Chart]:
    """How full the rows are, split by split."""
    return [_fills_chart(split, split.fills) for split in packing.splits if split.fills is not None]


def _fills_chart(split: SplitFigures, fills: Histogram) -> Chart:
    ticks = [(2 + 96 * quarter / 4, f"{25 * quarter} %") for quarter in range(5)]
    alt = f"{split.rows:,} rows, {share(split.fill, 2)} full on average"
    bars = _bars(fills.edges, fills.counts, lambda value: round(2 + 96 * value, 2), share)
    return Chart(f"Rows of {split.split} by how full they are: {alt}", alt, bars, ticks)


def _bars(
    edges: Sequence[float],
    counts: Sequence[int],
    x: Callable[[float], float],
    named: Callable[[float], str] = "{:,.0f}".format,
) -> list[tuple[float, float, float, str]]:
    top = max(counts, default=0) or 1
    return [
        (
            x(low),
            max(round(x(high) - x(low) - 0.15, 2), 0.15),
            round(90 * count / top, 2),
            f"{named(low)} to {named(high)}: {count:,}",
        )
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if count
    ]


def token_stacks(flow: Flow) -> list[Stack]:
    """Where every token went, by source."""
    order = sorted(flow.sources.items(), key=lambda source: -source[1].tokens_encoded)
    return [_stack(name, entry) for name, entry in order[:_FLOWS] if entry.tokens_encoded]


def _stack(name: str, entry: SourceLedger) -> Stack:
    parts = {
        "trained": ("trained", entry.labels_trained),
        "masked": ("seen, not trained", entry.tokens_packed - entry.labels_trained),
        "cut": ("truncated", sum(entry.tokens_truncated.values())),
        "dropped": ("dropped", sum(entry.tokens_dropped.values())),
    }
    total = sum(count for _, count in parts.values())
    begin = 0.0
    drawn = []
    for kind, (words, count) in parts.items():
        width = 100 * count / total
        drawn.append((kind, round(begin, 3), round(width, 3), f"{words}: {count:,}"))
        begin += width
    words = ", ".join(f"{share(count / total)} {words}" for words, count in parts.values() if count)
    return Stack(name, words, drawn)


def strip(row: ShownRow) -> list[tuple[str, float, float]]:
    """(class, x, width) of a row's documents to scale, and of what is trained of them."""
    scale = 100 / max(row.capacity, row.tokens, 1)
    shapes = list[tuple[str, float, float]]()
    begin = 0
    for document in row.documents:
        # A gap of 0.2 after each, and never nothing.
        shapes.append(("document", round(begin * scale, 3), max(round(document.tokens * scale - 0.2, 3), 0.05)))
        start = begin
        for piece in document.pieces:
            if piece.weight:
                shapes.append(("trained", round(start * scale, 3), round(piece.tokens * scale, 3)))
            start += piece.tokens
        begin += document.tokens
    return shapes
