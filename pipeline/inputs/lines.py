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
from .blocks import Block, changed

BOM = b"\xef\xbb\xbf"


def after_mark(stream: "BufferedReader[Any]") -> int:
    """Skip the byte order mark at the start of a stream, and return its bytes, 0 if there is none."""
    return len(stream.read(len(BOM))) if stream.peek(len(BOM)).startswith(BOM) else 0


def bounded(file: IO[bytes], shown: str, most: int) -> Iterator[bytes]:
    """The lines of a file that is read as a whole.

    Args:
        shown: the file, for messages.

    Raises:
        InputError: a line has `most` bytes or more; an endless one would fill memory.
    """
    for number, line in enumerate(iter(partial(file.readline, most), b""), start=1):
        if len(line) == most:
            raise InputError(f"{shown}, line {number:,} has {most >> 20:,} MiB or more; give a file of JSON lines")
        yield line


def cut(
    stream: BufferedReader, size: int, max_row_bytes: int, *, start: int = 0, whole: Hasher | None = None
) -> Iterator[tuple[Block, bytes]]:
    """Cut a stream into blocks, in one pass and bounded memory; each with its bytes, if it is not too long.

    Args:
        size: bytes of a block; only a single line may be longer.
        start: the position of the stream's next byte.
        whole: hashes every byte.
    """
    rest, line = b"", 0
    while data := rest + stream.read(size - len(rest)):
        end = data.rfind(b"\n") + 1 if len(data) == size else len(data)
        if end:
            data, rest = data[:end], data[end:]
        else:  # a line longer than a block
            data, rest = data + stream.readline(max(max_row_bytes + 1 - size, 0)), b""
        digest, length, piece = new_hasher(data), len(data), data
        if whole is not None:
            whole.update(data)
        too_long = not end and len(data.removesuffix(b"\n")) > max_row_bytes
        if too_long:
            data = b""
            while not piece.endswith(b"\n") and (piece := stream.readline(size)):
                digest.update(piece)
                length += len(piece)
                if whole is not None:
                    whole.update(piece)
        lines = 1 if too_long else data.count(b"\n") + (not data.endswith(b"\n"))
        yield Block(start, start + length, line, lines, digest.hexdigest(), too_long=too_long), data
        start += length
        line += lines


def scan_lines(file: "BufferedReader[Any]", size: int, max_row_bytes: int) -> tuple[list[Block], int, str]:
    """The blocks of a plain file of lines, its size, and its hash.

    Raises:
        OSError: it cannot be read.
    """
    start = after_mark(file)
    whole = new_hasher(BOM[:start])
    blocks = [block for block, _ in cut(file, size, max_row_bytes, start=start, whole=whole)]
    return blocks, blocks[-1].end if blocks else start, whole.hexdigest()


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
    if hash_bytes(data) != block.content:
        raise changed(block)
    return data
