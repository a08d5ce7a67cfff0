"""Print blocks in a terminal: tables and texts, without charts. Text from data is escaped."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ....schemas.escape import escape, escape_line
from .blocks import Block, Fold, Grid, Heading, PageSection, Words
from .markup import SHORT


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print escaped text without wrapping, so that a path can be copied."""
    console.print(Text(escape(text), style=style), soft_wrap=True)


def print_section(console: Console, section: PageSection, *, wrap: bool) -> None:
    """Print a blank line, the question, its answer and its blocks."""
    console.print()
    console.print(Text(section.title, style="bold cyan"))
    print_blocks(console, [Words(section.sentence), *section.blocks], wrap=wrap)


def print_blocks(console: Console, blocks: Iterable[Block], *, wrap: bool = False) -> None:
    """Print tables and texts one below the other.

    Args:
        wrap: break long lines at the console's width. Text to copy is never broken.
    """
    for block in blocks:
        match block:
            case Grid():
                if block.caption:
                    console.print(Text(escape_line(block.caption), style="table.title"), soft_wrap=not wrap)
                console.print(_table(block))
            case Words():
                line = Text(escape_line(block.text), style=block.style)
                console.print(line, soft_wrap=block.code or not wrap)
            case Heading():  # the caption of the following table says the same
                console.print()
            case Fold():
                print_blocks(console, block.blocks, wrap=wrap)
            case _:
                pass  # charts are left out, because other blocks have their numbers


def _table(grid: Grid) -> Table:
    """Make a rich table of a grid. Columns without a name also hold words; short names are not wrapped."""
    table = Table(show_edge=False, pad_edge=False)
    for at, name in enumerate(grid.head):
        words = at < grid.text_columns or not name
        whole = at == 0 and all(len(row[0]) <= SHORT for row in grid.rows)
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=whole)
    for row in grid.rows:
        table.add_row(*(Text(escape_line(cell)) for cell in row))
    return table
