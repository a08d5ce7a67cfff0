"""Lines: JSONL cut at newlines, from a file or from any other stream of bytes.

A block is what fits into `size` bytes from where it begins, up to its last newline; so where a block begins depends
only on the bytes before it, and data appended to a file leaves all blocks but the last as they were.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import blake3

from ...schemas.errors import InputError
from .blocks import Block, Lines

Read = Callable[[int], bytes]
"""Up to so many bytes more; fewer only at the end."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Cut:
    """One block as it is found."""

    start: int
    end: int
    first_line: int
    lines: int
    hash: str
    too_long: bool
    data: bytes
    """Its bytes, where they are asked for and the row is not too long."""


class Splitter(Protocol):
    """Knows where a row ends."""

    def last_end(self, data: bytes) -> int:
        """One past the last end of a row in data that begins with a row; 0 where there is none."""
        ...

    def count(self, data: bytes, end: int) -> int:
        """How many rows end in the first bytes of data that begins with a row."""
        ...

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """One past the first end of a row, or 0; and whether the piece leaves a quote open.

        Args:
            inside: whether a quote is open where the piece begins.
        """
        ...

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """Look at a last row that no newline ends, and complain if it cannot be whole."""
        ...


class Newlines:
    """A row ends at a newline, and nowhere else."""

    def last_end(self, data: bytes) -> int:
        """See `Splitter`."""
        return data.rfind(b"\n") + 1

    def count(self, data: bytes, end: int) -> int:
        """See `Splitter`."""
        return data.count(b"\n", 0, end)

    def first_end(self, piece: bytes, inside: bool) -> tuple[int, bool]:
        """See `Splitter`."""
        return piece.find(b"\n") + 1, False

    def finish(self, row: bytes, inside: bool, line: int) -> None:
        """See `Splitter`. Any bytes may be the last line."""


def cut(
    read: Read,
    size: int,
    max_row_bytes: int,
    splitter: Splitter,
    whole: "blake3.blake3 | None" = None,
    *,
    keep: bool = False,
    start: int = 0,
    rest: bytes = b"",
) -> Iterator[Cut]:
    """Cut a stream into blocks, in one pass and bounded memory.

    Args:
        read: gives the stream.
        size: bytes of a block; only a single row may be longer.
        whole: is fed every byte.
        keep: hand out the bytes of the blocks.
        start: place of `rest` in the stream.
        rest: what has been read already, at most `size` bytes.
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
            yield Cut(position, position + end, line, lines, blake3.blake3(view).hexdigest(), False, data)
            line += lines
            position += end
            rest = rest[end:]
            continue
        # One row longer than a block: find its end, and keep it only where that is wanted and allowed.
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
        yield Cut(position, position + length, line, 1, digest.hexdigest(), too_long, data)
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


def read_range(path: Path, start: int, end: int) -> bytes:
    """Some bytes of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            data = _pread(file.fileno(), start, end - start)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; mend that, and run again") from error
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
