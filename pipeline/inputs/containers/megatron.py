"""Megatron's `.idx` and `.bin` pairs: a row is a document of the index.

Its columns: `input_ids`; `loss_mask`, if the pair has a mask (see `parts`), 1 for a token that is trained;
`seq_lengths`, the lengths of the document's sequences, which follow one another in `input_ids`; and `document_length`,
their sum in a list, for documents whose sequences belong together, such as sentences.

Only ranges of the files are read, never a whole one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

from ....schemas.errors import InputError
from ....stages.exchange.megatron import HEAD_BYTES, IndexHead, check_bounds, check_sequences, read_head
from ..blocks import Block, BlockRows, changed
from .parts import data_of, mask_of
from .spans import cut_sizes
from .tables import as_lists, plain

_IDS, _MASK, _LENGTHS, _LENGTH = "input_ids", "loss_mask", "seq_lengths", "document_length"
_DOCUMENTS = 1 << 16
"""Documents whose bounds are in memory at once."""
_SEQUENCES = 1 << 20
"""Sequences that are in memory at once."""
_CHUNK = 4 << 20
_FIX = "copy it again, or write it again"


class _Pair:
    """An open index with its `.bin`.

    Raises:
        InputError: one of them is missing, or the index is damaged.
    """

    def __init__(self, index: Path, stack: ExitStack) -> None:
        self.index, self.data = index, data_of(index)
        self._index = self._open(index, stack)
        try:
            self._data = self._open(self.data, stack)
        except FileNotFoundError:
            raise InputError(
                f"{index} has no {self.data.name} beside it, which holds its tokens; put it there (pairs are read from "
                "local folders, not from URLs)"
            ) from None
        self.bytes = os.fstat(self._data).st_size
        try:
            self.head = read_head(os.pread(self._index, HEAD_BYTES, 0), os.fstat(self._index).st_size)
        except ValueError as error:
            raise self.damaged(error) from None

    @staticmethod
    def _open(path: Path, stack: ExitStack) -> int:
        # Without waiting: a named pipe may have no writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, descriptor)
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{path} is not a regular file; give the file itself. {_FIX}")
        return descriptor

    def damaged(self, error: Exception | str) -> InputError:
        """The error for an index that cannot be used."""
        return InputError(f"{self.index} {error}; {_FIX}")

    def bounds(self, first: int, last: int) -> NDArray[np.int64]:
        """The first sequences of some documents, and the end of the last: (last - first + 1,)."""
        found: NDArray[np.int64] = self._numbers("<i8", self.head.bounds, first, last + 1)
        try:
            check_bounds(self.head, first, found)
        except ValueError as error:
            raise self.damaged(error) from None
        return found

    def sequences(self, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(lengths, pointers) of some sequences, (last - first,) each."""
        lengths: NDArray[np.int32] = self._numbers("<i4", HEAD_BYTES, first, last)
        pointers: NDArray[np.int64] = self._numbers("<i8", self.head.pointers, first, last)
        try:
            check_sequences(self.head, first, lengths, pointers, self.bytes)
        except ValueError as error:
            raise self.damaged(error) from None
        return lengths, pointers

    def check_total(self, tokens: int) -> None:
        """Check that so many tokens fit into the `.bin`. Sequences that lie over one another could make a small pair a
        source without end.
        """
        if tokens * self.head.dtype.itemsize > self.bytes:
            raise self.damaged(f"has sequences that overlap: they take more than the {self.bytes:,} bytes of the .bin")

    def _numbers(self, kind: str, begin: int, first: int, last: int) -> NDArray[Any]:
        dtype = np.dtype(kind)
        data = self._read(self._index, self.index, begin + first * dtype.itemsize, (last - first) * dtype.itemsize)
        return np.frombuffer(data, dtype)

    def pieces(self, lengths: NDArray[np.int32], pointers: NDArray[np.int64]) -> Iterator[bytes]:
        """The bytes of some sequences, in pieces of a few megabytes."""
        ends = pointers + lengths.astype(np.int64) * self.head.dtype.itemsize
        breaks = np.flatnonzero(pointers[1:] != ends[:-1]) + 1
        for some_begin, some_end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(lengths)], strict=True):
            if some_end == some_begin:
                continue
            begin, end = int(pointers[some_begin]), int(ends[some_end - 1])
            for at in range(begin, end, _CHUNK):
                yield self._read(self._data, self.data, at, min(_CHUNK, end - at))

    @staticmethod
    def _read(descriptor: int, path: Path, begin: int, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := os.pread(descriptor, count - len(data), begin + len(data))):
            data = data + more if data else more
        if len(data) < count:
            raise InputError(f"{path} became shorter while it was read; let whatever writes it finish, then run again")
        return data


