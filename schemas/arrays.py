"""Converts between numpy and Arrow arrays that share memory.

`pyarrow.array` and `to_numpy` would import pandas if it is installed: 0.15 s and 40 MB in every worker.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .ragged import lengths_of, offsets_of


def numbers(values: NDArray[np.generic]) -> pa.Array:
    """(N,) integers, floats or booleans as an Arrow array. Only booleans are copied, into bits."""
    flat = np.ascontiguousarray(values)
    # Arrow takes two buffers: bits that say which values are null, or None if none is, and the values.
    if flat.dtype == np.bool_:
        bits = np.packbits(flat, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(flat), [None, pa.py_buffer(bits)])
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])


def strings(values: Sequence[str]) -> pa.Array:
    """(N,) texts as an Arrow array of type string."""
    # The offsets of a string column count bytes of UTF-8, not characters.
    encoded = [value.encode() for value in values]
    offsets = offsets_of(lengths_of(encoded), np.int32)
    data = pa.py_buffer(b"".join(encoded))
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(offsets), data])


def digests(values: Sequence[bytes], width: int) -> pa.Array:
    """(N,) byte strings as an Arrow array; each has `width` bytes."""
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(b"".join(values))])


def lists(
    offsets: NDArray[np.integer[Any]], values: "NDArray[np.generic] | pa.Array", kind: pa.DataType
) -> pa.ListArray:
    """(N,) an Arrow array of lists: list i is `values[offsets[i]:offsets[i + 1]]`.

    Args:
        offsets: (N + 1,) where each list begins, and where the last one ends.
        kind: the type of a list, such as `pa.list_(pa.int32())`.
    """
    child = values if isinstance(values, pa.Array) else numbers(values)
    return pa.ListArray.from_arrays(numbers(offsets.astype(np.int32, copy=False)), child, type=kind)


def view(array: pa.Array) -> NDArray[Any]:
    """(N,) an Arrow array of numbers without nulls as a read-only numpy array that shares its memory."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    # Buffer 0 says which values are null. A slice shares the buffer of the array that it was cut from, and its offset
    # says where it begins there.
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]


def list_lengths(column: pa.ListArray) -> NDArray[np.int64]:
    """(N,) the length of each list of an Arrow array."""
    offsets = view(column.offsets).astype(np.int64)  # those of a slice do not begin at 0
    return offsets[1:] - offsets[:-1]
