"""Markdown whose text comes from data: everything foreign is escaped here. And the YAML at the head of a card."""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from ...schemas.config.yamltext import parse_yaml
from ...schemas.escape import escape, escape_line
from .grid import Grid

CLIP = 120
"""Most characters of a text in a table."""
_ACTIVE = re.compile(r"[\\`*_\[\]|~#!$]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)")
"""What makes a link of plain text, in GitHub's and the Hub's Markdown."""
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which people do not read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def inline(text: str) -> str:
    """Foreign text as literal text within a line or a cell: without markup, HTML, links, or what hides or reorders."""
    line = escape_line(text if len(text) <= CLIP else f"{text[: CLIP - 1]}…")
    line = _ACTIVE.sub(r"\\\g<0>", line)
    line = "".join(_ENTITIES.get(character, character) for character in line)
    return _LINK.sub(lambda match: "&#58;" if match[1] else "&#46;", line)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table. Its cells are Markdown already.

    Args:
        words: columns, from the left, that hold words; the others hold numbers, aligned right.
    """
    lines = [head, ["---" if at < words else "---:" for at in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def grid_table(grid: Grid) -> str:
    """A grid as a table. Indented words stay so, and those that a terminal shows bold are bold."""
    rows = []
    for number, cells in enumerate(grid.rows):
        first = inline(cells[0].lstrip(" "))
        if grid.styles and "bold" in grid.styles[number] and not cells[0].startswith(" "):
            first = f"**{first}**"
        rows.append(["&emsp;" * cells[0].startswith(" ") + first, *map(inline, cells[1:])])
    return table([inline(name) for name in grid.head], rows, words=grid.text_columns)


def code(text: str, language: str) -> str:
    """A block of code that its own text cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def yaml_text(data: Any) -> str:
    """Data as YAML, in its own order. Characters that hide or reorder text are written as escapes."""
    for unicode in (True, False):
        text = str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=unicode, width=100))
        if escape(text) == text:
            break
    return text


def with_front(front: dict[str, Any], body: str) -> str:
    """A Markdown text below its YAML head."""
    return f"---\n{yaml_text(front)}---\n{body}"


def split_front(text: str) -> tuple[dict[str, Any], str]:
    """The inverse of `with_front`; the head is empty if there is none.

    Raises:
        ValueError: the head is not a mapping in YAML, or larger than `yamltext` allows.
    """
    match = _FRONT.match(text.removeprefix("\ufeff"))
    if match is None:
        return {}, text
    try:
        data, _ = parse_yaml(match[1])
    except yaml.YAMLError as error:
        raise ValueError(f"the YAML at its head cannot be read ({error})") from None
    if not isinstance(data, dict | None):
        raise ValueError("the YAML at its head is not a mapping")
    return data or {}, text.removeprefix("\ufeff")[match.end() :]
