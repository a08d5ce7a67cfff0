"""Detects the format of a source from its first rows, or explains why it cannot.

1. For each format, count the rows that have its columns.
2. A format that fits half of the rows is a candidate. A `text` column beside a conversation is not, because it is the
   rendered conversation.
3. A single candidate is the result. With none or several, the error says what was checked and how to choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

from ...schemas.errors import ConfigError
from ...schemas.tables.row_formats import ROW_FORMATS
from ...schemas.units import plural
from . import FORMATS
from .base import Format, Options

Keys: TypeAlias = Mapping[str, str]
"""Field of a format → the name of its column."""
_MAX_COLUMNS = 12
"""Columns that an error names at most."""
_NEAR = 0.8
"""How much alike two names must be, as difflib counts it from 0 to 1, for one to be the other with a typing error."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The detected format."""

    format: str
    keys: dict[str, str]
    """The configuration's `keys`: those that the user gave, and one that was found."""
    why: str
    """Why this format was chosen, to follow "because" in a sentence."""


def detect(rows: Sequence[Any], keys: Keys | None = None, number: int = 0) -> Detection:
    """The format of rows.

    Args:
        rows: the first decoded rows of a source; rows that are not objects fit no format.
        keys: names of columns that the user gave; only formats that have all these fields are tried.
        number: index of the source in the configuration, for the options that the error names.

    Raises:
        ConfigError: no format fits, or several do.
    """
    objects = [row for row in rows if isinstance(row, Mapping)]
    # Each format, with how many rows it fits.
    counts = [(format, sum(map(format.fits, objects))) for format in _candidates(dict(keys or {}))]
    fitting = _fitting_formats(counts, len(rows))
    if len(fitting) == 1:
        [(format, count)] = fitting
        verb = "has" if count == 1 else "have"
        why = f"{_share(count, len(rows))} {verb} {format.described}"
        return Detection(format.name, format.options.keys, why)
    rows_in_words = _describe_rows(rows, objects)
    if fitting:
        ways = [
            f"{_as_configured(format)} ({_share(count, len(rows))}: {format.described})" for format, count in fitting
        ]
        raise ConfigError(f"{rows_in_words} fit several formats; set the one that you mean: {'; or '.join(ways)}")
    sentences = [f"{rows_in_words} fit no format."]
    # The second only if no format fits any row: what fits some rows is no typing error.
    hint = _describe_mixture(counts) or _describe_typing_error(objects, counts, number)
    if hint:
        sentences.append(hint)
    columns_of_formats = "".join(f"\n  {format.name}: {format.described}" for format, _ in counts)
    raise ConfigError(
        f"{' '.join(sentences)} Looked for:{columns_of_formats}\n"
        "Say format, and keys for columns of other names, such as format: "
        "prompt_completion, keys: {prompt: question, completion: answer} (as options: --set "
        f"sources.{number}.format=prompt_completion --set sources.{number}.keys.prompt=question --set "
        f"sources.{number}.keys.completion=answer); or read the rows yourself with format: python:module:function"
    )


def _fitting_formats(counts: Sequence[tuple[Format, int]], rows: int) -> list[tuple[Format, int]]:
    """The formats that fit half of the rows or more, each with how many it fits.

    Args:
        counts: all formats, each with how many rows it fits.
        rows: how many rows there are.
    """
    # Half, because a file may begin with rows that cannot be used; they are rejected later, with a reason each.
    fitting = [(format, count) for format, count in counts if count and 2 * count >= rows]
    if any(format.name not in ("text", "tokenized") for format, _ in fitting):
        # A `text` beside a conversation is the rendered conversation.
        fitting = [(format, count) for format, count in fitting if format.name != "text"]
    return fitting


def _describe_rows(rows: Sequence[Any], objects: Sequence[Mapping[str, Any]]) -> str:
    """How many rows were looked at, and their columns, for the beginning of a sentence."""
    # Each name once, in the order in which they come.
    columns = dict.fromkeys(str(name) for row in objects for name in row)
    names = ", ".join(f"`{name}`" for name in list(columns)[:_MAX_COLUMNS])
    if len(columns) > _MAX_COLUMNS:
        names += ", …"
    columns_in_words = f"the columns {names}" if names else "no columns"
    return f"the first {plural(len(rows), 'row')}, with {columns_in_words},"


def _describe_mixture(counts: Sequence[tuple[Format, int]]) -> str:
    """Say which formats some of the rows have; "" if none has any."""
    fitting = [f"{count:,} {'has' if count == 1 else 'have'} {format.described}" for format, count in counts if count]
    if not fitting:
        return ""
    return f"Of these rows, {', '.join(fitting)}: rows of each format belong in a file, and a source, of their own."


def _describe_typing_error(
    objects: Sequence[Mapping[str, Any]], counts: Sequence[tuple[Format, int]], number: int
) -> str:
    """For each column of the first row: say if its name is nearly that of a column that a format reads; or if it has
    such a name and is a list of objects, which keys these have, because they are no messages. "" if there is no such
    column.
    """
    # Name of a column → its field. Two formats may have the same name for different fields, and the earlier format
    # counts: it comes last here, and so replaces what later ones say.
    expected = {column: key for format, _ in reversed(counts) for key, column in format.keys.items()}
    sentences: list[str] = []
    first_row: Mapping[str, Any] = objects[0] if objects else {}
    for name, value in first_row.items():
        if name in expected:
            first = value[0] if isinstance(value, list) and value else None
            if isinstance(first, Mapping):
                keys = ", ".join(f"`{key}`" for key in list(first)[:_MAX_COLUMNS]) or "no keys"
                sentences.append(f"The objects of `{name}` have {keys}.")
        elif near := get_close_matches(str(name), list(expected), n=1, cutoff=_NEAR):
            key = expected[near[0]]
            sentences.append(
                f"Is `{name}` meant as `{near[0]}`? Then say keys: {{{key}: {name}}} (as an option: "
                f"--set sources.{number}.keys.{key}={name})."
            )
    return " ".join(sentences)


def _candidates(keys: dict[str, str]) -> Iterator[Format]:
    """The formats that have all fields of the given keys. A format comes again for each other usual name of its first
    column, unless the user has named that column.
    """
    for name, row_format in ROW_FORMATS.items():
        # A key of another format would be ignored, and the user not told.
        if not set(keys) <= set(row_format.keys):
            continue
        format_type = FORMATS[name]
        yield format_type(Options(keys=keys))
        first_column = next(iter(format_type.columns))
        if first_column in keys:
            continue
        for other_name in format_type.other_names:
            if other_name != first_column and other_name not in keys.values():
                yield format_type(Options(keys={**keys, first_column: other_name}))


def _share(count: int, rows: int) -> str:
    """`all of the first 8 rows`, `5 of the first 8 rows` or `the only row`."""
    if rows <= 1:
        return "the only row"
    number = "all" if count == rows else f"{count:,}"
    return f"{number} of the first {rows:,} rows"


def _as_configured(format: Format) -> str:
    """`format: messages, keys: {messages: conversation}`, as the configuration has it."""
    keys = ", ".join(f"{key}: {name}" for key, name in format.options.keys.items())
    return f"format: {format.name}, keys: {{{keys}}}" if keys else f"format: {format.name}"
