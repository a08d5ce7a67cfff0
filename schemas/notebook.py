"""How results look in a Python shell and in a notebook: a line, and tables. What comes from data is escaped."""

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .escape import escape_line

_CELL = 1_000
"""Maximum number of characters of a cell."""
_ROWS = 60
"""Maximum number of rows of a table."""


class Table(NamedTuple):
    """A table. Its cells are plain text and numbers."""

    caption: str
    head: Sequence[str]
    rows: Iterable[Sequence[object]]


class Shown:
    """A result with a short `repr`, and with tables where a notebook shows it."""

    __slots__ = ()

    def summary(self) -> str:
        """What it is, in a few words."""
        raise NotImplementedError

    def tables(self) -> Iterator[Table]:
        """What a notebook shows below the summary."""
        yield from ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {escape_line(self.summary())}>"

    def _repr_html_(self) -> str:
        parts = [f"<p>{_escaped(self.summary())}</p>"]
        parts += [_html_table(table) for table in self.tables()]
        return "\n".join(parts)


def _html_table(table: Table) -> str:
    rows = list(table.rows)
    lines = [f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows[:_ROWS]]
    if len(rows) > _ROWS:
        lines.append(f'<tr><td colspan="{len(table.head)}">and {len(rows) - _ROWS:,} more</td></tr>')
    caption = f"<caption>{_escaped(table.caption)}</caption>" if table.caption else ""
    head = "".join(f"<th>{_escaped(name)}</th>" for name in table.head)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _escaped("" if value is None else str(value))


def _escaped(text: str) -> str:
    return html.escape(escape_line(text if len(text) <= _CELL else f"{text[:_CELL]}…"))
