"""Reads an example's source row again, if its input is still what the run read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ...schemas.errors import PacktrainError
from ...schemas.units import plural
from ..dataset.documents import Address
from ..inputs.blocks import InputFile
from ..inputs.lines import BOM
from ..inputs.read import read_rows

_LONGEST = 1 << 40
"""Bytes of a row; the run has already decided which rows are too long."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source row, or why it cannot be shown."""

    state: Literal["same", "changed", "gone", "not taken", "unknown"]
    """Of the row's block: it still has the hash that the run noted, or another; it is not there; it lies beyond
    `max_rows`; or its place is unknown, or the input has no such row.
    """
    path: str
    """Path of the input; "" if unknown."""
    said: str
    """The state of the input, in a sentence."""
    item: bytes | Mapping[str, Any] | None = None
    """The row as its file has it: a line of JSON, or a decoded row. None if it cannot be read."""

    @property
    def value(self) -> Any:
        """The row as plain data; as text if the line is not JSON; None without a row."""
        if not isinstance(self.item, bytes):
            return dict(self.item) if self.item is not None else None
        try:
            return msgspec.json.decode(self.item.removeprefix(BOM))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.item.decode(errors="backslashreplace")


def source_row(file: InputFile | None, address: Address) -> SourceRow:
    """Read the source row at an address.

    Args:
        file: the row's file, as the run noted it; None if the note is gone.
    """
    if file is None:
        return SourceRow("unknown", "", "the folder no longer says where this input was")
    path, total = str(file.path), file.lines + file.not_taken
    if address.line > total:
        return SourceRow("unknown", path, f"{path} had {plural(total, 'row')}")
    if address.line > file.lines:
        return SourceRow("not taken", path, "the row lies beyond the source's max_rows")
    block = next(one for one in file.blocks if one.first_line < address.line <= one.first_line + one.lines)
    then = f"it had {file.size:,} bytes, with BLAKE3 hash {file.hash[:16]}"
    where = file.where(block)
    if not where.is_file():
        return SourceRow("gone", path, f"{where} is gone; {then}")
    try:
        rows = read_rows(where, block, _LONGEST)
    except (OSError, PacktrainError) as error:
        return SourceRow("changed", path, f"{path} has changed since the run; {then} ({error})")
    number = address.line - 1 - block.first_line
    found = (item for at, item in (*(rows.lines or ()), *(rows.records or ())) if at == number)
    return SourceRow("same", path, "as the run read it", next(found, None))
