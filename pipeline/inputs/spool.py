"""Keeps blocks in the cache, named by their hash, for inputs without random access.

Compressed files, JSON arrays and separated values can only be read from the beginning. They are read once, become
lines of JSON, and are cut like plain files of lines; every block is kept in a separate file, so that tasks can read
them in any order.
"""

import csv
import mmap
import re
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import blake3
import msgspec
import pyarrow as pa

from ...schemas.errors import InputError, IntegrityError, PacktrainError
from ..store.local import LocalStore, explain
from .blocks import Block, changed
from .detect import Compression, Container, refuse_inner, settled
from .lines import BOM, Read, cut, fill

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


def scan_spooled(
    path: Path, kind: Container, packing: Compression | None, size: int, max_row_bytes: int, cache: Path
) -> list[Block]:
    """The blocks of a compressed file of lines, separated values or text, of a JSON array, or of separated values, each
    kept in the cache.

    Raises:
        InputError: it is damaged or cut short, or contains something else.
        StoreError: the cache cannot be written, or the disk is full.
    """
    store, blocks = LocalStore(cache), list[Block]()
    with (
        path.open("rb", buffering=0) as file,
        decompressed(file, str(path), packing) as source,
        rows_of(source, str(path), kind, packing, max_row_bytes, cache) as rows,
    ):
        most = max_row_bytes if rows.divided is None else sys.maxsize
        for block, data in cut(rows.read, size, most, start=rows.start):
            if rows.divided is not None:
                block = rows.divided.of(block)
            kept = None if block.too_long else spool(store, block.content_hash, data)
            blocks.append(msgspec.structs.replace(block, spooled=kept))
    return blocks


@dataclass(slots=True)
class Divided:
    """What is known of rows that were divided into columns here, besides their lines of JSON."""

    end: int = 0
    """Where the rows seen by `of` end in the decompressed file."""
    ends: deque[int] = field(default_factory=deque)
    """Where each of the other rows ends there."""
    rejects: dict[int, tuple[str, str]] = field(default_factory=dict)
    """(reason, detail) of rows that could not be divided, by their number. Their lines are blank."""

    def of(self, block: Block) -> Block:
        """A block of these rows, made of the next block of lines."""
        bad = [number for number in self.rejects if number < block.first_line + block.lines]
        rejects = tuple((number - block.first_line, *self.rejects.pop(number)) for number in bad)
        digest = blake3.blake3(repr((block.hash, rejects)).encode()).hexdigest()
        start, content = self.end, block.hash
        for _ in range(block.lines):
            self.end = self.ends.popleft()
        return msgspec.structs.replace(
            block, start=start, end=self.end, kind="rows", hash=digest, content=content, rejects=rejects
        )


class RowStream:
    """The rows of a file as lines of JSON.

    Args:
        lines: the lines, or any pieces of them.
        start: bytes of the file before its first row.
    """

    def __init__(self, lines: Iterator[bytes], start: int = 0, divided: Divided | None = None) -> None:
        self.lines, self._waiting = lines, bytearray()
        self.start, self.divided = start, divided

    def read(self, count: int) -> bytes:
        """See `lines.Read`."""
        while len(self._waiting) < count and (more := next(self.lines, None)) is not None:
            self._waiting += more
        data = bytes(memoryview(self._waiting)[:count])
        del self._waiting[:count]
        return data


@contextmanager
def rows_of(
    source: Read, shown: str, kind: Container, packing: Compression | None, max_row_bytes: int, cache: Path
) -> Iterator[RowStream]:
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

    divided = Divided()
    if kind is Container.JSON_ARRAY:
        with _whole(read, cache) as data:
            yield RowStream(_elements(shown, data))
    elif kind in (Container.CSV, Container.TSV):
        yield RowStream(_separated(shown, read, kind.separator, max_row_bytes, divided), divided=divided)
    elif kind is Container.TEXT:
        yield RowStream(_text(read, max_row_bytes, divided), divided=divided)
    else:
        yield RowStream(iter(lambda: read(_CHUNK), b""), start)


