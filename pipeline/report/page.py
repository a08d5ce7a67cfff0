"""The page of a report: one HTML file without scripts, from one template that escapes every text.

Shapes are drawn in SVG coordinates from 0 to 100, stretched to the page; labels are HTML beside them, so that they keep
their size on a phone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ...schemas.dataset.ledger import SourceLedger
from ...schemas.escape import escape
from ...schemas.report.flow import Flow
from ...schemas.report.length_choice import Choice
from ...schemas.report.report import Report
from ...schemas.report.shown_rows import ShownRow
from ...schemas.units import plural, share
from .grid import Section, clipped
from .lengths.advised import lost_at
from .sections import lead, sections

_TEXT = 20_000
"""Maximum number of characters of a text."""
_FLOWS = 12
"""Maximum number of sources that have a bar of their own."""
_STEPS = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)]
"""Distances that two lines of a scale may have, as shares: 0.000001, 0.000002, 0.000005, … 1, 2, 5."""
_LABEL = 8.0
"""Least distance between the places of two labels of an axis. `131,072` is about this wide; labels are centred on their
places, but one at the right edge ends there, and reaches further to the left."""
Labels = Sequence[tuple[float, str]]
"""(place on an axis, text)."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars, with a line and marks over them."""

    title: str
    alt: str
    """The figures of the line in words, for people who cannot see it."""
    bars: Sequence[tuple[float, float, float, str]]
    """(x, width, height, text for the mouse)."""
    line: Sequence[tuple[float, float]]
    """(x, height) of its corners."""
    scale: Labels
    """Heights of the line that are marked, and the loss at each."""
    ticks: Labels
    """Places on the axis below the bars."""
    marks: Labels
    """Places of upright lines."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar whose parts add up to its whole width, 100."""

    name: str
    """The source."""
    words: str
    """The share of each part, in words."""
    parts: Sequence[tuple[str, float, float, str]]
    """(class, x, width, text for the mouse)."""


def report_html(report: Report) -> bytes:
    """The page of a run or a plan."""
    choice = report.choice
    training = report.training
    title = f"Packing report of {report.name}"
    if report.kind == "plan":
        title = f"Plan for {report.name}"
    return page_html(
        title,
        f"{lead(report)}. {report.made_at[:16].replace('T', ' ')} UTC, packtrain {report.packtrain}.",
        sections(report),
        chart=lengths_chart(choice) if choice is not None and choice.documents else None,
        stacks=token_stacks(report.flow) if report.flow is not None else [],
        rows=training.rows if training is not None else [],
        rows_absent=training.rows_absent if training is not None else None,
        configuration=report.made.configuration if report.made is not None else "",
    )


def page_html(
    title: str,
    lead: str,
    sections: Sequence[Section],
    *,
    chart: Chart | None = None,
    stacks: Sequence[Stack] = (),
    rows: Sequence[ShownRow] = (),
    rows_absent: str | None = None,
    configuration: str = "",
) -> bytes:
    """A page of sections, and what is shown in some of them besides sentences and tables.

    Args:
        lead: a line under the title.
        chart: in the section `choice`.
        stacks: in `flow`.
        rows, rows_absent: in `training`: rows as text, or why there are none.
        configuration: in `made`.
    """
    template = _template()
    return template.render(
        title=title,
        lead=lead,
        sections=sections,
        chart=chart,
        stacks=stacks,
        rows=rows,
        rows_absent=rows_absent,
        configuration=configuration,
    ).encode()


