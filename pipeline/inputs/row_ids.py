"""Which row of the data a prompt came from, so that a model's answers find their problem again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from .blocks import Block, BlockRows, InputFile

COLUMNS = ("id", "row")


class _Given(msgspec.Struct):
    id: Any = None
    row: Any = None


_decode = msgspec.json.Decoder(_Given).decode


def numbered_blocks(files: Sequence[InputFile]) -> Iterator[tuple[InputFile, Block, int]]:
    """Every block of a source, with the number of its first row: from 0, over all files. Blank lines count."""
    before = 0
    for file in files:
        for block in file.blocks:
            yield file, block, before + block.first_line
        before += file.lines + file.not_taken


def given_ids(rows: BlockRows) -> dict[int, tuple[str, int | None]]:
    """(id, row) that the rows themselves give, by their number within the block: "" and None where they do not.

    An id is a text or a whole number; a row is a number from 0.
    """
    if rows.records is not None:
        return {number: _plain(row) for number, row in rows.records}
    return {number: _of_line(line) for number, line in rows.lines or ()}


def _of_line(line: bytes) -> tuple[str, int | None]:
    try:
        found = _decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", None  # the format says what is wrong with it
    return _plain({"id": found.id, "row": found.row})


def _plain(row: Mapping[str, Any]) -> tuple[str, int | None]:
    id, number = row.get("id"), row.get("row")
    return (
        str(id) if isinstance(id, str | int) and not isinstance(id, bool) else "",
        number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None,
    )
