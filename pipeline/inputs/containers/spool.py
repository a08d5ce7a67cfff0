"""Keeps blocks in the cache, named by their hash, for inputs without random access.

Compressed files and JSON arrays can only be read from the beginning. They are read once and cut like plain files, and
every block is kept in a separate file, so that tasks can read them in any order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import blake3
import pyarrow as pa

from ....schemas.errors import InputError, IntegrityError, PacktrainError
from ...store.local import LocalStore
from ..blocks import Block, BlockRows, changed
from .detect import Compression, Container, refuse_inner, settled
from .jsonarray import ArrayLines
from .lines import BOM, Newlines, TextPlace, WholeFile, cut, split_lines
from .separated import QuotedRows, SeparatedPlace, read_header

_CHUNK = 1 << 20
_HEAD = 4096


@dataclass(frozen=True, slots=True)
class SpooledLines:
    """Reads lines from a file of the cache."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return BlockRows(lines=split_lines(unspool(path, block), block.take, limit))


@dataclass(frozen=True, slots=True)
class SpooledSeparated:
    """Reads comma-separated values from a file of the cache."""

    at: SeparatedPlace

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return self.at.parse(path, block, unspool(path, block, self.at.hash), limit)


@dataclass(frozen=True, slots=True)
class SpooledText:
    """Reads a text document from a file of the cache."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        place = TextPlace()
        return place.parse(path, block, unspool(path, block, place.hash), limit)


def scan_spooled(
    path: Path, kind: Container, packing: Compression | None, size: int, max_row_bytes: int, cache: Path
) -> list[Block]:
    """The blocks of a compressed file of lines, separated values or text, or of a JSON array, each kept in the cache.

    Raises:
        InputError: it is damaged or cut short, or contains something else.
    """
    store = LocalStore(cache)
    blocks = []
    with decompressed(path, packing) as read:
        at: SeparatedPlace | TextPlace | None = None
        place: SpooledLines | SpooledSeparated | SpooledText = SpooledLines()
        splitter: Newlines | QuotedRows | WholeFile = Newlines()
        waiting = read(_HEAD)
        if packing is not None:
            refuse_inner(str(path), waiting)
        kind = settled(kind, waiting)

        def feed(count: int) -> bytes:
            nonlocal waiting
            if waiting:
                piece, waiting = waiting[:count], waiting[count:]
                return piece
            return read(count)

        start = 0
        take = feed
        if kind in (Container.CSV, Container.TSV):
            at, start, waiting = read_header(str(path), feed, kind.separator)
            splitter, place = QuotedRows(str(path)), SpooledSeparated(at)
        elif waiting.startswith(BOM):
            start, waiting = len(BOM), waiting[len(BOM) :]
        if kind is Container.JSON_ARRAY:
            take, start = ArrayLines(str(path), feed).read, 0
        elif kind is Container.TEXT:
            at, splitter, place = TextPlace(), WholeFile(), SpooledText()

        for one in cut(take, size, max_row_bytes, splitter, keep=True, start=start):
            hash = at.hash(one.hash) if at else one.hash
            kept = None if one.too_long else spool(store, hash, one.data)
            blocks.append(
                Block(one.start, one.end, one.first_line, one.lines, hash, one.too_long, place=place, spooled=kept)
            )
    return blocks


def spool(store: LocalStore, hash: str, data: "bytes | pa.Buffer", suffix: str = "zst") -> Path:
    """Keep bytes in a file named by their hash; returns the file."""
    name = f"blocks/{hash[:2]}/{hash}.{suffix}"
    if store.size(name):
        return store.path(name)
    packed = pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)
    with store.draft(f"blocks/{hash[:2]}") as draft:
        draft.file.write(len(memoryview(data)).to_bytes(8, "little"))
        draft.file.write(packed)
        store.put(draft, name, replace_damaged=True)
    return store.path(name)


def unspool(path: Path, block: Block, key: Callable[[str], str] = str) -> bytes:
    """The bytes of a kept block.

    Args:
        key: makes the block's hash of the hash of its bytes.

    Raises:
        InputError: the file in the cache is missing or damaged.
    """
    try:
        data = path.read_bytes()
        out: bytes = pa.Codec("zstd").decompress(data[8:], int.from_bytes(data[:8], "little"), asbytes=True)
    except FileNotFoundError:
        raise IntegrityError(f"{path} vanished from the cache; run again, and it will be made again") from None
    except (OSError, MemoryError, OverflowError, pa.ArrowException):
        raise changed(path, block, True) from None
    if key(blake3.blake3(out).hexdigest()) != block.content_hash:
        raise changed(path, block, True)
    return out


@contextmanager
def decompressed(path: Path, packing: Compression | None) -> "Iterator[Callable[[int], bytes]]":
    """Opens a file for decompressed reading.

    Raises:
        InputError: the stream is damaged or ends too early.
    """
    place = 0
    try:
        with pa.OSFile(str(path)) as raw, pa.CompressedInputStream(raw, packing.value) if packing else raw as stream:

            def read(count: int) -> bytes:
                nonlocal place
                try:
                    data: bytes = stream.read(min(count, _CHUNK))
                except (OSError, pa.ArrowException) as error:
                    if packing is None:
                        raise
                    raise _damaged(path, packing, place, error) from error
                place += len(data)
                return data

            yield read
    except PacktrainError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {error}; fix that, and run again") from error


def _damaged(path: Path, packing: Compression, place: int, error: Exception) -> InputError:
    said = str(error)
    if "Truncated" in said:
        what = "is cut short: its compressed stream has no end"
    else:
        what = f"is damaged: it cannot be decompressed by {packing.value} ({said})"
    return InputError(
        f"{path} {what}, somewhere after {place:,} decompressed bytes; copy or download it again, and check it with "
        f"`{'gzip' if packing is Compression.GZIP else 'zstd'} -t`"
    )
