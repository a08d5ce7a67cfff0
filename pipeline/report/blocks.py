"""What a page is made of: sections with charts, tables and text, before any HTML."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. Cells are text, and are escaped when they are drawn."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False
    """Whether it is shown only when it is opened."""
    text_columns: int = 1
    """Columns from the left that are words; the others are numbers, set to the right."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotly figure, with what it shows in words and as a table."""

    name: str
    """Of its element; letters, digits and hyphens, unique on the page."""
    title: str
    alt: str
    """For those who do not see it: what it shows, and what stands out."""
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    table: Grid
    """The same numbers."""
    height: int = 380
    """Pixels."""
    wide: bool = True
    """Whether it takes the whole width. Others stand side by side where there is room."""


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph of text, escaped when it is drawn."""

    text: str
    code: bool = False
    """Whether it is shown as it stands, to be copied."""


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that somebody has escaped already."""

    html: str


@dataclass(frozen=True, slots=True)
class Heading:
    """Of what follows within a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Switch:
    """Blocks of which one group is shown at a time. Without JavaScript, and on paper, all are."""

    name: str
    """Of its element, as a chart's."""
    label: str
    """What is chosen, such as `Source`."""
    panels: Sequence[tuple[str, Sequence["Block"]]]
    """(choice, what it shows)."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Details that the page shows only when the reader opens them. Without JavaScript, charts in it are words."""

    title: str
    """What the reader finds inside."""
    blocks: Sequence["Block"]


Block = Grid | Chart | Words | Markup | Heading | Switch | Fold


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """Every block, those in folds and panels too."""
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from walk(block.blocks)
        elif isinstance(block, Switch):
            for _, panel in block.panels:
                yield from walk(panel)


@dataclass(frozen=True, slots=True)
class PageSection:
    """A question, its answer in a sentence, and what shows it."""

    name: str
    """Of its element."""
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
    """A few large figures at its head: (what, value)."""
