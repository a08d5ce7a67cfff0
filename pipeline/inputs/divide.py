"""Divides what is not JSONL into lines of JSON: JSON arrays, separated values and texts, read once from their start."""

import csv
import mmap
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from ...schemas.errors import InputError
from ..store.local import explain
from .file_kinds import Compression, Container, refuse_inner, settled
from .lines import BOM, Read, fill

ROW_TOO_LONG = "row_too_long"
"""The ledger's reason for rows that are too long."""
WRONG_COLUMNS = "wrong_columns"
BAD_QUOTES = "bad_quotes"
_FIX = "write the file again with a program's CSV writer, which doubles quotes within a field"
_CHUNK = 1 << 20
_HEAD = 4096
_LONGEST = 4
"""A row of separated values longer than this many times the limit is not searched for its end."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A string of JSON, a quote without its end, or a character of structure."""
_SPACE = b" \t\r\n"
Rejects = dict[int, tuple[str, str]]
"""(reason, detail) of rows that could not be divided, by their number. Their lines are blank."""


@dataclass(slots=True)
class RowLines:
    """The rows of a file as lines of JSON."""

    lines: Iterator[bytes]
    """The lines, or any pieces of them."""
    start: int = 0
    """Bytes of the file before its first row."""
    rejects: Rejects | None = None
    """Rows that cannot be used, added as the lines are taken; None if rows are not checked while they are divided."""


@contextmanager
def rows_of(
    source: Read, shown: str, kind: Container, packing: Compression | None, max_row_bytes: int, cache: Path
) -> Iterator[RowLines]:
    """Read a file's rows as lines of JSON, from the first on.

    Args:
        source: reads the decompressed file.
        shown: its name in messages.
        cache: holds the decompressed bytes of a JSON array meanwhile.

    Raises:
        InputError: it is damaged or cut short, or contains something else.
        StoreError: the cache cannot be written, or the disk is full.
    """
    head = fill(source, _HEAD)
    if packing is not None:
        refuse_inner(shown, head)
    kind = settled(kind, head)
    start = len(BOM) if head.startswith(BOM) else 0
    waiting = head[start:]

    def read(count: int) -> bytes:
        nonlocal waiting
        if waiting:
            piece, waiting = waiting[:count], waiting[count:]
            return piece
        return source(count)

    rejects: Rejects = {}
    if kind is Container.JSON_ARRAY:
        with _whole(read, cache) as data:
            yield RowLines(_elements(shown, data))
    elif kind in (Container.CSV, Container.TSV):
        yield RowLines(_separated(shown, read, kind.separator, max_row_bytes, rejects), rejects=rejects)
    elif kind is Container.TEXT:
        yield RowLines(_text(read, max_row_bytes, rejects), rejects=rejects)
    else:
        yield RowLines(iter(lambda: read(_CHUNK), b""), start)


def too_long(size: int, limit: int) -> str:
    """The detail of a row that is too long."""
    return f"the line has {size:,} bytes, more than max_row_bytes ({limit:,}); raise it to use the row"


# JSON arrays