def spool(store: LocalStore, hash: str, data: "bytes | pa.Buffer") -> Path:
    """Keep bytes in a file named by their hash; returns the file."""
    name = spool_name(hash)
    if store.size(name):
        return store.path(name)
    packed = pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)
    with store.draft(name.rpartition("/")[0]) as draft:
        draft.file.write(len(memoryview(data)).to_bytes(8, "little"))
        draft.file.write(packed)
        store.put(draft, name, replace_damaged=True)
    return store.path(name)


def spool_name(hash: str) -> str:
    """The name in the cache of bytes with this hash."""
    return f"blocks/{hash[:2]}/{hash}.zst"


def unspool(path: Path, block: Block) -> bytes:
    """The bytes of a kept block.

    Raises:
        InputError: the file in the cache is damaged.
        IntegrityError: it is missing.
    """
    try:
        data = path.read_bytes()
        out: bytes = pa.Codec("zstd").decompress(data[8:], int.from_bytes(data[:8], "little"), asbytes=True)
    except FileNotFoundError:
        raise IntegrityError(f"{path} vanished from the cache; run again, and it will be made again") from None
    except (OSError, MemoryError, OverflowError, pa.ArrowException):
        raise changed(path, block) from None
    if blake3.blake3(out).hexdigest() != block.content_hash:
        raise changed(path, block)
    return out


@contextmanager
def decompressed(file: IO[bytes], shown: str, packing: Compression | None) -> Iterator[Read]:
    """Read an open file, decompressed.

    Args:
        shown: its name in messages.

    Raises:
        InputError: the stream is damaged or ends too early.
    """
    place = 0
    try:
        raw = pa.PythonFile(file, mode="r")
        stream = pa.CompressedInputStream(raw, packing.value) if packing else raw

        def read(count: int) -> bytes:
            nonlocal place
            try:
                data: bytes = stream.read(min(count, _CHUNK))
            except (OSError, pa.ArrowException) as error:
                if packing is None:
                    raise
                raise _damaged(shown, packing, place, error) from error
            place += len(data)
            return data

        yield read
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{shown} cannot be read: {error}; fix that, and run again") from error


def _damaged(shown: str, packing: Compression, place: int, error: Exception) -> InputError:
    said = str(error)
    if "Truncated" in said:
        what = "is cut short: its compressed stream has no end"
    else:
        what = f"is damaged: it cannot be decompressed by {packing.value} ({said})"
    return InputError(
        f"{shown} {what}, somewhere after {place:,} decompressed bytes; copy or download it again, and check it with "
        f"`{'gzip' if packing is Compression.GZIP else 'zstd'} -t`"
    )


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
    depth = begin = count = 0
    ended = False
    for token in _TOKEN.finditer(data):
        kind = token[0][:1]
        if ended:
            break
        if kind in b"[{":
            depth += 1
            begin = token.end() if depth == 1 else begin
        elif kind in b"]}":
            depth -= 1
            ended = not depth
        if token[0] == b'"':
            break
        if ended or (kind == b"," and depth == 1):
            element = data[begin : token.start()]
            begin = token.end()
            if not ended or count or element.strip(_SPACE):
                yield element
                count += 1
    if not ended:
        raise InputError(
            f"{path} is cut short: its JSON array has no end, or a quote or a bracket stays open after element "
            f"{count:,}; copy it again, or write it again"
        )
    if data[begin:].strip(_SPACE):
        raise InputError(
            f"{path}: something follows the end of its JSON array, after element {count:,}; write one array per file, "
            "or JSONL, one object a line"
        )


# Separated values, and texts


