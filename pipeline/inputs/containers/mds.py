"""MosaicML's MDS: a row is a sample of a shard. A shard says itself what its columns are.

A compressed shard is decompressed once, and its samples are kept in the cache in blocks of the usual size.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

from ....schemas.errors import InputError, RowRejectedError
from ....stages.exchange.mds_samples import MdsColumns, read_columns
from ...store.local import LocalStore
from ..blocks import Block, BlockRows, changed
from .detect import Compression
from .spans import cut_sizes
from .spool import decompressed, spool, unspool
from .tables import as_lists, plain

_SAMPLES = 1 << 20
"""Samples whose sizes are in memory at once."""
_CHUNK = 4 << 20
_LARGEST = 1 << 32
"""Bytes that a shard can have: it counts them in 32 bits."""


class _Shard:
    """An open shard.

    Raises:
        InputError: its head is damaged.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self.bytes = os.fstat(descriptor).st_size
        self.samples: int = struct.unpack("<I", self._read(0, 4))[0]
        begin = 8 + 4 * self.samples
        if begin > self.bytes:
            raise self._damaged(f"is cut short: {self.samples:,} samples need more than its {self.bytes:,} bytes")
        first = int(self._offsets(0, 0)[0])
        if not begin <= first <= self.bytes:
            raise self._damaged(f"puts its first sample at byte {first:,}, and has {self.bytes:,}")
        end = int(self._offsets(self.samples, self.samples)[0])
        if end != self.bytes:
            what = "is cut short" if end > self.bytes else "is too long"
            raise self._damaged(f"{what}: its samples end at byte {end:,}, and it has {self.bytes:,}")
        try:
            self.columns = read_columns(self._read(begin, first - begin))
        except ValueError as error:
            raise self._damaged(str(error)) from None

    def offsets(self, first: int, last: int) -> NDArray[np.uint32]:
        """Where some samples begin, and where the last of them ends: (last - first + 1,)."""
        found = self._offsets(first, last)
        if (found[1:] < found[:-1]).any() or found[-1] > self.bytes:
            raise self._damaged("has samples that overlap, or lie outside of it")
        return found

    def _offsets(self, first: int, last: int) -> NDArray[np.uint32]:
        return np.frombuffer(self._read(4 + 4 * first, 4 * (last - first + 1)), "<u4")

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Bytes of each sample, at least 4: many empty ones must not be one block."""
        for first in range(0, self.samples, _SAMPLES):
            bounds = self.offsets(first, min(first + _SAMPLES, self.samples))
            yield np.maximum(bounds[1:] - bounds[:-1], 4).astype(np.int64)

    def payload(self, first: int, last: int) -> bytes:
        """Some samples as bytes that can be read alone; see `_rows`."""
        return b"".join(self._pieces(first, last))

    def digest(self, first: int, last: int) -> str:
        """BLAKE3 of a payload, which need not fit into memory."""
        digest = blake3.blake3()
        for piece in self._pieces(first, last):
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self, first: int, last: int) -> Iterator[bytes]:
        columns, offsets = self.columns.to_bytes(), self.offsets(first, last)
        yield struct.pack("<II", len(columns), last - first) + columns
        yield (offsets - offsets[0]).tobytes()
        for at in range(int(offsets[0]), int(offsets[-1]), _CHUNK):
            yield self._read(at, min(_CHUNK, int(offsets[-1]) - at))

    def _read(self, begin: int, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := os.pread(self._descriptor, count - len(data), begin + len(data))):
            data = data + more if data else more
        if len(data) < count:
            raise self._damaged(f"is cut short: it has {self.bytes:,} bytes")
        return data

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self._path} {what}; copy it again, or write it again")


@contextmanager
def _opened(path: Path, shown: Path | None = None) -> Iterator[_Shard]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _Shard(shown or path, descriptor)
    finally:
        os.close(descriptor)


def _rows(payload: bytes, wanted: Sequence[str] | None, *limits: int | None) -> BlockRows:
    """The first samples of a payload: its columns, the bounds of its samples, and the samples."""
    length, count = struct.unpack_from("<II", payload)
    columns = MdsColumns.from_bytes(payload[8 : 8 + length])
    bounds = np.frombuffer(payload, "<u4", count + 1, 8 + length).astype(np.int64) + 8 + length + 4 * (count + 1)
    view = memoryview(payload)
    records: list[tuple[int, dict[str, Any]]] = []
    rejects: list[tuple[int, str, str]] = []
    most = min(one for one in (count, *limits) if one is not None)
    for number, (begin, end) in enumerate(zip(bounds[:most].tolist(), bounds[1 : most + 1].tolist(), strict=True)):
        try:
            records.append((number, columns.row(view[begin:end], wanted)))
        except RowRejectedError as error:
            rejects.append((number, error.reason, error.detail))
    return BlockRows(records=list(records), rejects=rejects)


@dataclass(frozen=True, slots=True)
class MdsPlace:
    """Neighbouring samples of a shard."""

    first: int
    last: int
    """One past the last sample."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return as_lists(_rows(self._payload(path, block), columns, block.take, limit))

    def array_rows(self, path: Path, block: Block, columns: Sequence[str] | None) -> BlockRows:
        """See `ArrayReader`."""
        return _rows(self._payload(path, block), columns, block.take)

    def _payload(self, path: Path, block: Block) -> bytes:
        try:
            with _opened(path) as shard:
                payload = shard.payload(self.first, self.last) if self.last <= shard.samples else b""
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; put it back, or give its path") from error
        if blake3.blake3(payload).hexdigest() != block.content_hash:
            raise changed(path, block, False)
        return payload


