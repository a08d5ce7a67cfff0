"""Detects the format of a source from its first rows, or explains why it cannot.

1. For each format, count the rows that have its columns.
2. A format that fits half of the rows is a candidate. A `text` column beside a conversation is not, because it is the
   rendered conversation.
3. A single candidate is the result. With none or several, the error says what was checked and how to choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...schemas.errors import ConfigError
from ...schemas.tables.row_formats import ROW_FORMATS
from ...schemas.units import plural
from . import FORMATS
from .base import Format, Options

Keys: TypeAlias = Mapping[str, str]
_COLUMNS = 12
"""Maximum number of columns to name."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The detected format."""

    format: str
    keys: dict[str, str]
    """Column names, given or found, as they are written in the configuration."""
    why: str
    """Why this format was chosen, to follow "because" in a sentence."""


def detect(rows: Sequence[Any], keys: Keys | None = None, number: int = 0) -> Detection:
    """The format of rows.

    Args:
        rows: the first decoded rows of a source; rows that are not objects fit no format.
        keys: column names that the user gave; only formats that take all of them are tried.
        number: which of the sources it is, from 0, for the options that the error names.

    Raises:
        ConfigError: no format fits, or several do.
    """
    objects = [row for row in rows if isinstance(row, Mapping)]
    counts = [(one, sum(map(one.fits, objects))) for one in _candidates(dict(keys or {}))]
    found = [(one, count) for one, count in counts if count and 2 * count >= len(rows)]
    if {one.name for one, _ in found} - {"text", "tokenized"}:
        found = [(one, count) for one, count in found if one.name != "text"]
    if len(found) == 1:
        one, count = found[0]
        why = f"{_share(count, len(rows))} {'has' if count == 1 else 'have'} {one.wanted}"
        return Detection(one.name, one.options.keys, why)
    columns = dict.fromkeys(str(name) for row in objects for name in row)
    shown = ", ".join(f"`{name}`" for name in list(columns)[:_COLUMNS]) + (", …" if len(columns) > _COLUMNS else "")
    seen = f"the first {plural(len(rows), 'row')}, with {f'the columns {shown}' if shown else 'no columns'},"
    if found:
        ways = "; or ".join(f"{_said(one)} ({_share(count, len(rows))}: {one.wanted})" for one, count in found)
        raise ConfigError(f"{seen} fit several formats; set the one that you mean: {ways}")
    wanted = "".join(f"\n  {one.name}: {one.wanted}" for one, _ in counts)
    raise ConfigError(
        f"{seen} fit no format. Looked for:{wanted}\nSay format, and keys for columns of other names, such as format: "
        "prompt_completion, keys: {prompt: question, completion: answer} (as options: --set "
        f"sources.{number}.format=prompt_completion --set sources.{number}.keys.prompt=question --set "
        f"sources.{number}.keys.completion=answer); or read the rows yourself with format: python:module:function"
    )


def _candidates(given: dict[str, str]) -> Iterator[Format]:
    """Formats with column names to try."""
    for name, row_format in ROW_FORMATS.items():
        if not set(given) <= set(row_format.keys):
            continue
        kind = FORMATS[name]
        yield kind(Options(keys=given))
        first = next(iter(kind.columns))
        for other in kind.others:
            if first not in given and other != first and other not in given.values():
                yield kind(Options(keys={**given, first: other}))


def _share(count: int, rows: int) -> str:
    return f"{'all' if count == rows else f'{count:,}'} of the first {rows:,} rows" if rows > 1 else "the only row"


def _said(one: Format) -> str:
    keys = ", ".join(f"{key}: {name}" for key, name in one.options.keys.items())
    return f"format: {one.name}{f', keys: {{{keys}}}' if keys else ''}"
