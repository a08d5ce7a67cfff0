"""Keeps blocks in the cache, named by their hash, for inputs without random access.

Compressed files, JSON arrays and separated values can only be read from the beginning. They are read once, become
lines of JSON, and are cut like plain files of lines; every block is kept in a separate file, so that tasks can read
them in any order.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import blake3
import msgspec
import pyarrow as pa

from ...schemas.errors import InputError, IntegrityError, PacktrainError
from ..store.local import LocalStore
from .blocks import Block, changed
from .divide import Rejects, rows_of
from .file_kinds import Compression, Container
from .lines import Read, cut

_CHUNK = 1 << 20


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
        most = max_row_bytes if rows.rejects is None else sys.maxsize
        for block, data in cut(_reader(rows.lines), size, most, start=rows.start):
            if rows.rejects is not None:
                block = _divided(block, rows.rejects)
            kept = None if block.too_long else spool(store, block.content_hash, data)
            blocks.append(msgspec.structs.replace(block, spooled=kept))
    return blocks


def _reader(pieces: Iterator[bytes]) -> Read:
    waiting = bytearray()

    def read(count: int) -> bytes:
        while len(waiting) < count and (more := next(pieces, None)) is not None:
            waiting.extend(more)
        data = bytes(memoryview(waiting)[:count])
        del waiting[:count]
        return data

    return read


def _divided(block: Block, every: Rejects) -> Block:
    """A block of rows that were divided into columns here, with those that could not be."""
    bad = [number for number in every if number < block.first_line + block.lines]
    rejects = tuple((number - block.first_line, *every.pop(number)) for number in bad)
    digest = blake3.blake3(repr((block.hash, rejects)).encode()).hexdigest()
    return msgspec.structs.replace(block, kind="rows", hash=digest, content=block.hash, rejects=rejects)


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