@contextmanager
def _whole(read: Read, cache: Path) -> Iterator[bytes | mmap.mmap]:
    """All bytes of a stream, mapped from a file that is gone afterwards."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=cache, buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise explain(error, cache) from error
    with file:
        while data := read(_CHUNK):
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError as error:
                raise explain(error, cache) from error
        if not file.tell():
            yield b""
            return
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # not closed here: elements may still refer to it


def _elements(path: str, data: bytes | mmap.mmap) -> Iterator[bytes]:
    """The elements of an array, a line each.

    Line breaks between the tokens of an element become carriage returns, which are white space in JSON too, and just as
    invalid within strings; nothing else changes.
    """
    elements: Iterator[bytes]
    try:
        elements = map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw]))
    except (msgspec.DecodeError, RecursionError):  # an element may be no JSON, which costs its row
        elements = _split_array(path, data)
    for element in elements:
        # An extra comma gives an invalid row, not a blank line.
        yield (element.strip(_SPACE).replace(b"\n", b"\r") or b",") + b"\n"


def _split_array(path: str, data: bytes | mmap.mmap) -> Iterator[bytes]:
    """As `_elements`, of an array with elements that are no JSON.

    Raises:
        InputError: the array has no end, or something follows it.
    """
    depth = begin = found = 0
    for token in _TOKEN.finditer(data):
        kind = token[0][:1]
        depth += (kind in b"[{") - (kind in b"]}")
        if depth == 1 and kind == b"[":
            begin = token.end()
        elif not depth or (depth == 1 and kind == b","):
            element, begin = data[begin : token.start()], token.end()
            if depth or found or element.strip(_SPACE):
                yield element
                found += 1
        if not depth or token[0] == b'"':
            break
    if depth or token[0] == b'"':
        raise InputError(
            f"{path} is cut short: its JSON array has no end, or a quote or a bracket stays open after element "
            f"{found:,}; copy it again, or write it again"
        )
    if data[begin:].strip(_SPACE):
        raise InputError(
            f"{path}: something follows the end of its JSON array, after element {found:,}; write one array per file, "
            "or JSONL, one object a line"
        )


# Separated values


class _TextLines:
    """The lines of a stream as text, for `csv`. Bytes that are no UTF-8 become lone surrogates.

    Args:
        longest: bytes of a row at which to give up.
    """

    def __init__(self, path: str, read: Read, longest: int) -> None:
        self._path, self._longest = path, longest
        self._lines = _lines(read, longest)
        self.taken = 0
        """Bytes returned since the caller last set this to zero."""
        self.row = 0
        """Number of the row for messages."""
        self.ended = False

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.taken += len(line)
        if self.taken > self._longest:
            raise InputError(
                f"{self._path}: row {self.row:,} (without the header) has more than {self._longest:,} bytes, or a "
                f"quote in it is never closed; {_FIX}"
            )
        return line.decode("utf-8", "surrogateescape")


def _lines(read: Read, longest: int) -> Iterator[bytes]:
    """The lines of a stream, each with its end; the beginning of one that is longer than `longest`."""
    rest = b""
    while data := read(_CHUNK):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > longest:
            yield rest
    if rest:
        yield rest + b"\n"


def _separated(path: str, read: Read, separator: str, max_row_bytes: int, rejects: Rejects) -> Iterator[bytes]:
    """Rows of separated values as lines of JSON. A blank row gives a blank line."""
    source = _TextLines(path, read, max(_LONGEST * max_row_bytes, _CHUNK))
    csv.field_size_limit(sys.maxsize)  # rows are limited as a whole
    rows = csv.reader(source, delimiter=separator, strict=True)
    columns = _header(path, rows)
    encode = msgspec.json.Encoder().encode
    for number in count():
        source.taken, source.row = 0, number + 1
        line = b""
        try:
            fields = next(rows, None)
            if fields is None:
                return
            if source.taken - 1 > max_row_bytes:
                rejects[number] = ROW_TOO_LONG, too_long(source.taken, max_row_bytes)
            elif fields and len(fields) != len(columns):
                said = f"the row has {len(fields)} fields, but the header names {len(columns)}"
                rejects[number] = WRONG_COLUMNS, said
            elif fields:
                line = encode(dict(zip(columns, fields, strict=True)))
        except csv.Error as error:
            if source.ended:
                raise InputError(
                    f"{path}: a quote opened in row {number + 1:,} (without the header) is never closed: "
                    f"the file is cut short, or a quote within a field is not doubled; copy it again, or {_FIX}"
                ) from error
            rejects[number] = BAD_QUOTES, f"not a row of separated values ({error}); {_FIX}"
        except UnicodeEncodeError as error:
            byte = ord(error.object[error.start]) & 0xFF
            rejects[number] = "invalid_utf8", f"a field is not UTF-8: it has the byte {byte:#04x}"
        yield line + b"\n"


def _header(path: str, rows: Iterator[list[str]]) -> list[str]:
    """The names of the columns; none for an empty file."""
    try:
        columns = next(rows, None)
        "".join(columns or ()).encode()
    except (csv.Error, UnicodeEncodeError) as error:
        what = "ends in a carriage return without a newline" if "new-line" in str(error) else "is not a header in UTF-8"
        raise InputError(
            f"{path}: the first row {what} ({error}); the first row must name the columns, and rows end in newlines"
        ) from None
    if columns == []:
        raise InputError(f"{path}: the first row is blank; the first row must name the columns")
    twice = [name for name in columns or () if (columns or []).count(name) > 1]
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; give each its own name in the header")
    return columns or []


# Texts


def _text(read: Read, max_row_bytes: int, rejects: Rejects) -> Iterator[bytes]:
    """A text as a line of JSON."""
    data = fill(read, max_row_bytes + 1)
    size = len(data)
    while more := read(_CHUNK):
        size += len(more)
    line = b""
    if size > max_row_bytes:
        rejects[0] = ROW_TOO_LONG, too_long(size, max_row_bytes)
    elif data:
        try:
            line = msgspec.json.encode({"text": data.decode()})
        except UnicodeDecodeError as error:
            rejects[0] = "invalid_utf8", f"the text is not UTF-8: it has the byte {data[error.start]:#04x}"
    if data:
        yield line + b"\n"
