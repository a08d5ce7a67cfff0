"""How results look in a Python shell and in a notebook: a line, and tables. What comes from data is escaped."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .escape import escape_line

_MAX_CELL_LENGTH = 1_000
"""Characters of a cell."""
_MAX_ROWS = 60
"""Rows of a table; a notebook keeps all that it was shown in its file."""


class Table(NamedTuple):
    """A table. Its cells are plain text and numbers."""

    caption: str
    head: Sequence[str]
    rows: Iterable[Sequence[object]]


class Shown:
    """A result with a short `repr`, and with tables where a notebook shows it."""

    # Subclasses are dataclasses with slots, which a base without slots would undo.
    __slots__ = ()

    def summary(self) -> str:
        """What it is, in a few words."""
        raise NotImplementedError

    def tables(self) -> Iterator[Table]:
        """What a notebook shows below the summary."""
        yield from ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {escape_line(self.summary())}>"

    # The name that IPython asks for.
    def _repr_html_(self) -> str:
        parts = [f"<p>{_escape(self.summary())}</p>"]
        parts += [_html_table(table) for table in self.tables()]
        return "\n".join(parts)


def _html_table(table: Table) -> str:
    """The HTML of a table, without rows beyond `_MAX_ROWS`."""
    rows = list(table.rows)
    lines = []
    for row in rows[:_MAX_ROWS]:
        cells = "".join(f"<td>{_cell(value)}</td>" for value in row)
        lines.append(f"<tr>{cells}</tr>")
    if len(rows) > _MAX_ROWS:
        lines.append(f'<tr><td colspan="{len(table.head)}">and {len(rows) - _MAX_ROWS:,} more</td></tr>')
    caption = f"<caption>{_escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(f"<th>{_escape(name)}</th>" for name in table.head)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(value: object) -> str:
    """The HTML of a cell: a whole number with commas, else escaped text."""
    if isinstance(value, int) and not isinstance(value, bool):  # a bool is an int in Python
        return f"{value:,}"
    # An empty cell in place of None, which would read as a word of the data.
    return _escape("" if value is None else str(value))


def _escape(text: str) -> str:
    """Text of data as HTML that shows it, shortened to `_MAX_CELL_LENGTH` characters."""
    shortened = text if len(text) <= _MAX_CELL_LENGTH else f"{text[:_MAX_CELL_LENGTH]}…"
    # Characters that hide or reorder text first: HTML shows them as they are.
    return html.escape(escape_line(shortened))
