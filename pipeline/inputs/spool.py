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
from ..store.local import LocalStore
from .blocks import Block, Lines, Reject
from .file_kinds import HEAD, Compression, Container, refuse_inner, settled
from .json_array import array_elements
from .lines import after_mark, cut

Item = TypeVar("Item")

ROW_TOO_LONG = "row_too_long"
"""The ledger's reason for rows that are too long."""
_CHUNK = 1 << 20
_UNPACKED = 4
"""A kept block unpacks to at most this many times the bytes of its rows, and a chunk for its columns."""
_LONGEST = 4
"""A row of separated values longer than this many times the limit is not searched for its end."""
_FIX = "write the file again with a program's CSV writer, which doubles quotes within a field"


def scan_spooled(
    file: "BufferedReader[Any]",
    shown: str,
    kind: Container,
    packing: Compression | None,
    size: int,
    max_row_bytes: int,
    cache: Path,
) -> list[Block]:
    """The blocks of a compressed file of lines, separated values or text, of a JSON array, or of separated values, each
    kept in the cache.

    Raises:
        InputError: it is damaged or cut short, or contains something else.
        OSError: it cannot be read.
        StoreError: the cache cannot be written, or the disk is full.
    """
    try:
        stream = file
        if packing is not None:
            stream = BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), packing.value), _CHUNK)
            refuse_inner(shown, stream.peek(HEAD)[:HEAD])
        kind, start = settled(kind, stream.peek(HEAD)[:HEAD]), after_mark(stream)
        if kind is Container.JSONL:  # its lines are rows already
            pieces = cut(stream, size, max_row_bytes, start=start)
        else:
            pieces = _grouped(LINES[kind](stream, shown, max_row_bytes), size)
        return keep(pieces, cache)
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException) as error:
        if packing is None:
            raise
        raise InputError(
            f"{shown} is damaged or cut short: it cannot be decompressed by {packing.value} ({error}); copy or "
            f"download it again, and check it with `{packing.value} -t`"
        ) from error


def groups(items: Iterable[Item], size_of: Callable[[Item], int], size: int) -> Iterator[tuple[list[Item], int]]:
    """Neighbouring items of at most `size` bytes together, or a larger one alone, and their bytes. Where a group begins
    depends only on the items before it.
    """
    group, total = list[Item](), 0
    for item in items:
        bytes = size_of(item)
        if group and total + bytes > size:
            yield group, total
            group, total = [], 0
        group.append(item)
        total += bytes
    if group:
        yield group, total


def _grouped(lines: Iterable[bytes], size: int) -> Iterator[tuple[Block, bytes]]:
    """Blocks of about `size` bytes, each with its bytes."""
    start = first = 0
    for group, total in groups(lines, len, size):
        data = b"".join(group)
        yield Block(start, start + total, first, len(group), hash_bytes(data), kind="rows"), data
        start, first = start + total, first + len(group)


def _rejected(reason: str, detail: str) -> bytes:
    return f"!{reason}: {detail}\n".encode()


def _line(row: dict[str, str]) -> bytes:
    """A line of JSON. Bytes that are no UTF-8, lone surrogates here, are kept: the row's reader refuses them."""
    try:
        return msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def split_rows(lines: Lines) -> tuple[Lines, list[Reject]]:
    """The rows of a block of kind `rows`, and those that are not usable."""
    rejects: list[Reject] = []
    for number, line in lines:
        if line.startswith(b"!"):
            reason, _, detail = line[1:].decode().partition(": ")
            rejects.append((number, reason, detail))
    return [one for one in lines if not one[1].startswith(b"!")] if rejects else lines, rejects


def too_long(size: int, limit: int) -> str:
    """The detail of a row that is too long."""
    return f"the line has {size:,} bytes, more than max_row_bytes ({limit:,}); raise it to use the row"


# JSON arrays


def _elements(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int) -> Iterator[bytes]:
    """The elements of an array.

    Line breaks between the tokens of an element become carriage returns, which are white space in JSON too, and just as
    invalid within strings; nothing else changes.
    """
    try:
        for element, size in array_elements(stream, max_row_bytes):
            if size > max_row_bytes:
                yield _rejected(ROW_TOO_LONG, too_long(size, max_row_bytes))
            else:
                yield element.replace(b"\n", b"\r") + b"\n"
    except ValueError as error:
        raise InputError(
            f"{shown} is not a JSON array ({error}); copy it again, or write JSONL, one object a line, where a damaged "
            "row costs only itself"
        ) from None


# Texts and separated values


