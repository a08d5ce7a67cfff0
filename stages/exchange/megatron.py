"""The index of Megatron's `.bin` and `.idx` pairs.

Rules: `megatron/core/datasets/indexed_dataset.py` of megatron-core 0.16.1. The `.bin` holds token ids and nothing else.
The `.idx` is a header of 34 bytes (a mark, version 1, a code for the type, the number of sequences, the number of
document bounds), then for each sequence its length (int32) and first byte (int64), then the bounds (int64): document d
is sequences `bounds[d]` to `bounds[d + 1] - 1`.

Here a sequence is one piece of a document, and a Megatron document is one packed row.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import starts_of
from .exchange_rows import ExchangeRows

MARK = b"MMIDIDX\x00\x00"
VERSION = 1
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
"""numpy type → its code."""
HEAD_BYTES = 34
_HEAD = struct.Struct("<QBQQ")


@dataclass(frozen=True, slots=True)
class IndexHead:
    """What a `.idx` says of itself, and where its three arrays lie."""

    dtype: "np.dtype[Any]"
    """The type of the numbers in the `.bin`."""
    sequences: int
    documents: int

    @property
    def pointers(self) -> int:
        """The byte of the first pointer; the lengths are before it."""
        return HEAD_BYTES + 4 * self.sequences

    @property
    def bounds(self) -> int:
        """The byte of the first document bound."""
        return self.pointers + 8 * self.sequences

    @property
    def size(self) -> int:
        """Bytes of the whole index."""
        return self.bounds + 8 * (self.documents + 1)


def read_head(data: bytes, size: int) -> IndexHead:
    """The head of a `.idx`.

    Args:
        data: its first `HEAD_BYTES`.
        size: bytes of the file.

    Raises:
        ValueError: says what is wrong with it, as the end of a sentence that begins with its name.
    """
    if not data.startswith(MARK):
        raise ValueError("does not begin with MMIDIDX, the mark of a Megatron index")
    if len(data) < HEAD_BYTES:
        raise ValueError(f"is cut short: it has {size:,} bytes, and its head alone has {HEAD_BYTES}")
    version, code, sequences, bounds = _HEAD.unpack_from(data, len(MARK))
    if version != VERSION:
        raise ValueError(f"is of version {version}, and only version {VERSION} is known")
    name = next((name for name, known in CODES.items() if known == code), None)
    if name is None:
        raise ValueError(f"has the unknown type code {code}")
    if name.startswith("float"):
        raise ValueError(f"is of {name} numbers, which are not token ids")
    if bounds < 1:
        raise ValueError("has no document bounds, not even the first")
    head = IndexHead(np.dtype(name).newbyteorder("<"), sequences, bounds - 1)
    if sequences and size == head.size + sequences:
        raise ValueError("is that of a multimodal dataset, with a mode for each sequence, and only text can be packed")
    if size < head.size:
        raise ValueError(
            f"is cut short: {sequences:,} sequences and {bounds:,} bounds take {head.size:,} bytes, and it has {size:,}"
        )
    if size > head.size:
        raise ValueError(
            f"has {size - head.size:,} bytes more than its {sequences:,} sequences and {bounds:,} bounds take"
        )
    return head


def check_sequences(
    head: IndexHead, first: int, lengths: NDArray[np.int32], pointers: NDArray[np.int64], size: int
) -> None:
    """Check that sequences lie inside the `.bin`.

    Args:
        first: the number of the first of these sequences.
        lengths: (N,) tokens of each.
        pointers: (N,) first byte of each.
        size: bytes of the `.bin`.

    Raises:
        ValueError: as `read_head`.
    """
    wrong = (lengths < 0) | (pointers < 0) | (pointers > size - lengths.astype(np.int64) * head.dtype.itemsize)
    if wrong.any():
        at = int(np.argmax(wrong))
        begin, length = int(pointers[at]), int(lengths[at])
        if length < 0:
            raise ValueError(f"gives sequence {first + at:,} the length {length:,}")
        raise ValueError(
            f"puts sequence {first + at:,} ({length:,} tokens of {head.dtype.name}) at byte {begin:,} of the .bin, "
            f"which has {size:,} bytes"
        )


def check_bounds(head: IndexHead, first: int, bounds: NDArray[np.int64]) -> None:
    """Check that documents follow one another, and hold every sequence.

    Args:
        first: the number of the first of these bounds.
        bounds: (N,) the first sequence of each document; after the last, the number of sequences.

    Raises:
        ValueError: as `read_head`.
    """
    back = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(back):
        at = int(back[0])
        raise ValueError(
            f"has bounds that go back: {int(bounds[at]):,}, then {int(bounds[at + 1]):,} (document {first + at:,})"
        )
    if first == 0 and bounds[0] != 0:
        raise ValueError(f"begins its first document at sequence {int(bounds[0]):,}, not 0")
    last = first + len(bounds) == head.documents + 1
    if bounds[-1] > head.sequences or (last and bounds[-1] != head.sequences):
        which = "its last document" if last else f"document {first + len(bounds) - 2:,}"
        raise ValueError(f"ends {which} at sequence {int(bounds[-1]):,}, and has {head.sequences:,} sequences")


class SequenceIndex:
    """Collects the sequences and documents of one `.bin`: 12 bytes a piece, 8 a row."""

    def __init__(self) -> None:
        self._lengths: list[NDArray[np.int32]] = []
        self._bounds = [np.zeros(1, np.int64)]

    def add(self, rows: ExchangeRows) -> None:
        """Add the next rows."""
        before = self._bounds[-1][-1]
        self._lengths.append(rows.lengths.copy())
        self._bounds.append(rows.row_pieces[1:] + before)

    def to_bytes(self, dtype: "np.dtype[Any]") -> bytes:
        """The `.idx` of a `.bin` whose numbers have this type."""
        lengths = np.concatenate([np.zeros(0, np.int32), *self._lengths])
        bounds = np.concatenate(self._bounds)
        head = MARK + struct.pack("<QBQQ", VERSION, CODES[dtype.name], len(lengths), len(bounds))
        pointers = starts_of(lengths) * dtype.itemsize
        return (
            head + lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes() + bounds.astype("<i8").tobytes()
        )
