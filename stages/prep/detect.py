"""Detects the format of a source from its first rows, or explains why it cannot.

1. For each format, count the rows that have its columns with values of the right kind.
2. A format that fits half of the rows is a candidate. A `text` column beside a conversation is not, because it is the
   rendered conversation.
3. A single candidate is the result. With none or several, the error says what was checked and how to choose.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...schemas.config.source import FORMAT_KEYS
from ...schemas.errors import ConfigError
from ...schemas.units import plural
from . import FORMATS
from .base import Format, Options
from .tokenized import MASKS

Row: TypeAlias = Mapping[str, Any]
Keys: TypeAlias = Mapping[str, str]

_PAIRS = (
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "response"),
    ("problem", "solution"),
    ("input", "output"),
    ("source", "target"),
)
"""Columns that are probably a prompt and its completion; only suggested, never assumed."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The detected format."""

    format: str
    keys: dict[str, str]
    """Column names, given or found, as they are written in the configuration."""
    why: str
    """Why this format was chosen, to follow "because" in a sentence."""


def detect(rows: Sequence[Any], keys: Keys | None = None) -> Detection:
    """The format of rows.

    Args:
        rows: the first decoded rows of a source; rows that are not objects fit no format.
        keys: column names that the user gave; only formats that take all of them are tried.

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
    seen = _seen(objects, len(rows))
    if found:
        ways = "; or ".join(f"{_said(one)} ({_share(count, len(rows))}: {one.wanted})" for one, count in found)
        raise ConfigError(f"{seen} fit several formats; set the one that you mean: {ways}")
    looked = "".join(
        f"\n  {one.name}: {count:,} of {plural(len(rows), 'row has', 'rows have')} {one.wanted}"
        for one, count in counts
    )
    raise ConfigError(f"{seen} fit no format. Looked for:{looked}\n{_hint(objects)}")


def _candidates(given: dict[str, str]) -> Iterator[Format]:
    """Formats with column names to try."""
    for name, known in FORMAT_KEYS.items():
        if not set(given) <= set(known):
            continue
        kind = FORMATS[name]
        yield kind(Options(keys=given))
        first = next(iter(kind.columns))
        for other in kind.others:
            if first not in given and other != first and other not in given.values():
                yield kind(Options(keys={**given, first: other}))


def _share(count: int, rows: int) -> str:
    return f"{'all' if count == rows else f'{count:,}'} of the first {rows:,} rows" if rows > 1 else "the only row"


def _seen(objects: Sequence[Row], rows: int) -> str:
    """The rows that were checked, as the subject of a sentence."""
    columns: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for row in objects:
        for name, value in row.items():
            columns[name] += 1
            kinds.setdefault(name, _kind(value))
    if not columns:
        return f"the first {rows:,} rows, none of which is an object with columns,"
    names = [
        f"`{name}` ({kinds[name]}{'' if count == rows else f', in {count:,}'})"
        for name, count in columns.most_common(12)
    ]
    more = ", …" if len(columns) > 12 else ""
    return f"the first {plural(rows, 'row')}, with {', '.join(names)}{more},"


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_kind(value[0])}s" if value else "empty list"
    kinds = {str: "text", bool: "true or false", int: "integer", float: "number", type(None): "null"}
    return kinds.get(type(value), "object")


def _said(one: Format) -> str:
    keys = ", ".join(f"{key}: {name}" for key, name in one.options.keys.items())
    return f"format: {one.name}{f', keys: {{{keys}}}' if keys else ''}"


def _hint(objects: Sequence[Row]) -> str:
    """How to configure the format."""
    columns = {name for row in objects for name in row}
    texts = {name for row in objects for name, value in row.items() if isinstance(value, str)}
    if {"chosen", "rejected"} <= columns:
        asked = next((name for name in ("question", "query", "instruction", "input") if name in texts), "question")
        return (
            f"Name the column of the prompt (format: preference, keys: {{prompt: {asked}}}); or set only format: "
            "preference if `chosen` and `rejected` both begin with the prompt"
        )
    if masks := columns & set(MASKS):
        return f"`{min(masks)}` is there, but `input_ids` is not: name the column of the ids (keys: {{ids: …}})"
    for asked, answer in _PAIRS:
        if {asked, answer} <= texts:
            return (
                f"If `{asked}` and `{answer}` are a prompt and its completion: format: prompt_completion, "
                f"keys: {{prompt: {asked}, completion: {answer}}}, style: chat for two turns or plain for one text"
            )
    if len(texts) == 1:
        return f"If `{min(texts)}` is the text: format: text, keys: {{text: {min(texts)}}}"
    return (
        "Say format, and keys for columns of other names, such as format: prompt_completion, "
        "keys: {prompt: question, completion: answer} (as options: --set sources.0.format=prompt_completion --set "
        "sources.0.keys.prompt=question --set sources.0.keys.completion=answer); or read the rows yourself with "
        "format: python:module:function"
    )
