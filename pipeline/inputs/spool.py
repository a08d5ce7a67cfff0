"""Keeps blocks in the cache, named by their hash, for inputs without random access.

Compressed files, JSON arrays, separated values and texts are read once, become lines of JSON, and are cut like plain
files of lines; every block is kept in a separate file, so that tasks can read them in any order. A row that cannot
become JSON is kept as a line with the reason, `!reason: detail`.

Python's csv module reads separated values. pyarrow's reader is faster, but takes a quote that is never closed for a
value up to the end of the file, and drops quotes within a value, without saying so.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa

from ...schemas.errors import InputError, IntegrityError, PacktrainError
from ...schemas.files.foreign import map_regular
from ...schemas.fingerprint import hash_bytes
from ...stages.prep import RejectedRow
from ..store.local import LocalStore
from .blocks import Block, Lines
from .file_kinds import HEAD_BYTES, Compression, Container, refuse_inner, settle_text_kind
from .json_array import array_elements
from .lines import cut_lines, skip_byte_order_mark

Item = TypeVar("Item")

ROW_TOO_LONG = "row_too_long"
"""The ledger's reason for rows that are too long."""
REJECT_MARK = b"!"
"""What the line of a row begins with that cannot become JSON; no JSON does."""
_CHUNK_BYTES = 1 << 20
"""Bytes that are decompressed at once. Two limits below are at least as high, however short rows are."""
_MAX_UNPACKED_RATIO = 4
"""A kept block unpacks to at most this many times the bytes of its rows, and a chunk for its columns."""
_MAX_SEARCHED_RATIO = 4
"""A row of separated values longer than this many times `max_row_bytes` is not searched for its end."""
_CSV_REMEDY = "write the file again with a program's CSV writer, which doubles quotes within a field"


def scan_spooled(
    file: "BufferedReader[Any]",
    shown: str,
    kind: Container,
    compression: Compression | None,
    size: int,
    max_row_bytes: int,
    cache: Path,
) -> list[Block]:
    """The blocks of a compressed file, a JSON array, separated values or a text, each kept in the cache.

    Args:
        file: at its beginning.
        shown: its name in messages.
        kind: of a compressed file, what its name says; the content may be a JSON array instead.
        compression: None if the file is not compressed.
        size: bytes of a block.

    Raises:
        InputError: it is damaged or cut short, or contains something else.
        OSError: it cannot be read.
        StoreError: the cache cannot be written, or the disk is full.
    """
    try:
        stream = file
        if compression is not None:
            unpacked = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression.value)
            stream = BufferedReader(unpacked, _CHUNK_BYTES)
            # Compressed again, or a compressed table: neither is text. `peek` may give more than it is asked for.
            refuse_inner(shown, stream.peek(HEAD_BYTES)[:HEAD_BYTES])
        # A compressed file's own kind is known only from here.
        kind = settle_text_kind(kind, stream.peek(HEAD_BYTES)[:HEAD_BYTES])
        start = skip_byte_order_mark(stream)
        if kind is Container.JSONL:  # its lines are rows already
            return keep_blocks(cut_lines(stream, size, max_row_bytes, start=start), cache)
        lines = LINES[kind](stream, shown, max_row_bytes)
        return keep_blocks(_blocks_of_lines(lines, size), cache)
    except PacktrainError:  # a StoreError is an OSError, too, but not about this file
        raise
    except (OSError, pa.ArrowException) as error:
        if compression is None:
            raise
        raise InputError(
            f"{shown} is damaged or cut short: it cannot be decompressed by {compression.value} ({error}); copy or "
            f"download it again, and check it with `{compression.value} -t`"
        ) from error


def groups(items: Iterable[Item], size_of: Callable[[Item], int], size: int) -> Iterator[tuple[list[Item], int]]:
    """Neighbouring items of at most `size` bytes together, or a larger one alone, and their bytes. Where a group begins
    depends only on the items before it.
    """
    group: list[Item] = []
    group_size = 0
    for item in items:
        item_size = size_of(item)
        if group and group_size + item_size > size:
            yield group, group_size
            group = []
            group_size = 0
        group.append(item)
        group_size += item_size
    if group:
        yield group, group_size


def _blocks_of_lines(lines: Iterable[bytes], size: int) -> Iterator[tuple[Block, bytes]]:
    """Blocks of about `size` bytes, each with its bytes."""
    start = 0
    first_line = 0
    for group, group_size in groups(lines, len, size):
        data = b"".join(group)
        block = Block(
            start=start,
            end=start + group_size,
            first_line=first_line,
            lines=len(group),
            content=hash_bytes(data),
            kind="rows",
        )
        yield block, data
        start += group_size
        first_line += len(group)


