"""Tables of plain text, and how a terminal shows them. Text from data is escaped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...schemas.escape import escape, escape_line

_CELL = 1_000
"""Maximum number of characters of a cell."""
_WHOLE = 34
"""Cells of the first column with at most this many characters are kept on one line."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. Its cells are plain text; whatever shows it escapes them."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    """Number of columns, counted from the left, that hold words. The others hold numbers, aligned right."""
    styles: Sequence[str] = ()
    """Style of each row's first cell in a terminal, as rich names it; empty for no styles."""


def clipped(text: str, limit: int = _CELL) -> str:
    """The text; if it is too long, its start and its length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print escaped text without wrapping, so that a path can be copied."""
    console.print(Text(escape(text), style=style), soft_wrap=True)


def print_grids(console: Console, grids: Iterable[Grid]) -> None:
    """Print tables one below the other."""
    for grid in grids:
        if grid.caption:
            console.print(Text(escape_line(grid.caption), style="table.title"), soft_wrap=True)
        console.print(rich_table(grid))


def rich_table(grid: Grid) -> Table:
    """The table for rich. Columns without a name hold words, too; short names are not wrapped."""
    table = Table(show_edge=False, pad_edge=False)
    for at, name in enumerate(grid.head):
        words = at < grid.text_columns or not name
        whole = at == 0 and all(len(row[0]) <= _WHOLE for row in grid.rows)
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=whole)
    for number, row in enumerate(grid.rows):
        style = grid.styles[number] if grid.styles else ""
        cells = [Text(escape_line(clipped(cell)), style="" if at else style) for at, cell in enumerate(row)]
        table.add_row(*cells)
    return table
