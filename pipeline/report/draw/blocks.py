"""The document that both a page and a terminal show: sections with charts, tables and text, without any HTML."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. Its cells are plain text; drawing escapes them."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False
    """Whether the page shows the table only when the reader opens it."""
    text_columns: int = 1
    """Number of columns, counted from the left, that hold words. The others hold numbers, aligned right."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotly figure, with the same content in words and as a table."""

    name: str
    """Id of the chart's HTML element: letters, digits and hyphens, unique on the page."""
    title: str
    alt: str
    """Alternative text: what the chart shows, and what stands out."""
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    table: Grid
    """The chart's numbers."""
    height: int = 380
    """Height in pixels."""
    wide: bool = True
    """Whether the chart takes the full width. Narrow charts stand side by side if there is room."""


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph of plain text; drawing escapes it."""

    text: str
    code: bool = False
    """Whether this is text to copy, which is shown without wrapping."""
    style: str = ""
    """Style for the terminal, as rich names it."""


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML whose text is already escaped."""

    html: str


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Switch:
    """Groups of blocks; the reader chooses which one to see. Without JavaScript, and on paper, all are shown."""

    name: str
    """Id of the switch's HTML element; see `Chart`."""
    label: str
    """Label of the choice, such as `Source`."""
    panels: Sequence[tuple[str, Sequence["Block"]]]
    """(name, blocks) of each choice."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Details that the page shows only when the reader opens them. Without JavaScript, words replace the charts
    inside.
    """

    title: str
    """Title that says what is inside."""
    blocks: Sequence["Block"]


Block = Grid | Chart | Words | Markup | Heading | Switch | Fold


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield all blocks, including those in folds and panels."""
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from walk(block.blocks)
        elif isinstance(block, Switch):
            for _, panel in block.panels:
                yield from walk(panel)


@dataclass(frozen=True, slots=True)
class PageSection:
    """A question, its answer in words, and the blocks that show it."""

    name: str
    """Id of the section's HTML element."""
    title: str
    sentence: str
    blocks: Sequence[Block] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page."""

    title: str
    lead: str
    """A sentence under the title."""
    sections: Sequence[PageSection]
    facts: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """A few large figures at the top: (label, value)."""
