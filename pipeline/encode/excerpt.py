"""What rows look like, in a few words, so that a person finds and repairs those that cannot be used."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.files.foreign import open_regular
from ...stages.prep.rowjson import require_shallow
from ..inputs.blocks import Block
from ..inputs.lines import block_bytes
from ..inputs.spool import REJECT_MARK, unspool
from ..inputs.tables import read_table, to_rows

CHARACTERS = 300
"""Maximum number of characters of an excerpt."""
# How much is shown of each text, list and object of a row, and how many levels.
_TEXT_CHARACTERS = 48
_LIST_ITEMS = 2
_OBJECT_KEYS = 12
_LEVELS = 4


def excerpts(block: Block, rows: Collection[int]) -> dict[int, str]:
    """Excerpts of rows by their number in the block, from 0: their keys and the beginnings of their values, or the
    beginning of a line that is not JSON. A row of a CSV file, or an element of an array, that could not be read has
    none.

    Raises:
        InputError: the file is no longer what was scanned, or is not on this machine.
        IntegrityError: the block's copy in the cache is missing or damaged.
    """
    if block.members:
        return _excerpts_of_members(block, rows)
    if block.too_long:  # such a row has a block of its own; it is text only in a file of lines that is read in place
        has_text = block.spooled is None and block.kind == "lines"
        return {0: _clip(_beginning(block))} if has_text else {}
    if block.kind in ("groups", "batches"):  # rows of a table: of Parquet, or kept in the cache
        table, _ = read_table(block, columns=None)
        # Row → its excerpt.
        row_excerpts = {}
        for row in rows:
            # One record, or none if the row cannot be read.
            for _, record in to_rows(table.slice(row, 1), columns=None).records:
                row_excerpts[row] = _excerpt_of(record)
        return row_excerpts
    # Lines from here on: in the file itself, or in the copy that the cache keeps of the block.
    content = block_bytes(block) if block.spooled is None else unspool(block)
    lines = content.split(b"\n")
    if block.kind == "rows":  # of a row that could not be read, a spooled block keeps only the reason
        rows = [row for row in rows if not lines[row].startswith(REJECT_MARK)]
    return {row: _excerpt_of_line(lines[row]) for row in rows}


def _excerpts_of_members(block: Block, rows: Collection[int]) -> dict[int, str]:
    """The excerpts of a block of several small files. `rows`, and the keys, count the rows of all of them together."""
    all_excerpts: dict[int, str] = {}
    first_row = 0  # of the member in the block
    for member in block.members:
        member_rows = [row - first_row for row in rows if first_row <= row < first_row + member.lines]
        # Only files with such a row are read again.
        if member_rows:
            for row, text in excerpts(member, member_rows).items():
                all_excerpts[first_row + row] = text
        first_row += member.lines
    return all_excerpts


def _beginning(block: Block) -> str:
    """The first bytes of a row that is too long to be read."""
    with open_regular(block.path) as file:
        file.seek(block.start)
        return file.read(CHARACTERS).decode(errors="backslashreplace")


def _excerpt_of_line(line: bytes) -> str:
    """The excerpt of a line of JSON: of its value, or of the line itself if that cannot be read."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError):
        row = msgspec.json.decode(line)
        require_shallow(row, "the row")
        return _excerpt_of(row)
    return _clip(line[: 4 * CHARACTERS].decode(errors="backslashreplace"))  # a character has at most four bytes


def _excerpt_of(row: Any) -> str:
    """The excerpt of a decoded row, as JSON. Of a value that JSON does not have, it names the type."""
    short_row = _shorten(row, _LEVELS)
    text = json.dumps(short_row, ensure_ascii=False, default=lambda value: f"({type(value).__name__})")
    return _clip(text.encode(errors="backslashreplace").decode())  # half a surrogate pair cannot be written


def _shorten(value: Any, levels: int) -> Any:
    """A value with only the beginnings of its texts, lists and objects.

    Args:
        levels: how many levels of lists and objects are shown; below these, only how long each is.
    """
    if isinstance(value, str):
        return value if len(value) <= _TEXT_CHARACTERS else f"{value[:_TEXT_CHARACTERS]}…"
    if isinstance(value, Mapping):
        if not levels:
            return f"({len(value):,} keys)"
        short = {_shorten(str(key), 0): _shorten(value[key], levels - 1) for key in list(value)[:_OBJECT_KEYS]}
        if len(value) > _OBJECT_KEYS:
            short["…"] = f"{len(value) - _OBJECT_KEYS:,} more keys"
        return short
    if isinstance(value, list):
        if not levels:
            return f"({len(value):,} items)"
        items = [_shorten(item, levels - 1) for item in value[:_LIST_ITEMS]]
        if len(value) > _LIST_ITEMS:
            items.append(f"… {len(value) - _LIST_ITEMS:,} more")
        return items
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "(a number)"  # Python does not write numbers of more than 4,300 digits
    return value if value is None or isinstance(value, bool | int | float) else f"({type(value).__name__})"


def _clip(text: str) -> str:
    """The beginning of a text, marked with … if it goes on."""
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
