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
    counts = [(format, sum(map(format.fits, objects))) for format in _candidates(dict(keys or {}))]
    fitting = [(format, count) for format, count in counts if count and 2 * count >= len(rows)]
    if {format.name for format, _ in fitting} - {"text", "tokenized"}:
        # A `text` beside a conversation is the rendered conversation.
        fitting = [(format, count) for format, count in fitting if format.name != "text"]
    if len(fitting) == 1:
        format, count = fitting[0]
        why = f"{_share(count, len(rows))} {'has' if count == 1 else 'have'} {format.described}"
        return Detection(format.name, format.options.keys, why)
    columns = dict.fromkeys(str(name) for row in objects for name in row)
    shown = ", ".join(f"`{name}`" for name in list(columns)[:_COLUMNS]) + (", …" if len(columns) > _COLUMNS else "")
    rows_in_words = f"the first {plural(len(rows), 'row')}, with {f'the columns {shown}' if shown else 'no columns'},"
    if fitting:
        ways = "; or ".join(
            f"{_as_configured(format)} ({_share(count, len(rows))}: {format.described})" for format, count in fitting
        )
        raise ConfigError(f"{rows_in_words} fit several formats; set the one that you mean: {ways}")
    columns_of_formats = "".join(f"\n  {format.name}: {format.described}" for format, _ in counts)
    raise ConfigError(
        f"{rows_in_words} fit no format. Looked for:{columns_of_formats}\n"
        "Say format, and keys for columns of other names, such as format: "
        "prompt_completion, keys: {prompt: question, completion: answer} (as options: --set "
        f"sources.{number}.format=prompt_completion --set sources.{number}.keys.prompt=question --set "
        f"sources.{number}.keys.completion=answer); or read the rows yourself with format: python:module:function"
    )


def _candidates(keys: dict[str, str]) -> Iterator[Format]:
    """Formats with column names to try."""
    for name, row_format in ROW_FORMATS.items():
        if not set(keys) <= set(row_format.keys):
            continue
        format_type = FORMATS[name]
        yield format_type(Options(keys=keys))
        first_column = next(iter(format_type.columns))
        for other_name in format_type.other_names:
            if first_column not in keys and other_name != first_column and other_name not in keys.values():
                yield format_type(Options(keys={**keys, first_column: other_name}))


def _share(count: int, rows: int) -> str:
    return f"{'all' if count == rows else f'{count:,}'} of the first {rows:,} rows" if rows > 1 else "the only row"


def _as_configured(format: Format) -> str:
    keys = ", ".join(f"{key}: {name}" for key, name in format.options.keys.items())
    return f"format: {format.name}{f', keys: {{{keys}}}' if keys else ''}"