@dataclass(frozen=True, slots=True)
class SpooledMds:
    """Samples in a file of the cache."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return as_lists(_rows(unspool(path, block), columns, block.take, limit))

    def array_rows(self, path: Path, block: Block, columns: Sequence[str] | None) -> BlockRows:
        """See `ArrayReader`."""
        return _rows(unspool(path, block), columns, block.take)


def scan_mds(path: Path, packing: Compression | None, size: int, max_row_bytes: int, cache: Path) -> list[Block]:
    """The blocks of a shard.

    Raises:
        InputError: it is damaged or cut short, or has a column that is not read.
    """
    if packing is None:
        with _opened(path) as shard:
            return list(_blocks(shard, None, size, max_row_bytes))
    store = LocalStore(cache)
    with store.draft("blocks") as draft:
        for data in _unpacked(path, packing):
            draft.file.write(data)
        with _opened(draft.path, path) as shard:
            return list(_blocks(shard, store, size, max_row_bytes))


def _blocks(shard: _Shard, store: LocalStore | None, size: int, max_row_bytes: int) -> Iterator[Block]:
    at = 0
    for span in cut_sizes(shard.sizes(), size, max_row_bytes):
        place: MdsPlace | SpooledMds = MdsPlace(span.first, span.last)
        digest, kept = shard.digest(span.first, span.last), None
        if store is not None:
            place = SpooledMds()
            kept = spool(store, digest, shard.payload(span.first, span.last)) if not span.too_long else None
        end = at + span.bytes
        yield Block(at, end, span.first, span.last - span.first, digest, span.too_long, place=place, spooled=kept)
        at = end


def _unpacked(path: Path, packing: Compression) -> Iterator[bytes]:
    done = 0
    with decompressed(path, packing) as read:
        while data := read(_CHUNK):
            done += len(data)
            if done > _LARGEST:
                raise InputError(f"{path} is not an MDS shard: it has more than 4 GiB; copy or write it again")
            yield data


def sample_count(path: Path) -> int:
    """How many rows a shard has, which is not compressed."""
    with _opened(path) as shard:
        return shard.samples


def some_samples(path: Path, first: int, count: int) -> list[dict[str, Any]]:
    """Some rows of a shard, which is not compressed, all columns; fewer at its end, or if some cannot be read."""
    with _opened(path) as shard:
        last = min(first + count, shard.samples)
        rows = _rows(shard.payload(first, last), None).records if last > first else None
        return [plain(row) for _, row in rows or ()]


def unpack_shard(path: Path, packing: Compression, to: Path) -> None:
    """Decompress a shard into a file.

    Raises:
        InputError: it is damaged.
    """
    with to.open("wb") as file:
        for data in _unpacked(path, packing):
            file.write(data)