class _TextLines:
    """The lines of a stream as text, for `csv`. Half characters become lone surrogates.

    Args:
        longest: bytes of a row at which to give up.
    """

    def __init__(self, path: str, read: Read, longest: int) -> None:
        self._path, self._read, self._longest = path, read, longest
        self._lines, self._rest = iter(list[bytes]()), b""
        self.taken = 0
        """Bytes returned since the caller last set this to zero."""
        self.row = 0
        """Number of the row for messages."""
        self.position = 0
        """Bytes returned in all."""
        self.ended = False

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        line, last = next(self._lines, None), False
        while line is None:
            data = self._read(_CHUNK)
            if not data:
                line, self._rest, self.ended = self._rest, b"", not self._rest
                if self.ended:
                    raise StopIteration
                last = True
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines = iter(lines)
            line = next(self._lines, None)
            self._check(len(self._rest) if line is None else 0)
        self._check(len(line))
        size = len(line) + (not last)
        self.taken += size
        self.position += size
        return line.decode("utf-8", "surrogateescape") + "\n"

    def _check(self, more: int) -> None:
        if self.taken + more > self._longest:
            raise InputError(
                f"{self._path}: row {self.row:,} (without the header) has more than {self._longest:,} bytes, or a "
                f"quote in it is never closed; {_FIX}"
            )


def _separated(path: str, read: Read, separator: str, max_row_bytes: int, divided: Divided) -> Iterator[bytes]:
    """Rows of separated values as lines of JSON. A blank row gives a blank line."""
    source = _TextLines(path, read, max(_LONGEST * max_row_bytes, _CHUNK))
    csv.field_size_limit(sys.maxsize)  # rows are limited as a whole
    rows = csv.reader(source, delimiter=separator, strict=True)
    columns = _header(path, rows)
    divided.end = source.position
    rejects, encode = divided.rejects, msgspec.json.Encoder().encode
    number = -1
    while columns is not None:
        number += 1
        source.taken, source.row = 0, number + 1
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if source.ended:
                raise InputError(
                    f"{path}: a quote opened in row {number + 1:,} (without the header) is never closed: "
                    f"the file is cut short, or a quote within a field is not doubled; copy it again, or {_FIX}"
                ) from error
            rejects[number] = BAD_QUOTES, f"not a row of separated values ({error}); {_FIX}"
            fields = []
        divided.ends.append(source.position)
        line = b""
        if number in rejects:
            pass
        elif source.taken - 1 > max_row_bytes:
            rejects[number] = ROW_TOO_LONG, too_long(source.taken, max_row_bytes)
        elif fields and len(fields) != len(columns):
            rejects[number] = (
                WRONG_COLUMNS,
                f"the row has {len(fields)} fields, but the header names {len(columns)}",
            )
        elif fields:
            try:
                line = encode(dict(zip(columns, fields, strict=True)))
            except UnicodeEncodeError as error:
                byte = ord(error.object[error.start]) & 0xFF
                rejects[number] = "invalid_utf8", f"a field is not UTF-8: it has the byte {byte:#04x}"
        yield line + b"\n"


def _header(path: str, rows: Iterator[list[str]]) -> list[str] | None:
    """The names of the columns; None for an empty file."""
    try:
        columns = next(rows, None)
        "".join(columns or ()).encode()
    except (csv.Error, UnicodeEncodeError) as error:
        what = "ends in a carriage return without a newline" if "new-line" in str(error) else "is not a header in UTF-8"
        raise InputError(
            f"{path}: the first row {what} ({error}); the first row must name the columns, and rows end in newlines"
        ) from None
    if columns is None:
        return None
    if not columns:
        raise InputError(f"{path}: the first row is blank; the first row must name the columns")
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; give each its own name in the header")
    return columns


def _text(read: Read, max_row_bytes: int, divided: Divided) -> Iterator[bytes]:
    """A text as a line of JSON."""
    data = fill(read, max_row_bytes + 1)
    size = len(data)
    while more := read(_CHUNK):
        size += len(more)
    divided.ends.append(size)
    if size > max_row_bytes:
        divided.rejects[0] = ROW_TOO_LONG, too_long(size, max_row_bytes)
        yield b"\n"
    elif data:
        try:
            yield msgspec.json.encode({"text": data.decode()}) + b"\n"
        except UnicodeDecodeError as error:
            divided.rejects[0] = "invalid_utf8", f"the text is not UTF-8: it has the byte {data[error.start]:#04x}"
            yield b"\n"


def too_long(size: int, limit: int) -> str:
    """The detail of a row that is too long."""
    return f"the line has {size:,} bytes, more than max_row_bytes ({limit:,}); raise it to use the row"
