"""Cuts lines of JSON into blocks, from a file or any other stream of bytes, and reads them back.

A block has as many whole lines as fit into `size` bytes. So where it begins depends only on the bytes before it, and
appending to a file changes only the last block.
"""

from collections.abc import Iterable, Iterator
from io import BufferedReader
from typing import IO, Any

from ...schemas.errors import InputError
from ...schemas.files.foreign import open_regular
from ...schemas.fingerprint import Hasher, hash_bytes, new_hasher
from .blocks import Block, changed_error

BOM = b"\xef\xbb\xbf"
"""The byte order mark that some programs write before a text in UTF-8."""


def skip_byte_order_mark(stream: "BufferedReader[Any]") -> int:
    """Skip the byte order mark at the start of a stream, and return its bytes, 0 if there is none."""
    return len(stream.read(len(BOM))) if stream.peek(len(BOM)).startswith(BOM) else 0


def bounded_lines(file: IO[bytes], shown: str, max_bytes: int) -> Iterator[bytes]:
    """The lines of a file that is read from its beginning to its end.

    Args:
        shown: the file, for messages.

    Raises:
        InputError: a line has `max_bytes` or more; an endless one would fill memory.
    """
    number = 0
    # `readline` stops after so many bytes, although the line goes on.
    while line := file.readline(max_bytes):
        number += 1
        if len(line) == max_bytes:
            raise InputError(f"{shown}, line {number:,} has {max_bytes >> 20:,} MiB or more; give a file of JSON lines")
        yield line


def cut_lines(
    stream: BufferedReader, size: int, max_row_bytes: int, *, start: int = 0, file_hasher: Hasher | None = None
) -> Iterator[tuple[Block, bytes]]:
    """Cut a stream into blocks, in one pass and bounded memory. Yields each with its bytes; a line that is longer than
    `max_row_bytes` is a block of its own, and comes without.

    `aa⏎bbb⏎cc⏎` in blocks of 6 bytes gives `aa⏎`, `bbb⏎` and `cc⏎`: of the first 6 bytes, the `bbb` behind the last end
    of a line is carried into the next block.

    Args:
        size: bytes of a block; only a single line may be longer.
        start: the position of the stream's next byte.
        file_hasher: is given every byte.
    """
    carried = b""  # the beginning of a line that was cut off the last block
    first_line = 0
    while data := carried + stream.read(size - len(carried)):
        carried = b""
        is_too_long = False
        # Fewer bytes than asked for: the stream has ended, and all of them are the last block.
        if len(data) == size:
            last_line_end = data.rfind(b"\n") + 1
            if last_line_end:
                carried = data[last_line_end:]
                data = data[:last_line_end]
            else:
                # A single line fills the block. Read on up to the longest that a row may be and one byte more, which
                # is the end of the line, or shows that it is too long. Nothing more is read where a row may not even be
                # as long as a block: then the line is too long already.
                data += stream.readline(max(max_row_bytes + 1 - size, 0))
                is_too_long = len(data.removesuffix(b"\n")) > max_row_bytes
        pieces: Iterable[bytes] = [data]
        line_count = data.count(b"\n")
        if is_too_long:
            # The hashes cover the rest of the line, too, of which memory holds one piece at a time.
            pieces = _pieces_of_line(stream, data, size)
            line_count = 1
        elif not data.endswith(b"\n"):
            line_count += 1  # the last line of a file may have no end
        hasher = new_hasher()
        length = 0
        for piece in pieces:
            hasher.update(piece)
            length += len(piece)
            if file_hasher is not None:
                file_hasher.update(piece)
        block = Block(
            start=start,
            end=start + length,
            first_line=first_line,
            lines=line_count,
            content=hasher.hexdigest(),
            too_long=is_too_long,
        )
        yield block, b"" if is_too_long else data
        start += length
        first_line += line_count


def _pieces_of_line(stream: BufferedReader, line_begin: bytes, size: int) -> Iterator[bytes]:
    """A line to its end: first its beginning, which was read already, then pieces of at most `size` bytes."""
    piece = line_begin
    while piece:
        yield piece
        piece = b"" if piece.endswith(b"\n") else stream.readline(size)


def scan_lines(file: "BufferedReader[Any]", size: int, max_row_bytes: int) -> tuple[list[Block], int, str]:
    """The blocks of a plain file of lines, its size, and its hash.

    Raises:
        OSError: it cannot be read.
    """
    start = skip_byte_order_mark(file)
    file_hasher = new_hasher(BOM[:start])  # the mark is part of the file, if it has one; else `start` is 0
    blocks = [block for block, _ in cut_lines(file, size, max_row_bytes, start=start, file_hasher=file_hasher)]
    return blocks, blocks[-1].end if blocks else start, file_hasher.hexdigest()


def block_bytes(block: Block) -> bytes:
    """The bytes of a block of lines.

    Raises:
        InputError: the file cannot be read, or has changed since the scan.
    """
    try:
        with open_regular(block.path) as file:
            file.seek(block.start)
            data = file.read(block.end - block.start)
    except OSError as error:
        raise InputError(
            f"{block.path} cannot be read: {error.strerror}; fix that, and run again. With several machines, inputs "
            "must be on a file system that all of them share, at the same path"
        ) from error
    # The part of a block is found by this hash, so it must be of what was read.
    if hash_bytes(data) != block.content:
        raise changed_error(block)
    return data
