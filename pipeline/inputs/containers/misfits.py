"""Guesses what a file without JSON lines contains, from its first lines, for the error message.

Each guess uses a feature that lines of JSON objects cannot have.
"""

import ast
import csv
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ....schemas.errors import RowRejectedError
from ....stages.prep.rowjson import check_depth
from .detect import TAKEN, mistaken

LOOKED_AT = 1 << 16
"""How many first bytes to look at."""
_SHOWN = 60
"""Maximum number of characters of a line to show."""
_EACH = 'each line must be an object, such as {"text": "one document"}'
_YAML = re.compile(rb"(---\s*\n|- +[\w\"']+:( |\s*\n))")


def looks_like(head: bytes) -> str:
    """What the file looks like and what to do, as the end of a sentence that begins with "it"; "" for no guess.

    Args:
        head: its first lines, at most `LOOKED_AT` bytes; the last may be cut.
    """
    for guess in (mistaken, _binary, _known_text, _json, _separated):
        if found := guess(head):
            return "{}: {}".format(*found)
    if head.strip() and not _control(head) and not head.lstrip().startswith((b"{", b"[")):
        return f"is text, not JSON: {_EACH}"
    return ""


def misfit(line: bytes, head: bytes) -> str:
    """Describe a line that is not a JSON object, and what to do about its file.

    Args:
        head: see `looks_like`; begins with the line.
    """
    try:
        check_depth(line, "it")
        msgspec.json.decode(line.strip())
        why = "it is not an object"
    except RowRejectedError as error:
        return f"`{shown(line)}` cannot be used: {error.detail}; flatten the row"
    except (ValueError, RecursionError) as error:
        why = str(error)
    seen = f"`{shown(line)}`" if not _control(line) else "the line"
    if guess := looks_like(head):
        return f"{seen} is not a JSON object; the file {guess}"
    return f"{seen} is not a JSON object ({why}): fix the line, or give {TAKEN}"


def shown(line: bytes) -> str:
    """The beginning of a line, for a message."""
    text = line[: 4 * _SHOWN].decode("utf-8", "backslashreplace").strip().replace("\t", "\\t")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _binary(head: bytes) -> tuple[str, str] | None:
    some = head[: min(len(head), 400) // 2 * 2]
    for name, zeros in (("UTF-16LE", some[1::2]), ("UTF-16BE", some[::2])):
        # A cut line may end in the middle of a character.
        if len(zeros) > 1 and zeros.count(b"\0") >= 0.8 * len(zeros) and some.count(b"\0") < 0.6 * len(some):
            return f"looks like {name} text", f"`iconv -f {name} -t UTF-8` converts it to UTF-8"
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.end < len(head) - 4 and _control(head) == 0:
            return (
                f"is not in UTF-8 (byte {error.start:,} of the shown text is 0x{head[error.start]:02x})",
                "in an old encoding of Western languages, `iconv -f WINDOWS-1252 -t UTF-8` converts it to UTF-8",
            )
    if _control(head) > len(head) // 50:
        return "holds binary data", f"give {TAKEN}"
    return None


def _control(data: bytes) -> int:
    """How many bytes of the data never occur in text."""
    return sum(data.count(byte) for byte in (*range(9), 11, 12, *range(14, 27), *range(28, 32), 127))


def _known_text(head: bytes) -> tuple[str, str] | None:
    if _YAML.match(head):
        return "looks like YAML", f"write its items as {TAKEN}"
    return None


def _json(head: bytes) -> tuple[str, str] | None:
    """JSON, but not one object per line."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff").lstrip()
    first = text.partition("\n")[0].strip()
    value, end = _leading(text)
    if isinstance(value, dict):
        rest = text[end:].lstrip(" ")
        if end > len(first):
            return _object(value)
        if rest.startswith((",\n", ",\r\n")):
            return "has a comma after each object", "`sed 's/,$//'` removes them"
        if rest.startswith(","):
            return "is the inside of a JSON array", "give JSON lines: one object a line, without commas between them"
        if rest.startswith("{"):
            return "has several objects in a line", "`jq -c .` puts each on a line of its own"
    elif end and not text[end:].partition("\n")[0].strip():
        kind = {str: "a text", list: "an array", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        return f"has {kind} in a line", _EACH
    elif first.startswith("{"):
        if _literal(first):
            return "has objects as Python prints them", "write them with `json.dumps`, one per line"
        if first.endswith(("{", "[", ",")):
            return _object({})
    return None


def _object(value: dict[str, Any]) -> tuple[str, str]:
    """One object over several lines."""
    rows = [name for name, held in value.items() if isinstance(held, list) and held and isinstance(held[0], dict)]
    if len(rows) == 1 and rows[0].isidentifier() and rows[0] not in ("messages", "conversations"):
        return f"is one JSON object, whose `{rows[0]}` has the rows", f"`jq -c '.{rows[0]}[]'` makes a line of each"
    return "has JSON objects that go over several lines", "`jq -c .` puts each on one"


def _leading(text: str) -> tuple[Any, int]:
    """The value that a text begins with, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0


def _literal(line: str) -> bool:
    try:
        return isinstance(ast.literal_eval(line), dict)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _separated(head: bytes) -> tuple[str, str] | None:
    """Rows of separated values: equally many fields in each of the first lines, and no braces."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        return None
    for separator, kind, suffix in ((",", "comma", ".csv"), ("\t", "tab", ".tsv"), (";", "semicolon", "")):
        rows = list(_records(text, separator))[:20]
        sizes = {len(row) for row in rows}
        if len(rows) > 1 and len(sizes) == 1 and sizes != {1}:
            todo = f"call the file {suffix}" if suffix else "write it with commas, and call it .csv"
            return f"looks like {kind}-separated values, {sizes.pop()} in a line", todo
    return None


def _records(text: str, separator: str) -> Iterator[Sequence[str]]:
    """Rows of separated values, without the last line, which may be cut."""
    lines = text.splitlines()
    kept = lines if len(text) < LOOKED_AT // 2 else lines[:-1]
    try:
        yield from (row for row in csv.reader(kept, delimiter=separator) if row)
    except csv.Error:
        return