@cache
def _template() -> Template:
    """The template of the page, read once."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # for HTML, after `finalize`
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Functions that the template calls.
    environment.globals.update(exact="{:,}".format, plural=plural, strip=strip)
    return environment.get_template("page.html.jinja")


def _shown(value: object) -> object:
    """A value as the template inserts it: a text not too long, and without characters that hide or reorder text."""
    # Not a subclass of str: `Markup` is HTML already.
    return escape(clipped(value, _TEXT)) if type(value) is str else value


@dataclass(frozen=True, slots=True)
class _LogAxis:
    """A logarithmic axis: from 256 to 131,072 each length that is compared has as much room."""

    low: float
    high: float
    """More than `low`, which is at least 1."""

    def place(self, length: float) -> float:
        """Where a length is, from 2 to 98: 2 for `low` and less. At 0 and 100, half of a mark would be cut off."""
        share_of_axis = math.log(max(length, self.low) / self.low) / math.log(self.high / self.low)
        return round(2 + 96 * share_of_axis, 2)


def lengths_chart(choice: Choice) -> Chart:
    """What each length loses, over the histogram of lengths. There is at least one document, and one length."""
    points = choice.points
    edges = choice.lengths.edges
    counts = choice.lengths.counts
    # There is one edge more than counts, which `zip` leaves out. The axis reaches from the shortest document or length
    # to the longest.
    shortest = next((edge for edge, count in zip(edges, counts, strict=False) if count), 1)
    low = max(min(points[0].max_length, shortest), 1)
    high = max(points[-1].max_length, edges[-1], low + 1)

    axis = _LogAxis(low, high)
    # Bars and the line have heights of up to 90: what is above has room for the labels of the marks.
    highest_bar = max(counts, default=0) or 1
    bars = []
    for begin, end, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            # A gap of 0.15 between bars, and no bar so narrow that it is not seen.
            x = axis.place(begin)
            width = max(round(axis.place(end) - x - 0.15, 2), 0.15)
            height = round(90 * count / highest_bar, 2)
            bars.append((x, width, height, f"{begin:,.0f} to {end:,.0f}: {count:,}"))

    losses = {point.max_length: lost_at(point) for point in points}
    largest_loss = max(losses.values())
    # Where no length loses anything, the line is at 0, and has no scale.
    line = [(axis.place(length), round(90 * loss / (largest_loss or 1.0), 2)) for length, loss in losses.items()]
    # At most four lines: a largest loss of 7 % has lines at 2, 4 and 6 %.
    step = next((step for step in _STEPS if largest_loss <= 4 * step), 1.0)
    scale = []
    for number in range(1, int(largest_loss / step) + 1):
        scale.append((round(90 * step * number / largest_loss, 2), share(step * number, digits=4)))

    ticks: list[tuple[float, str]] = []
    for length in losses:
        # A label that would run into the one before it is left out.
        if not ticks or axis.place(length) - ticks[-1][0] >= _LABEL:
            ticks.append((axis.place(length), f"{length:,}"))
    marks = [(axis.place(choice.max_length), f"configured {choice.max_length:,}")]
    if choice.advice is not None and choice.advice.max_length != choice.max_length:
        marks.append((axis.place(choice.advice.max_length), f"advised {choice.advice.max_length:,}"))
    documents = "documents" if choice.pairs is None else "pairs"
    return Chart(
        title="Line: the share of trained tokens that each max_length loses. "
        f"Bars: {documents} by length, at most {highest_bar:,} in one",
        alt="; ".join(f"{length:,} loses {share(loss, digits=2)}" for length, loss in losses.items()),
        bars=bars,
        line=line,
        scale=scale,
        ticks=ticks,
        marks=marks,
    )


def token_stacks(flow: Flow) -> list[Stack]:
    """Where every token went, by source."""
    # The largest first: what they lose is most of what is lost.
    order = sorted(flow.sources.items(), key=lambda source: -source[1].tokens_encoded)
    return [_stack(name, entry) for name, entry in order[:_FLOWS] if entry.tokens_encoded]


def _stack(name: str, entry: SourceLedger) -> Stack:
    """The bar of one source, which has tokens: its parts are laid end to end from 0 to 100."""
    # Class of the part → what its tokens are, and how many.
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
    """(class, x, width) of a row's documents to scale, and of what is trained of them, in percent of the row."""
    # A row of 8 tokens with documents of 4 and 2, of which the second half is trained: document at 0, trained at 25,
    # document at 50, trained at 62.5; from 75 on the row is empty.
    scale = 100 / max(row.capacity, row.tokens, 1)
    shapes = list[tuple[str, float, float]]()
    document_begin = 0
    for document in row.documents:
        # With a gap of 0.2 behind it; but a document of one token in a long row is drawn, too.
        width = max(round(document.tokens * scale - 0.2, 3), 0.05)
        shapes.append(("document", round(document_begin * scale, 3), width))
        piece_begin = document_begin
        for piece in document.pieces:
            if piece.weight:
                shapes.append(("trained", round(piece_begin * scale, 3), round(piece.tokens * scale, 3)))
            piece_begin += piece.tokens
        document_begin += document.tokens
    return shapes
