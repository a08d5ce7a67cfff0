"""The elements of a JSON array, one at a time, in memory for one element and a chunk, whatever the array has.

A decoder of the whole array needs all of it in memory, and an object for each element: a compressed file of a megabyte
can be an array of a gigabyte. Here numpy finds the commas between elements, a chunk at a time: those outside of strings
and of inner brackets. The decoder then checks each element by itself.
"""

from collections.abc import Iterator
from io import BufferedReader

import msgspec
import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 20
_SPACE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,[]'
_DEPTHS = np.zeros(256, np.int64)
"""What a byte adds to the depth, outside of a string."""
_DEPTHS[[*b"[{"]] = 1
_DEPTHS[[*b"]}"]] = -1
_SPECIAL = np.zeros(256, np.bool_)
_SPECIAL[[*b'"\\,[]{}']] = True


def array_elements(stream: BufferedReader, longest: int) -> Iterator[tuple[bytes, int]]:
    """Each element of an array, without white space around it, and its bytes; of one that has more than `longest`, no
    element.

    Raises:
        ValueError: it is no array, or cut short, or an element is not JSON; says at which byte.
    """
    marks, element, before = _Marks(), _Element(longest), 0
    is_open = is_closed = False
    count = 0
    while chunk := stream.read(_CHUNK):
        begin = 0
        for place in marks.of(chunk).tolist():
            if is_closed or (not is_open and (chunk[place] != _OPEN or chunk[begin:place].strip(_SPACE))):
                break
            if is_open:
                element.add(chunk[begin:place])
                is_closed = chunk[place] != _COMMA
                if chunk[place] not in (_COMMA, _CLOSE):
                    raise ValueError(f"a bracket is closed by another kind, at byte {before + place:,}")
                if element.size or not is_closed or count:
                    count += 1
                    yield element.taken(before + place)
            is_open = True
            begin = place + 1
        if (is_closed or not is_open) and chunk[begin:].strip(_SPACE):
            what = "something follows its end" if is_closed else "it does not begin with ["
            raise ValueError(f"{what}, at byte {before + begin:,}")
        element.add(chunk[begin:])
        before += len(chunk)
    if not is_closed:
        raise ValueError(f"it is cut short, at byte {before:,}")


class _Element:
    """An element of which so much is known; nothing is kept of one that is too long."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._kept = bytearray()
        self._space = 0
        """Bytes of white space at its end so far, which may belong to it."""
        self.size = 0
        """Its bytes, without white space around it."""

    def add(self, data: bytes) -> None:
        """Add what follows."""
        if not self.size:
            data = data.lstrip(_SPACE)
        visible = len(data.rstrip(_SPACE))
        if visible:
            self.size += self._space + visible
            self._space = 0
        self._space += len(data) - visible
        if self.size > self._longest:
            self._kept.clear()
        elif self.size:
            self._kept += data
            del self._kept[self.size + self._longest :]  # no more white space than that

    def taken(self, end: int) -> tuple[bytes, int]:
        """What it is; the next one begins then.

        Args:
            end: where it ends, for messages.

        Raises:
            ValueError: it is not JSON.
        """
        size, element = self.size, b""
        if size <= self._longest:
            element = bytes(self._kept[:size])
            try:
                msgspec.json.decode(element, type=msgspec.Raw)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"the element that ends at byte {end:,} is not JSON: {error}") from None
        self._kept.clear()
        self.size = self._space = 0
        return element, size


class _Marks:
    """Finds where elements end. Reads chunk after chunk, and keeps whether it is in a string, and how deep."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        """Whether a backslash at the end of the last chunk belongs to the next byte."""

    def of(self, chunk: bytes) -> NDArray[np.int64]:
        """(N,) places of the array's opening bracket, of the commas between its elements, and of its end."""
        data = np.frombuffer(chunk, np.uint8)
        places = np.flatnonzero(_SPECIAL[data])
        kinds = data[places]
        escaped = self._escaped(places[kinds == _BACKSLASH], len(chunk))
        quotes = (kinds == _QUOTE) & ~np.isin(places, escaped, assume_unique=True)
        inside = (np.cumsum(quotes) + self._in_string) % 2 == 1
        steps = np.where(inside | quotes, 0, _DEPTHS[kinds])
        depths = np.cumsum(steps) + self._depth
        between = (kinds == _COMMA) & (depths == 1) & ~inside
        if len(places):
            self._in_string, self._depth = bool(inside[-1]), int(depths[-1])
        ends: NDArray[np.int64] = places[between | ((steps > 0) & (depths == 1)) | ((steps < 0) & (depths <= 0))]
        return ends

    def _escaped(self, backslashes: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """(N,) places of the bytes behind a backslash that is not behind one itself.

        Args:
            backslashes: their places in the chunk.
            size: of the chunk.
        """
        carried = [0] if self._is_escaped else []
        if self._is_escaped and len(backslashes) and not backslashes[0]:
            backslashes, carried = backslashes[1:], []
        starts = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
        lengths = np.diff(np.append(starts, len(backslashes)))
        behind = (backslashes[starts] + lengths)[lengths % 2 == 1]
        self._is_escaped = bool(len(behind) and behind[-1] == size)
        return np.concatenate((np.array(carried, np.int64), behind))
