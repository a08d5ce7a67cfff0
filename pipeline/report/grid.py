"""What is shown to people: sentences, tables, and rows as text. Whatever shows them escapes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...schemas.report.shown_rows import ShownPiece

_CELL = 1_000
"""Maximum number of characters of a cell."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. Its cells are plain text."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    """Number of columns, counted from the left, that hold words. The others hold numbers, aligned right."""
    styles: Sequence[str] = ()
    """Style of each row's first cell in a terminal, as rich names it; empty for no styles."""

    def is_words(self, column: int) -> bool:
        """Whether a column holds words. One without a name does, too: it says what a row is, or what a reason means."""
        return column < self.text_columns or not self.head[column]


@dataclass(frozen=True, slots=True)
class Section:
    """A question, and what answers it."""

    name: str
    """The field of `Report` that it shows."""
    title: str
    """The question."""
    sentence: str
    """The answer."""
    tables: list[Grid] = field(default_factory=list)
    more: list[Grid] = field(default_factory=list)
    """Tables for the page alone, which the reader opens."""
    warnings: list[str] = field(default_factory=list)


Line = str | tuple[str, str] | list[ShownPiece] | Grid
"""A text; a text with its style in a terminal; a text in stretches, of which some are trained; or a table."""
Lines = Iterator[Line]
"""What a command prints, line by line."""


def clipped(text: str, limit: int = _CELL) -> str:
    """The text; if it is too long, its start and its length."""
    # With the length, so that a reader does not take a clipped text for the whole one.
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
