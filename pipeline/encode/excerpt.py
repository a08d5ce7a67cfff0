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
from ..inputs.spool import unspool
from ..inputs.tables import read_table, to_rows

CHARACTERS = 300
"""Maximum number of characters of an excerpt."""
_TEXT_CHARACTERS, _ITEMS, _KEYS, _DEPTH = 48, 2, 12, 4
"""So much is shown of each text, list and object of a row, and so many levels."""


def excerpts(block: Block, rows: Collection[int]) -> dict[int, str]:
    """Excerpts of rows by their number in the block, from 0: their keys and the beginnings of their values, or the
    beginning of a line that is not JSON. Those of CSV rows and array elements that could not be read are missing.

    Raises:
        InputError: the file is no longer what was scanned, or is not on this machine.
        IntegrityError: the block's copy in the cache is missing or damaged.
    """
    if block.members:
        found: dict[int, str] = {}
        first = 0
        for member in block.members:
            inside = [row - first for row in rows if first <= row < first + member.lines]
            if inside:
                found |= {first + row: text for row, text in excerpts(member, inside).items()}
            first += member.lines
        return found
    if block.too_long:
        return {0: _clip(_beginning(block))} if block.spooled is None and block.kind == "lines" else {}
    if block.kind in ("groups", "batches"):
        table, _ = read_table(block, None)
        records = ((row, to_rows(table.slice(row, 1), None).records) for row in rows)
        return {row: _excerpt_of(record[0][1]) for row, record in records if record}
    lines = (block_bytes(block) if block.spooled is None else unspool(block)).split(b"\n")
    marked = block.kind == "rows"  # of rows that could not be read, spooled blocks keep the reason alone
    return {row: _excerpt_of_line(lines[row]) for row in rows if not (marked and lines[row].startswith(b"!"))}


def _beginning(block: Block) -> str:
    """The first bytes of a row that is too long to be read."""
    with open_regular(block.path) as file:
        file.seek(block.start)
        return file.read(CHARACTERS).decode(errors="backslashreplace")


def _excerpt_of_line(line: bytes) -> str:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, RowRejectedError):
        row = msgspec.json.decode(line)
        require_shallow(row, "the row")
        return _excerpt_of(row)
    return _clip(line[: 4 * CHARACTERS].decode(errors="backslashreplace"))


def _excerpt_of(row: Any) -> str:
    text = json.dumps(_shortened(row, _DEPTH), ensure_ascii=False, default=lambda value: f"({type(value).__name__})")
    return _clip(text.encode(errors="backslashreplace").decode())


def _shortened(value: Any, depth: int) -> Any:
    """A value with only the beginnings of its texts, lists and objects."""
    if isinstance(value, str):
        return value if len(value) <= _TEXT_CHARACTERS else f"{value[:_TEXT_CHARACTERS]}…"
    if isinstance(value, Mapping):
        if not depth:
            return f"({len(value):,} keys)"
        items = {_shortened(str(key), 0): _shortened(value[key], depth - 1) for key in list(value)[:_KEYS]}
        return items | ({"…": f"{len(value) - _KEYS:,} more keys"} if len(value) > _KEYS else {})
    if isinstance(value, list):
        if not depth:
            return f"({len(value):,} items)"
        items_of_list = [_shortened(item, depth - 1) for item in value[:_ITEMS]]
        return items_of_list + ([f"… {len(value) - _ITEMS:,} more"] if len(value) > _ITEMS else [])
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "(a number)"  # Python does not write numbers of more than 4,300 digits
    return value if value is None or isinstance(value, bool | int | float) else f"({type(value).__name__})"


def _clip(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
