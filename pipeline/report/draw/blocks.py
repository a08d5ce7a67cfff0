"""The document that a page and a terminal both show: sections with charts, tables and text, without any HTML."""

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
    """Whether the page shows it only when the reader opens it."""
    text_columns: int = 1
    """Number of columns, from the left, that hold words. The others hold numbers, aligned right."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotly figure, with the same content in words and as a table."""

    name: str
    """Id of its element: letters, digits and hyphens, unique on the page."""
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
    """Whether it takes the full width. Narrow charts stand side by side if there is room."""


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph of plain text; drawing escapes it."""

    text: str
    code: bool = False
    """Whether it is text to copy, shown without wrapping."""
    style: str = ""
    """A style of rich, for the terminal."""


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
    """Groups of blocks of which the reader sees one at a time. Without JavaScript, and on paper, all are shown."""

    name: str
    """Id of its element, like a chart's."""
    label: str
    """What the reader chooses, such as `Source`."""
    panels: Sequence[tuple[str, Sequence["Block"]]]
    """(name of the choice, its blocks)."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Details that the page shows only when the reader opens them. Without JavaScript, charts inside become words."""

    title: str
    """What is inside."""
    blocks: Sequence["Block"]


Block = Grid | Chart | Words | Markup | Heading | Switch | Fold


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """All blocks, including those in folds and panels."""
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
    """HTML id of the element."""
    title: str
    sentence: str
    blocks: Sequence[Block] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page."""

    title: str
    lead: str
    """A sentence under the title."""
    sections: Sequence[PageSection]
    facts: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """A few large figures at the top: (label, value)."""
