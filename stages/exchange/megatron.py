"""The index of Megatron's `.bin` and `.idx` pairs.

Rules: `megatron/core/datasets/indexed_dataset.py` of megatron-core 0.16.1. The `.bin` holds token ids and nothing else.
The `.idx` is a header of 34 bytes (a mark, version 1, a code for the type, the number of sequences, the number of
document bounds), then for each sequence its length (int32) and first byte (int64), then the bounds (int64): document d
is sequences `bounds[d]` to `bounds[d + 1] - 1`.

Here a sequence is one piece of a document, and a Megatron document is one packed row.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import starts_of
from .exchange_rows import ExchangeRows

MARK = b"MMIDIDX\x00\x00"
VERSION = 1
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
"""numpy type → its code."""


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
