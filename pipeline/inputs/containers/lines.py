"""Cuts JSONL at newlines, from a file or any other stream of bytes; and reads text files of one row each.

A block has as many whole lines as fit into `size` bytes. So where it begins depends only on the bytes before it, and
appending to a file changes only the last block.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import blake3

from ....schemas.errors import InputError
from ..blocks import Block, BlockRows, Lines, changed

Read = Callable[[int], bytes]
"""Returns up to this many further bytes; fewer only at the end."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """One block, as cut from a stream."""

    start: int
    end: int
    first_line: int
    lines: int
    hash: str
    too_long: bool
    data: bytes
    """Bytes of the line, if they are kept and the row is not too long."""


class LineSplitter(Protocol):
    """Finds the ends of rows."""

    def last_end(self, data: bytes) -> int:
        """One past the last end of a row in data that begins with a row; 0 if there is none."""
        ...

    def count(self, data: bytes, end: int) -> int:
        """How many rows end in the first bytes of data that begins with a row."""
        ...

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """One past the first end of a row, or 0; and whether a quote is open at the end of the piece.

        Args:
            inside: whether a quote is open at the beginning of the piece.
        """
        ...

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """Check a last row without a newline, and raise if it is incomplete."""
        ...


class Newlines:
    """Rows end at newlines."""

    def last_end(self, data: bytes) -> int:
        """See `LineSplitter`."""
        return data.rfind(b"\n") + 1

    def count(self, data: bytes, end: int) -> int:
        """See `LineSplitter`."""
        return data.count(b"\n", 0, end)

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """See `LineSplitter`."""
        return piece.find(b"\n") + 1, False

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """See `LineSplitter`. Any bytes may be the last line."""


class WholeFile:
    """A text file is one row, which ends with the file."""

    def last_end(self, data: bytes) -> int:
        """See `LineSplitter`."""
        return 0

    def count(self, data: bytes, end: int) -> int:
        """See `LineSplitter`."""
        return 0

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """See `LineSplitter`."""
        return 0, False

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """See `LineSplitter`. Any bytes may be a document."""


def cut(
    read: Read,
    size: int,
    max_row_bytes: int,
    splitter: LineSplitter,
    whole: "blake3.blake3 | None" = None,
    *,
    keep: bool = False,
    start: int = 0,
    rest: bytes = b"",
) -> Iterator[FoundBlock]:
    """Cut a stream into blocks, in one pass and bounded memory.

    Args:
        read: reads the stream.
        size: bytes of a block; only a single row may be longer.
        whole: hashes every byte.
        keep: return the bytes of the blocks.
        start: position of `rest` in the stream.
        rest: bytes already read, at most `size`.
    """
    line, position, ended = 0, start, False
    while True:
        if not ended and len(rest) < size:
            rest += _fill(read, size - len(rest))
            ended = len(rest) < size
        if not rest:
            return
        last = splitter.last_end(rest)
        end = len(rest) if ended else last
        if end:
            if end > last:
                splitter.finish(rest[last:], False, line + splitter.count(rest, last))
            view = memoryview(rest)[:end]
            if whole is not None:
                whole.update(view)
            ends = splitter.count(rest, end)
            lines = ends + (end > last)
            data = bytes(view) if keep else b""
            yield FoundBlock(position, position + end, line, lines, blake3.blake3(view).hexdigest(), False, data)
            line += lines
            position += end
            rest = rest[end:]
            continue
        # One row longer than a block: find its end, and keep it only if wanted and allowed.
        digest = blake3.blake3()
        kept: list[bytes] = []
        length, inside = 0, False
        while rest:
            found, inside = splitter.first_end(rest, inside)
            piece, rest = (rest[:found], rest[found:]) if found else (rest, b"")
            digest.update(piece)
            if whole is not None:
                whole.update(piece)
            length += len(piece)
            if keep and length <= max_row_bytes + 1:
                kept.append(piece)
            else:
                kept.clear()
            if found:
                length -= 1
                break
            if not ended:
                rest = _fill(read, size)
                ended = len(rest) < size
        else:
            splitter.finish(b"", inside, line)
            found = 0
        too_long = length > max_row_bytes
        length += bool(found)
        data = b"" if too_long else b"".join(kept)
        yield FoundBlock(position, position + length, line, 1, digest.hexdigest(), too_long, data)
        line += 1
        position += length


def _fill(read: Read, size: int) -> bytes:
    data = read(size)
    while 0 < len(data) < size and (more := read(size - len(data))):
        data += more
    return data


def scan_lines(path: Path, size: int, max_row_bytes: int) -> tuple[list[Block], int, str]:
    """The blocks of a plain file of lines, its size, and its hash.

    Raises:
        OSError: it cannot be read.
    """
    whole = blake3.blake3()
    with path.open("rb", buffering=0) as file:
        head = file.read(len(BOM))
        while 0 < len(head) < len(BOM) and (more := file.read(len(BOM) - len(head))):
            head += more
        start = len(BOM) if head == BOM else 0
        whole.update(head[:start])
        blocks = [
            Block(one.start, one.end, one.first_line, one.lines, one.hash, one.too_long)
            for one in cut(file.read, size, max_row_bytes, Newlines(), whole, start=start, rest=head[start:])
        ]
    return blocks, blocks[-1].end if blocks else start, whole.hexdigest()


def scan_text(path: Path, size: int, max_row_bytes: int) -> list[Block]:
    """The block of a plain text file; none if it is empty."""
    place = TextPlace()
    with path.open("rb", buffering=0) as file:
        start = len(BOM) if file.read(len(BOM)) == BOM else 0
        file.seek(start)
        return [
            Block(one.start, one.end, one.first_line, one.lines, place.hash(one.hash), one.too_long, place=place)
            for one in cut(file.read, size, max_row_bytes, WholeFile(), start=start)
        ]


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Reads a text file as one row with the column `text`."""

    def hash(self, data: str) -> str:
        """The hash of a block whose bytes have the hash `data`: not that of lines with the same bytes."""
        return blake3.blake3(f"one document: {data}".encode()).hexdigest()

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return self.parse(path, block, read_block(path, block, self.hash), limit)

    def parse(self, path: Path, block: Block, data: bytes, limit: int | None) -> BlockRows:
        """The row of a block's bytes."""
        # Undecodable bytes become lone surrogates, for which the row is rejected later.
        return BlockRows(records=[(0, {"text": data.decode("utf-8", "surrogateescape")})])


def read_block(path: Path, block: Block, key: Callable[[str], str] = str) -> bytes:
    """The bytes of a block.

    Args:
        key: makes the block's hash of the hash of its bytes.

    Raises:
        InputError: the file cannot be read, or has changed since the scan.
    """
    try:
        with path.open("rb", buffering=0) as file:
            data = _pread(file.fileno(), block.start, block.end - block.start)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; fix that, and run again") from error
    if key(blake3.blake3(data).hexdigest()) != block.content_hash:
        raise changed(path, block, False)
    return data


def split_lines(data: bytes, *limits: int | None) -> Lines:
    """(number, bytes) of the lines of a block, as many as the smallest limit allows."""
    most = min((limit for limit in limits if limit is not None), default=-1)
    lines = data.split(b"\n", most)
    if 0 <= most < len(lines):
        del lines[most:]
    elif not lines[-1]:
        lines.pop()
    return list(enumerate(lines))


def _pread(descriptor: int, position: int, size: int) -> bytes:
    """Up to `size` bytes; short only at the end of the file."""
    data = os.pread(descriptor, size, position)
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), position + len(data))):
        data += more
    return data
