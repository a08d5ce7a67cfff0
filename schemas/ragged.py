"""Arrays of ranges that lie end to end: items of N lists in one array, where list i is values[offsets[i]:offsets[i+1]].

Sums have 64 bits unless a caller asks otherwise.
"""

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.integer[Any]]
Counts: TypeAlias = NDArray[np.integer[Any] | np.bool_]
Width = TypeVar("Width", bound=np.integer[Any])
"""The integer type of an array that a function gives back."""


@overload
def offsets_of(lengths: Counts | Sequence[int]) -> NDArray[np.int64]: ...
@overload
def offsets_of(lengths: Counts | Sequence[int], dtype: type[Width]) -> NDArray[Width]: ...
def offsets_of(lengths: Counts | Sequence[int], dtype: type[Any] = np.int64) -> NDArray[Any]:
    """(N + 1,) where each of N lists begins, and where the last one ends: 0 3 5 for the lengths 3 and 2."""
    out = np.zeros(len(lengths) + 1, dtype=dtype)
    np.cumsum(lengths, dtype=dtype, out=out[1:])
    return out


def lengths_of(lists: Collection[Any]) -> NDArray[np.int64]:
    """(N,) the length of each list."""
    return np.fromiter(map(len, lists), np.int64, len(lists))


def starts_of(lengths: Integers) -> NDArray[np.int64]:
    """(N,) where each of N lists begins: `offsets_of` without its last number, 0 3 for the lengths 3 and 2."""
    return np.cumsum(lengths, dtype=np.int64) - lengths


def ranges(begins: Integers | int, lengths: Integers) -> NDArray[np.int64]:
    """begins[0], begins[0] + 1, …, then begins[1], …: `lengths[i]` numbers of each.

    Of the begins 7 and 2, with the lengths 3 and 2: 7 8 9 2 3.
    """
    # 0 1 2 3 4, plus 7 7 7 −1 −1: what each range begins with, less the numbers before it.
    out = np.arange(int(lengths.sum()), dtype=np.int64)
    out += np.repeat(begins - starts_of(lengths), lengths)
    return out


def sums_of(values: Counts, offsets: Integers) -> NDArray[np.int64]:
    """(N,) the sum of each list's values; 0 for an empty list. Of the values 1 2 4 and the offsets 0 2 2 3: 3 0 4."""
    # Not `np.add.reduceat`, which gives the next value for an empty list.
    return np.diff(offsets_of(values)[offsets])


def begins_of(ends: NDArray[Width], offsets: Integers) -> NDArray[Width]:
    """(spans,) where each span begins in its document, computed from where the spans end.

    Args:
        offsets: (N + 1,) where each document's spans begin. A document has at least one span.
    """
    # Ends 8 9 5 of two documents, whose spans begin at 0 and 2: begins 0 8 0.
    out = np.empty_like(ends)
    out[1:] = ends[:-1]
    out[offsets[:-1]] = 0
    return out
