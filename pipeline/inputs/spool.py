"""Blocks kept in the cache, by the hash of what is in them: where an input cannot be read from any place.

A compressed file is one stream, and so is a JSON array, within which nothing says where an element begins. It is read
once, cut as a plain file is cut, and every block is kept in a file of its own, so that tasks read them in any order.
What was found is noted by the hash of the file: while the blocks are there, it is not read again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import blake3
import msgspec
import pyarrow as pa

from ...schemas.errors import InputError, IntegrityError, PacktrainError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ..sealed import seal, unseal
from ..store import LocalStore
from .blocks import Block, BlockRows, changed
from .containers import Container, Packing, refuse_inner, settled
from .jsonarray import ArrayLines
from .lines import BOM, Newlines, cut, split_lines
from .separated import Rows, SeparatedPlace, read_header
from .textfiles import TextPlace, Whole

FORMAT = 1
"""Raised whenever the same file would be cut otherwise than before."""
_CHUNK = 1 << 20
_HEAD = 4096


@dataclass(frozen=True, slots=True)
class SpooledLines:
    """Lines in a file of the cache."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `Place`."""
        data = unspool(path, block)
        if blake3.blake3(data).hexdigest() != block.content_hash:
            raise changed(path, block, True)
        return BlockRows(lines=split_lines(data, block.take, limit))


@dataclass(frozen=True, slots=True)
class SpooledSeparated:
    """Comma-separated values in a file of the cache."""

    at: SeparatedPlace

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `Place`."""
        return _parsed(self.at, path, block, limit)


@dataclass(frozen=True, slots=True)
class SpooledText:
    """A document in a file of the cache."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `Place`."""
        return _parsed(TextPlace(), path, block, limit)


def _parsed(place: SeparatedPlace | TextPlace, path: Path, block: Block, limit: int | None) -> BlockRows:
    data = unspool(path, block)
    if place.hash(blake3.blake3(data).hexdigest()) != block.content_hash:
        raise changed(path, block, True)
    return place.parse(path, block, data, limit)


class _Noted(msgspec.Struct, frozen=True):
    """One block of a compressed file, as it is noted."""

    start: int
    end: int
    first_line: int
    lines: int
    hash: str
    too_long: bool
    name: str
    bytes: int


class _Note(msgspec.Struct, frozen=True):
    """All blocks of a compressed file."""

    blocks: list[_Noted]
    columns: list[str] | None
    text: bool = False
    """Whether the block is one document."""


_Kind = TypeVar("_Kind")


def read_note(store: LocalStore, name: str, kind: type[_Kind]) -> _Kind | None:
    """What an earlier scan noted; None where there is nothing, or nothing that can be read: scanning says it anew."""
    kept = unseal(store.read(name))
    if kept is None:
        return None
    try:
        return msgspec.convert(decode_note(kept, dict[str, Any])["note"], kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return None


def write_note(store: LocalStore, name: str, note: object) -> None:
    """Keep what a scan found, for `read_note`."""
    store.replace_bytes(name, seal(msgspec.json.encode({"note": note})))


def scan_spooled(
    path: Path, file_hash: str, kind: Container, packing: Packing | None, size: int, max_row_bytes: int, cache: Path
) -> list[Block]:
    """The blocks of a compressed file of lines, separated values or text, or of a JSON array, each kept in the cache.

    Raises:
        InputError: it is damaged or cut short, or holds something else.
    """
    store = LocalStore(cache)
    key = fingerprint(
        ["compressed", FORMAT, file_hash, kind.value, packing.value if packing else "", size, max_row_bytes]
    )
    name = f"scans/{key}.json"
    note = read_note(store, name, _Note)
    if note is not None and all(store.size(one.name) == one.bytes for one in note.blocks if one.name):
        return _blocks(note, kind, store)
    noted: list[_Noted] = []
    with _decompressed(path, packing) as read:
        place: SeparatedPlace | TextPlace | None = None
        splitter: Newlines | Rows | Whole = Newlines()
        columns: list[str] | None = None
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
            place, start, waiting = read_header(str(path), feed, kind.separator)
            splitter, columns = Rows(str(path)), list(place.columns)
        elif waiting.startswith(BOM):
            start, waiting = len(BOM), waiting[len(BOM) :]
        if kind is Container.JSON_ARRAY:
            take, start = ArrayLines(str(path), feed).read, 0
        elif kind is Container.TEXT:
            place, splitter = TextPlace(), Whole()

        for one in cut(take, size, max_row_bytes, splitter, keep=True, start=start):
            hash = place.hash(one.hash) if place else one.hash
            spooled, count = ("", 0) if one.too_long else spool(store, hash, one.data)
            noted.append(_Noted(one.start, one.end, one.first_line, one.lines, hash, one.too_long, spooled, count))
    note = _Note(noted, columns, kind is Container.TEXT)
    write_note(store, name, note)
    return _blocks(note, kind, store)


def _blocks(note: _Note, kind: Container, store: LocalStore) -> list[Block]:
    place: SpooledLines | SpooledSeparated | SpooledText = SpooledLines()
    if note.text:
        place = SpooledText()
    elif note.columns is not None:
        place = SpooledSeparated(SeparatedPlace(tuple(note.columns), kind.separator))
    return [
        Block(
            one.start,
            one.end,
            one.first_line,
            one.lines,
            one.hash,
            one.too_long,
            place=place,
            spooled=store.path(one.name) if one.name else None,
        )
        for one in note.blocks
    ]


def spool(store: LocalStore, hash: str, data: "bytes | pa.Buffer", suffix: str = "zst") -> tuple[str, int]:
    """Keep some bytes under a name that carries their hash; returns the name and the size of its file."""
    name = f"blocks/{hash[:2]}/{hash}.{suffix}"
    there = store.size(name)
    if there:
        return name, there
    packed = pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)
    with store.draft(f"blocks/{hash[:2]}") as draft:
        draft.file.write(len(memoryview(data)).to_bytes(8, "little"))
        draft.file.write(packed)
        size = draft.result.bytes
        store.put(draft, name, mend=True)
    return name, size


def unspool(path: Path, block: Block) -> bytes:
    """What was kept.

    Raises:
        InputError: the file in the cache is missing or damaged.
    """
    try:
        data = path.read_bytes()
        out: bytes = pa.Codec("zstd").decompress(data[8:], int.from_bytes(data[:8], "little"), asbytes=True)
    except FileNotFoundError:
        raise IntegrityError(f"{path} vanished from the cache; run again, it will be made anew") from None
    except (OSError, MemoryError, OverflowError, pa.ArrowException):
        raise changed(path, block, True) from None
    return out


@contextmanager
def _decompressed(path: Path, packing: Packing | None) -> "Iterator[Callable[[int], bytes]]":
    """Reads what a file holds, decompressed.

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
        raise InputError(f"{path} cannot be read: {error}; mend that, and run again") from error


def _damaged(path: Path, packing: Packing, place: int, error: Exception) -> InputError:
    said = str(error)
    if "Truncated" in said:
        what = "is cut short: its compressed stream has no end"
    else:
        what = f"is damaged: it cannot be decompressed by {packing.value} ({said})"
    return InputError(
        f"{path} {what}, somewhere behind {place:,} decompressed bytes; copy or download it again, and check it with "
        f"`{'gzip' if packing is Packing.GZIP else 'zstd'} -t`"
    )