def _reject_line(reason: str, detail: str) -> bytes:
    """What a block has in place of a row that cannot become JSON; `split_rows` reads it."""
    return REJECT_MARK + f"{reason}: {detail}\n".encode()


def _json_line(row: dict[str, str]) -> bytes:
    """A line of JSON. Bytes that are no UTF-8, lone surrogates in `row`, are written as they were: the row's reader
    refuses them, and so they cost this row alone.
    """
    try:
        return msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def split_rows(lines: Lines) -> tuple[Lines, list[RejectedRow]]:
    """The rows of a block of kind `rows`, and the rejects that `_reject_line` wrote among them."""
    rejects: list[RejectedRow] = []
    for number, line in lines:
        if line.startswith(REJECT_MARK):
            reason, _, detail = line.removeprefix(REJECT_MARK).decode().partition(": ")
            rejects.append(RejectedRow(number, reason, detail))
    if rejects:
        lines = [(number, line) for number, line in lines if not line.startswith(REJECT_MARK)]
    return lines, rejects


def describe_too_long(size: int, limit: int) -> str:
    """The detail of a row that is too long."""
    return f"the line has {size:,} bytes, more than max_row_bytes ({limit:,}); raise it to use the row"


# JSON arrays


def _array_lines(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int) -> Iterator[bytes]:
    """The elements of an array, one a line.

    Line breaks between the tokens of an element become carriage returns, which are white space in JSON too, and just as
    invalid within strings; nothing else changes.
    """
    try:
        for element in array_elements(stream, max_row_bytes):
            if len(element) > max_row_bytes:
                yield _reject_line(ROW_TOO_LONG, describe_too_long(len(element), max_row_bytes))
            else:
                yield element.replace(b"\n", b"\r") + b"\n"
    except ValueError as error:
        raise InputError(
            f"{shown} is not a JSON array ({error}); copy it again, or write JSONL, one object a line, where a damaged "
            "row costs only itself"
        ) from None


# Texts and separated values


def _text_lines(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int) -> Iterator[bytes]:
    """One row with the whole text; none for an empty file."""
    data = stream.read(max_row_bytes + 1)
    if len(data) > max_row_bytes:
        detail = f"the text is longer than max_row_bytes ({max_row_bytes:,}); raise it to use the text"
        yield _reject_line(ROW_TOO_LONG, detail)
    elif data:
        # Bytes that are no UTF-8 become lone surrogates, for which the row is rejected where it is read.
        yield _json_line({"text": data.decode("utf-8", "surrogateescape")})


class _CsvText:
    """The lines of a file of separated values, for `csv.reader`, which takes several for a row with line breaks in its
    fields. Bytes that are no UTF-8 become lone surrogates.

    Args:
        max_bytes: of a row. A quote that is never closed would take the whole file into memory.

    Raises:
        InputError: a row has more bytes, as it is read.
    """

    def __init__(self, stream: "BufferedReader[Any]", shown: str, max_bytes: int) -> None:
        self._stream = stream
        self._shown = shown
        self._max_bytes = max_bytes
        self._row = 0
        """Number of the row, from 1 behind the header."""
        self.row_bytes = 0
        """Bytes of the row that were read so far."""

    def begin_row(self, number: int) -> None:
        """Count the bytes that are read next as those of this row."""
        self._row = number
        self.row_bytes = 0

    def __iter__(self) -> Iterator[str]:
        """The lines that follow, with their ends."""
        while line := self._stream.readline(self._max_bytes + 1):
            self.row_bytes += len(line)
            if self.row_bytes > self._max_bytes:
                raise InputError(
                    f"{self._shown}: row {self._row:,} (without the header) has more than {self._max_bytes:,} bytes, "
                    f"or a quote in it is never closed; {_CSV_REMEDY}"
                )
            yield line.decode("utf-8", "surrogateescape")


def _csv_lines(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int, separator: str = ",") -> Iterator[bytes]:
    """Rows of separated values. A blank row gives a blank line."""
    csv.field_size_limit(sys.maxsize)  # rows are limited as a whole
    text = _CsvText(stream, shown, max(_MAX_SEARCHED_RATIO * max_row_bytes, _CHUNK_BYTES))
    rows = csv.reader(text, delimiter=separator, strict=True)
    columns = _header(shown, rows)
    for number in count(1):
        text.begin_row(number)
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is still open at the file's end has taken all rows behind it into one field. Any other error
            # costs only this row.
            if "unexpected end" in str(error):
                raise InputError(
                    f"{shown}: a quote opened in row {number:,} (without the header) is never closed: the file is cut "
                    f"short, or a quote within a field is not doubled; copy it again, or {_CSV_REMEDY}"
                ) from error
            yield _reject_line("bad_quotes", f"not a row of separated values ({error}); {_CSV_REMEDY}")
            continue
        yield _csv_line(fields, columns, size=text.row_bytes, max_row_bytes=max_row_bytes)