class _Documents:
    """The documents of a pair, with its mask."""

    def __init__(self, index: Path, stack: ExitStack) -> None:
        self.pairs = [_Pair(index, stack)]
        self.tokens = self.pairs[0]
        self.mask: _Pair | None = None
        found = mask_of(index)
        if found is not None:
            self.mask = _Pair(found, stack)
            self.pairs.append(self.mask)
            for what in ("sequences", "documents"):
                ours, its = (getattr(pair.head, what) for pair in self.pairs)
                if ours != its:
                    raise self.mask.damaged(f"has {its:,} {what}, and {index}, whose mask it is, has {ours:,}")

    @property
    def head(self) -> IndexHead:
        """The head of the tokens' index."""
        return self.tokens.head

    def bounds(self, first: int, last: int) -> NDArray[np.int64]:
        """See `_Pair.bounds`."""
        found = self.tokens.bounds(first, last)
        if self.mask is not None and not np.array_equal(self.mask.bounds(first, last), found):
            raise self.mask.damaged(f"has other document bounds than {self.tokens.index}, whose mask it is")
        return found

    def sequences(self, first: int, last: int) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """(lengths, pointers) of some sequences, for tokens and mask."""
        found = [pair.sequences(first, last) for pair in self.pairs]
        for (ours, _), (its, _) in pairwise(found):
            if not np.array_equal(ours, its):
                at = int(np.argmax(ours != its))
                raise self.pairs[1].damaged(
                    f"gives sequence {first + at:,} the length {its[at]:,}, and {self.tokens.index}, whose mask it is, "
                    f"{ours[at]:,}"
                )
        return found

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Bytes of each document: of its tokens, of its mask, and of its sequences in the index."""
        each = sum(pair.head.dtype.itemsize for pair in self.pairs)
        tokens = 0
        for first in range(0, self.head.documents, _DOCUMENTS):
            bounds = self.bounds(first, min(first + _DOCUMENTS, self.head.documents))
            # At least that of a sequence: many documents without any must not be one block.
            sizes = 12 * np.maximum(np.diff(bounds), 1)
            begin, end = int(bounds[0]), int(bounds[-1])
            for at in range(begin, end, _SEQUENCES):
                lengths, _ = self.sequences(at, min(at + _SEQUENCES, end))[0]
                tokens += int(lengths.sum(dtype=np.int64))
                for pair in self.pairs:
                    pair.check_total(tokens)
                numbers = np.arange(at, at + len(lengths))
                owners = np.searchsorted(bounds, numbers, side="right") - 1
                # Sums in float64 are exact: below 2 ** 53.
                sizes += each * np.bincount(owners, lengths, len(sizes)).astype(np.int64)
            yield sizes

    def digest(self, first: int, last: int) -> str:
        """BLAKE3 of some documents: of their types, lengths, bounds, tokens and mask."""
        bounds = self.bounds(first, last)
        types = [pair.head.dtype.name for pair in self.pairs]
        digest = blake3.blake3(f"{types} {last - first}\n".encode())
        digest.update((bounds - bounds[0]).tobytes())
        for at in range(int(bounds[0]), int(bounds[-1]), _SEQUENCES):
            for pair, (lengths, pointers) in zip(
                self.pairs, self.sequences(at, min(at + _SEQUENCES, int(bounds[-1]))), strict=True
            ):
                digest.update(lengths.tobytes())
                for piece in pair.pieces(lengths, pointers):
                    digest.update(piece)
        return digest.hexdigest()

    def rows(self, first: int, last: int, columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Some documents as rows of arrays."""
        bounds = self.bounds(first, last)
        found = self.sequences(int(bounds[0]), int(bounds[-1]))
        lengths = found[0][0]
        cuts = (bounds - bounds[0]).tolist()
        tokens = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[cuts].tolist()
        values = {}
        for name, pair, (_, pointers) in zip((_IDS, _MASK), self.pairs, found, strict=False):
            if columns is None or name in columns:
                values[name] = np.frombuffer(b"".join(pair.pieces(lengths, pointers)), pair.head.dtype)
        rows = []
        for at in range(last - first):
            row: dict[str, Any] = {name: numbers[tokens[at] : tokens[at + 1]] for name, numbers in values.items()}
            if columns is None or _LENGTHS in columns:
                row[_LENGTHS] = lengths[cuts[at] : cuts[at + 1]]
            if columns is None or _LENGTH in columns:
                row[_LENGTH] = np.array([tokens[at + 1] - tokens[at]])
            rows.append(row)
        return rows


@dataclass(frozen=True, slots=True)
class MegatronPlace:
    """Neighbouring documents of an index."""

    first: int
    last: int
    """One past the last document."""

    def rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        """See `RowReader`."""
        return as_lists(self._rows(path, block, columns, limit))

    def array_rows(self, path: Path, block: Block, columns: Sequence[str] | None) -> BlockRows:
        """See `ArrayReader`."""
        return self._rows(path, block, columns, None)

    def _rows(self, path: Path, block: Block, columns: Sequence[str] | None, limit: int | None) -> BlockRows:
        try:
            with ExitStack() as stack:
                documents = _Documents(path, stack)
                if (
                    self.last > documents.head.documents
                    or documents.digest(self.first, self.last) != block.content_hash
                ):
                    raise changed(path, block, False)
                most = min(one for one in (self.last - self.first, block.take, limit) if one is not None)
                return BlockRows(records=list(enumerate(documents.rows(self.first, self.first + most, columns))))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; put it back, or give its path") from error


def scan_megatron(path: Path, size: int, max_row_bytes: int) -> list[Block]:
    """The blocks of an index.

    Raises:
        InputError: the index, its `.bin` or its mask is damaged, cut short or missing.
    """
    blocks: list[Block] = []
    with ExitStack() as stack:
        documents = _Documents(path, stack)
        at = 0
        for span in cut_sizes(documents.sizes(), size, max_row_bytes):
            digest = documents.digest(span.first, span.last)
            place = MegatronPlace(span.first, span.last)
            end = at + span.bytes
            blocks.append(Block(at, end, span.first, span.last - span.first, digest, span.too_long, place=place))
            at = end
    return blocks


def document_count(path: Path) -> int:
    """How many rows an index has."""
    with ExitStack() as stack:
        return _Pair(path, stack).head.documents


def some_documents(path: Path, first: int, count: int) -> list[dict[str, Any]]:
    """Some rows of an index, all columns; fewer at its end."""
    with ExitStack() as stack:
        documents = _Documents(path, stack)
        last = min(first + count, documents.head.documents)
        return [plain(row) for row in documents.rows(first, last, None)] if last > first else []
