"""Comma- and tab-separated values: a header, then rows of text, cut at newlines outside of quotes.

RFC 4180: a field with a separator, a quote or a newline is quoted, and quotes in it are doubled. So a newline ends a
row if and only if the number of quotes before it is even.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3

from ....schemas.errors import InputError
from ..blocks import Block, BlockRows
from .lines import BOM, Read, cut, read_block

WRONG_COLUMNS = "wrong_columns"
BAD_QUOTES = "bad_quotes"
_FIX = "write the file again with a program's CSV writer, which doubles quotes within a field"
_MAX_HEADER = 1 << 20


class QuotedRows:
    """Finds ends of rows outside of quotes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def last_end(self, data: bytes) -> int:
        """See `LineSplitter`."""
        if b'"' not in data:
            return data.rfind(b"\n") + 1
        end = len(data)
        outside = data.count(b'"') % 2 == 0
        while end:
            quote = data.rfind(b'"', 0, end)
            if outside and (newline := data.rfind(b"\n", quote + 1, end)) >= 0:
                return newline + 1
            end, outside = max(quote, 0), not outside
        return 0

    def count(self, data: bytes, end: int) -> int:
        """See `LineSplitter`."""
        if data.find(b'"', 0, end) < 0:
            return data.count(b"\n", 0, end)
        return sum(piece.count(b"\n") for piece in data[:end].split(b'"')[::2])

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """See `LineSplitter`."""
        at = 0
        while True:
            quote = piece.find(b'"', at)
            if not inside:
                newline = piece.find(b"\n", at, quote if quote >= 0 else len(piece))
                if newline >= 0:
                    return newline + 1, False
            if quote < 0:
                return 0, inside
            at, inside = quote + 1, not inside

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """See `LineSplitter`.

        Raises:
            InputError: a quote is open at the end of the file.
        """
        if inside != bool(row.count(b'"') % 2):
            raise InputError(
                f"{self._path}: a quote opened in row {line + 1:,} (without the header) is never closed: "
                f"the file is cut short, or a quote within a field is not doubled; copy it again, or {_FIX}"
            )


@dataclass(frozen=True, slots=True)
class SeparatedPlace:
    """Reads a byte range of rows; the header names the fields."""

    columns: tuple[str, ...]
    separator: str

    def hash(self, data: str) -> str:
        """The hash of a block whose bytes have the hash `data`."""
        return blake3.blake3(repr((self.separator, self.columns, data)).encode()).hexdigest()

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return self.parse(path, block, read_block(path, block, self.hash), limit)

    def parse(self, path: Path, block: Block, data: bytes, limit: int | None) -> BlockRows:
        """The rows of a block's bytes."""
        records = _split(data)
        wanted = [len(records), limit, block.take]
        records = records[: min(number for number in wanted if number is not None)]
        csv.field_size_limit(sys.maxsize)  # rows are limited as a whole
        out: list[tuple[int, Mapping[str, Any]]] = []
        rejects: list[tuple[int, str, str]] = []
        blank = 0
        for number, record in enumerate(records):
            # Half characters become lone surrogates, which preparing the row rejects by their name.
            text = record.decode("utf-8", "surrogateescape").removesuffix("\r")
            if not text:
                blank += 1
                continue
            try:
                (fields,) = csv.reader([text], delimiter=self.separator, strict=True)
            except (csv.Error, ValueError) as error:
                rejects.append((number, BAD_QUOTES, f"not a row of separated values ({error}); {_FIX}"))
                continue
            if len(fields) != len(self.columns):
                detail = f"the row has {len(fields)} fields, but the header names {len(self.columns)}"
                rejects.append((number, WRONG_COLUMNS, detail))
                continue
            out.append((number, dict(zip(self.columns, fields, strict=True))))
        return BlockRows(records=out, rejects=rejects, blank=blank)


def _split(data: bytes) -> list[bytes]:
    """The rows of a block, without their line ends."""
    out: list[bytes] = []
    waiting: list[bytes] = []
    inside = False
    for line in data.split(b"\n"):
        waiting.append(line)
        inside ^= bool(line.count(b'"') % 2)
        if not inside:
            out.append(b"\n".join(waiting))
            waiting = []
    if waiting:
        out.append(b"\n".join(waiting))
    return out if out[-1] else out[:-1]


def read_header(path: str, read: Read, separator: str) -> tuple[SeparatedPlace, int, bytes]:
    """The header, where the rows begin, and the bytes of them that were read.

    Raises:
        InputError: there is no valid header.
    """
    data = b""
    splitter = QuotedRows(path)
    while not (end := splitter.first_end(data, False)[0]):
        more = read(1 << 16)
        if not more:
            end = len(data)
            break
        data += more
        if len(data) > _MAX_HEADER:
            raise InputError(f"{path}: the first row has more than {_MAX_HEADER:,} bytes and is not a header; {_FIX}")
    raw = data[:end].removeprefix(BOM).rstrip(b"\r\n")
    if not data:
        return SeparatedPlace((), separator), 0, b""
    if not raw or b"\r" in raw:
        what = "is blank" if not raw else "ends in a carriage return without a newline"
        raise InputError(f"{path}: the first row {what}; the first row must name the columns, and rows end in newlines")
    try:
        (columns,) = csv.reader([raw.decode()], delimiter=separator, strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path}: the first row is not a header in UTF-8 ({error}); name the columns there") from None
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; give each its own name in the header")
    return SeparatedPlace(tuple(columns), separator), end, data[end:]


def scan_separated(path: Path, separator: str, size: int, max_row_bytes: int) -> list[Block]:
    """The blocks of a plain file of separated values.

    Raises:
        InputError: it has no header, or ends within quotes.
    """
    with path.open("rb", buffering=0) as file:
        place, start, _ = read_header(str(path), file.read, separator)
        file.seek(start)
        return [
            Block(one.start, one.end, one.first_line, one.lines, place.hash(one.hash), one.too_long, place=place)
            for one in cut(file.read, size, max_row_bytes, QuotedRows(str(path)), start=start)
        ]
