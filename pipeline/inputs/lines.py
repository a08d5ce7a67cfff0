"""Cuts lines of JSON into blocks, from a file or any other stream of bytes, and reads them back.

A block has as many whole lines as fit into `size` bytes. So where it begins depends only on the bytes before it, and
appending to a file changes only the last block.
"""

from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from typing import IO, Any

from ...schemas.errors import InputError
from ...schemas.files.foreign import open_regular
from ...schemas.fingerprint import Hasher, hash_bytes, new_hasher
from .blocks import Block, changed_error

BOM = b"\xef\xbb\xbf"


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
    for number, line in enumerate(iter(partial(file.readline, max_bytes), b""), start=1):
        if len(line) == max_bytes:
            raise InputError(f"{shown}, line {number:,} has {max_bytes >> 20:,} MiB or more; give a file of JSON lines")
        yield line


def cut_lines(
    stream: BufferedReader, size: int, max_row_bytes: int, *, start: int = 0, file_hasher: Hasher | None = None
) -> Iterator[tuple[Block, bytes]]:
    """Cut a stream into blocks, in one pass and bounded memory; each with its bytes, if it is not too long.

    Args:
        size: bytes of a block; only a single line may be longer.
        start: the position of the stream's next byte.
        file_hasher: is given every byte.
    """
    carried = b""  # the beginning of a line, which the last block had no room for
    first_line = 0
    while data := carried + stream.read(size - len(carried)):
        is_last = len(data) < size
        end = len(data) if is_last else data.rfind(b"\n") + 1
        if end:
            carried = data[end:]
            data = data[:end]
        else:
            # A line is longer than a block: as much as a row may have, and one byte more, which shows that it is too
            # long.
            carried = b""
            data += stream.readline(max(max_row_bytes + 1 - size, 0))
        too_long = end == 0 and len(data.removesuffix(b"\n")) > max_row_bytes
        # The last line of a file may have no end.
        lines = 1 if too_long else data.count(b"\n") + (not data.endswith(b"\n"))
        # The hashes cover a line that is too long, too; memory holds only a piece of it.
        hasher = new_hasher()
        length = 0
        for piece in _pieces_of_line(stream, data, size) if too_long else [data]:
            hasher.update(piece)
            length += len(piece)
            if file_hasher is not None:
                file_hasher.update(piece)
        block = Block(start, start + length, first_line, lines, hasher.hexdigest(), too_long=too_long)
        yield block, b"" if too_long else data
        start += length
        first_line += lines


def _pieces_of_line(stream: BufferedReader, begin: bytes, size: int) -> Iterator[bytes]:
    """A line to its end, in pieces of at most `size` bytes behind its beginning, which was read already."""
    piece = begin
    while piece:
        yield piece
        piece = b"" if piece.endswith(b"\n") else stream.readline(size)


def scan_lines(file: "BufferedReader[Any]", size: int, max_row_bytes: int) -> tuple[list[Block], int, str]:
    """The blocks of a plain file of lines, its size, and its hash.

    Raises:
        OSError: it cannot be read.
    """
    start = skip_byte_order_mark(file)
    file_hasher = new_hasher(BOM[:start])
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