def _text(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int) -> Iterator[bytes]:
    """One row, unless there is nothing."""
    data = stream.read(max_row_bytes + 1)
    if len(data) > max_row_bytes:
        said = f"the text is longer than max_row_bytes ({max_row_bytes:,}); raise it to use the text"
        yield _rejected(ROW_TOO_LONG, said)
    elif data:
        yield _line({"text": data.decode("utf-8", "surrogateescape")})


def _separated(stream: "BufferedReader[Any]", shown: str, max_row_bytes: int, separator: str = ",") -> Iterator[bytes]:
    """Rows of separated values. A blank row gives a blank line."""
    number = taken = 0
    longest = max(_LONGEST * max_row_bytes, _CHUNK)

    def texts() -> Iterator[str]:
        """The lines. Bytes that are no UTF-8 become lone surrogates."""
        nonlocal taken
        while line := stream.readline(longest + 1):
            taken += len(line)
            if taken > longest:
                raise InputError(
                    f"{shown}: row {number:,} (without the header) has more than {longest:,} bytes, or a quote in it "
                    f"is never closed; {_FIX}"
                )
            yield line.decode("utf-8", "surrogateescape")

    csv.field_size_limit(sys.maxsize)  # rows are limited as a whole
    rows = csv.reader(texts(), delimiter=separator, strict=True)
    columns = _header(shown, rows)
    for number in count(1):
        taken = 0
        try:
            fields = next(rows)
            row = dict(zip(columns, fields, strict=False))
            if taken - 1 > max_row_bytes:
                yield _rejected(ROW_TOO_LONG, too_long(taken, max_row_bytes))
            elif fields and len(fields) != len(columns):
                said = f"the row has {len(fields)} fields, but the header names {len(columns)}"
                yield _rejected("wrong_columns", said)
            else:
                yield _line(row) if fields else b"\n"
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise InputError(
                    f"{shown}: a quote opened in row {number:,} (without the header) is never closed: the file is cut "
                    f"short, or a quote within a field is not doubled; copy it again, or {_FIX}"
                ) from error
            yield _rejected("bad_quotes", f"not a row of separated values ({error}); {_FIX}")


def _header(shown: str, rows: Iterator[list[str]]) -> list[str]:
    """The names of the columns; none for an empty file."""
    try:
        if (names := next(rows, None)) is None:
            return []
        "".join(names).encode()
        twice = [name for name, times in Counter(names).items() if times > 1]
        why = f"two columns are called {twice[0]!r}" if twice else "" if names else "it is blank"
    except (csv.Error, UnicodeEncodeError) as error:
        names, why = [], str(error)
    if why:
        raise InputError(
            f"{shown}: the first row is not a header ({why}); it must give each column its own name, in UTF-8, with a "
            "newline at its end"
        )
    return names


# Files in the cache


def keep(blocks: "Iterable[tuple[Block, bytes | pa.Buffer]]", cache: Path) -> list[Block]:
    """Blocks whose bytes are kept in the cache, but for those that are too long.

    Raises:
        StoreError: the cache cannot be written, or the disk is full.
    """
    store = LocalStore(cache)
    kept = ((block, None if block.too_long else _spool(store, block.content, data)) for block, data in blocks)
    return [msgspec.structs.replace(block, spooled=path) for block, path in kept]


def _spool(store: LocalStore, hash: str, data: "bytes | pa.Buffer") -> Path:
    """Keep bytes in a file named by their hash; returns the file."""
    name = spool_name(hash)
    if not store.size(name):
        packed = pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)
        with store.draft() as draft:
            draft.file.write(len(memoryview(data)).to_bytes(8, "little"))
            draft.file.write(packed)
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
    try:
        data = map_regular(path)
        size = int.from_bytes(data[:8], "little")
        # What the rows of a block take bounds what its file may unpack to.
        most = _UNPACKED * (block.end - block.start) + _CHUNK
        out: bytes = pa.Codec("zstd").decompress(data[8:], size, asbytes=True) if size <= most else b""
    except (OSError, MemoryError, OverflowError, ValueError, pa.ArrowException):
        out = b""
    if hash_bytes(out) != block.content:
        raise IntegrityError(
            f"{path} is missing or damaged; delete it and run again, and it will be made again. With several machines, "
            "all of them must share its folder"
        )
    return out


LINES: "dict[Container, Callable[[BufferedReader[Any], str, int], Iterable[bytes]]]" = {
    Container.JSON_ARRAY: _elements,
    Container.CSV: _separated,
    Container.TSV: partial(_separated, separator="\t"),
    Container.TEXT: _text,
}
"""(content, name in messages, `max_row_bytes`) → lines of JSON, one a row, of each kind of text but JSONL. A row that
cannot be used is a line that `_rejected` makes."""
