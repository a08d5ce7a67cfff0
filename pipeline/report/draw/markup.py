"""Escapes text for the page, and makes tables. All text from data passes through here."""

import html
import re
from collections.abc import Sequence

from ....schemas.escape import escape, escape_line
from .blocks import Grid

CLIP = 1_000
"""Default maximum number of characters of a text."""
SHORT = 34
"""A cell with at most this many characters is kept on one line."""
LABEL = 44
"""Maximum number of characters of a chart label."""


def clipped(text: str, limit: int = CLIP) -> str:
    """Return the text; if it is too long, its start and its length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def escaped(text: str, limit: int = CLIP) -> str:
    """Escape text for HTML, including attribute values."""
    return html.escape(escape(clipped(text, limit)))


def sentence(text: str) -> str:
    """Write a paragraph's text as HTML. Numbers stay on one line with their units, and text in backticks becomes
    code.
    """
    joined = re.sub(r"(?<=\d) (?=[%×kMGTPEZ](?![a-z]))", "\u00a0", escaped(text, 5_000))
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", joined)


def plain_label(text: str, limit: int = LABEL) -> str:
    """Escape text for chart labels and hover texts, where plotly interprets some tags, entities and `%{…}`."""
    line = escape_line(text[: limit + 1])
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return html.escape(line, quote=False).replace("%{", "&#37;{")


def table(grid: Grid) -> str:
    """Write a grid with text cells as HTML."""
    return table_of(grid, [[escaped(cell) for cell in row] for row in grid.rows])


def table_of(grid: Grid, rows: Sequence[Sequence[str]]) -> str:
    """Write a grid whose cells are given as HTML. It scrolls in its own box, which the keyboard can reach."""
    head = "".join(f'<th scope="col"{_side(grid, at)}>{escaped(cell)}</th>' for at, cell in enumerate(grid.head))
    body = "".join(f"<tr>{''.join(_cell(grid, at, cell) for at, cell in enumerate(row))}</tr>\n" for row in rows)
    whole = (
        f"<table><caption>{escaped(grid.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    )
    label = html.escape(escape_line(clipped(grid.caption, 200)))
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{whole}</div>'
    if not grid.folded:
        return box
    return f"<details><summary>{escaped(grid.caption)}</summary>{box}</details>"


def _cell(grid: Grid, at: int, cell: str) -> str:
    if at < grid.text_columns:
        cell = _whole(cell)
    if at == 0:
        return f'<th scope="row"{_side(grid, at)}>{cell}</th>'
    return f"<td{_side(grid, at)}>{cell}</td>"


def _side(grid: Grid, at: int) -> str:
    return "" if at < grid.text_columns else ' class="number"'


def _whole(cell: str) -> str:
    """Keep a short cell on one line."""
    return f'<span class="whole">{cell}</span>' if len(cell) <= SHORT and "<" not in cell else cell