def _csv_line(fields: list[str], columns: list[str], size: int, max_row_bytes: int) -> bytes:
    """The line of one row of separated values: JSON, a blank line for a blank row, or a reason to reject it.

    Args:
        size: bytes of the row, with the end of its line.
    """
    if size - 1 > max_row_bytes:  # without the end of the line
        return _reject_line(ROW_TOO_LONG, describe_too_long(size, max_row_bytes))
    if not fields:
        return b"\n"
    if len(fields) != len(columns):
        detail = f"the row has {len(fields)} fields, but the header names {len(columns)}"
        return _reject_line("wrong_columns", detail)
    return _json_line(dict(zip(columns, fields, strict=True)))


def _header(shown: str, rows: Iterator[list[str]]) -> list[str]:
    """The names of the columns; none for an empty file."""
    try:
        names = next(rows, None)
        if names is None:
            return []
        "".join(names).encode()  # fails if a name is not UTF-8
        repeated = [name for name, times in Counter(names).items() if times > 1]
        problem = ""
        if not names:
            problem = "it is blank"
        if repeated:
            problem = f"two columns are called {repeated[0]!r}"
    except (csv.Error, UnicodeEncodeError) as error:
        names = []
        problem = str(error)
    if problem:
        raise InputError(
            f"{shown}: the first row is not a header ({problem}); it must give each column its own name, in UTF-8, "
            "with a newline at its end"
        )
    return names


# Files in the cache


def keep_blocks(blocks: "Iterable[tuple[Block, bytes | pa.Buffer]]", cache: Path) -> list[Block]:
    """Keep the bytes of blocks in the cache, and return the blocks with their files. A block that is one row too long
    has no file: the row is rejected unread.

    Raises:
        StoreError: the cache cannot be written, or the disk is full.
    """
    store = LocalStore(cache)
    kept_blocks = []
    for block, data in blocks:
        path = None if block.too_long else _spool(store, block.content, data)
        kept_blocks.append(msgspec.structs.replace(block, spooled=path))
    return kept_blocks


def _spool(store: LocalStore, hash: str, data: "bytes | pa.Buffer") -> Path:
    """Keep bytes in a file named by their hash; returns the file."""
    name = spool_name(hash)
    if not store.size(name):  # None if it is missing; an empty one is damaged
        compressed = pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)
        with store.draft() as draft:
            # Its unpacked size first, which pyarrow must be told.
            draft.file.write(len(memoryview(data)).to_bytes(8, "little"))
            draft.file.write(compressed)
            store.put(draft, name)
    return store.path(name)


def spool_name(hash: str) -> str:
    """The name in the cache of bytes with this hash."""
    return f"blocks/{hash[:2]}/{hash}.zst"


def unspool(block: Block) -> bytes:
    """The bytes of a kept block.

    Raises:
        IntegrityError: the file in the cache is missing or damaged.
    """
    path = cast(Path, block.spooled)
    content = b""  # has another hash than any block, and so gives the error below
    try:
        data = map_regular(path)
        size = int.from_bytes(data[:8], "little")  # which `_spool` has written before the compressed bytes
        # What the rows of a block take bounds what its file may unpack to.
        max_size = _MAX_UNPACKED_RATIO * (block.end - block.start) + _CHUNK_BYTES
        if size <= max_size:
            content = pa.Codec("zstd").decompress(data[8:], size, asbytes=True)
    except (OSError, MemoryError, OverflowError, ValueError, pa.ArrowException):
        pass
    if hash_bytes(content) != block.content:
        raise IntegrityError(
            f"{path} is missing or damaged; delete it and run again, and it will be made again. With several machines, "
            "all of them must share its folder"
        )
    return content


LINES: "dict[Container, Callable[[BufferedReader[Any], str, int], Iterable[bytes]]]" = {
    Container.JSON_ARRAY: _array_lines,
    Container.CSV: _csv_lines,
    Container.TSV: partial(_csv_lines, separator="\t"),
    Container.TEXT: _text_lines,
}
"""Kind of text → what makes lines of JSON of it, one a row, from (content, name in messages, `max_row_bytes`). A row
that cannot be used becomes a line of `_reject_line`. JSONL is not here: its lines are rows already."""
