"""Cuts lines of JSON into blocks, from a file or any other stream of bytes, and reads them back.

A block has as many whole lines as fit into `size` bytes. So where it begins depends only on the bytes before it, and
appending to a file changes only the last block.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import blake3

from ...schemas.errors import InputError
from .blocks import Block, Lines, changed

Read = Callable[[int], bytes]
"""Returns up to this many further bytes; none only at the end."""
BOM = b"\xef\xbb\xbf"


def cut(
    read: Read, size: int, max_row_bytes: int, *, start: int = 0, whole: "blake3.blake3 | None" = None
) -> Iterator[tuple[Block, bytes]]:
    """Cut a stream into blocks, in one pass and bounded memory; each with its bytes, if it is not too long.

    Args:
        size: bytes of a block; only a single line may be longer.
        start: the position of the stream's first byte.
        whole: hashes every byte.
    """
    rest, line, ended = b"", 0, False
    while True:
        if not ended and len(rest) < size:
            rest += fill(read, size - len(rest))
            ended = len(rest) < size
        if not rest:
            return
        end = len(rest) if ended else rest.rfind(b"\n") + 1
        if end:
            data, rest = rest[:end], rest[end:]
            digest, length, too_long = blake3.blake3(data), end, False
            if whole is not None:
                whole.update(data)
        else:  # one line longer than a block: find its end, and keep it only if it is allowed
            digest, length, kept = blake3.blake3(), 0, list[bytes]()
            found = 0
            while rest and not found:
                found = rest.find(b"\n") + 1
                piece, rest = (rest[:found], rest[found:]) if found else (rest, b"")
                digest.update(piece)
                if whole is not None:
                    whole.update(piece)
                length += len(piece)
                if length <= max_row_bytes + 1:
                    kept.append(piece)
                else:
                    kept.clear()
                if not found and not ended:
                    rest = fill(read, size)
                    ended = len(rest) < size
            too_long = length - bool(found) > max_row_bytes
            data = b"" if too_long else b"".join(kept)
        lines = 1 if too_long else data.count(b"\n") + (not data.endswith(b"\n"))
        yield Block(start, start + length, line, lines, digest.hexdigest(), too_long=too_long), data
        start += length
        line += lines


def fill(read: Read, size: int) -> bytes:
    """As many bytes as there are, up to `size`."""
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
        start = len(BOM) if fill(file.read, len(BOM)) == BOM else 0
        whole.update(BOM[:start])
        file.seek(start)
        blocks = [block for block, _ in cut(file.read, size, max_row_bytes, start=start, whole=whole)]
    return blocks, blocks[-1].end if blocks else start, whole.hexdigest()


def scan_text(path: Path, size: int, whole: str, max_row_bytes: int) -> list[Block]:
    """The block of a text file, which is one row; none if it is empty.

    Args:
        whole: BLAKE3 of the file.
    """
    with path.open("rb", buffering=0) as file:
        start = len(BOM) if fill(file.read, len(BOM)) == BOM else 0
    digest = blake3.blake3(f"one document: {whole}".encode()).hexdigest()  # not that of lines with the same bytes
    long = size - start > max_row_bytes
    return [Block(start, size, 0, 1, digest, kind="text", content=whole, too_long=long)] if size > start else []


def read_bytes(path: Path, block: Block) -> bytes:
    """The bytes of a block of lines or text.

    Raises:
        InputError: the file cannot be read, or has changed since the scan.
    """
    begin = 0 if block.kind == "text" else block.start
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            data = fill(file.read, block.end - begin)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; fix that, and run again") from error
    if blake3.blake3(data).hexdigest() != block.content_hash:
        raise changed(path, block)
    return data[block.start - begin :]


def split_lines(data: bytes, *limits: int | None) -> Lines:
    """(number, bytes) of the lines of a block, as many as the smallest limit allows."""
    most = min((limit for limit in limits if limit is not None), default=-1)
    lines = data.split(b"\n", most)
    if 0 <= most < len(lines):
        del lines[most:]
    elif not lines[-1]:
        lines.pop()
    return list(enumerate(lines))
