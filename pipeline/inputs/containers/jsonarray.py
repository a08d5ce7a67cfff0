"""Converts a JSON array to lines: each element becomes a line, as in JSONL.

The array is read in pieces and never held whole. Line breaks between the tokens of an element become carriage returns,
which are white space in JSON too, and just as invalid within strings; nothing else changes.
"""

import numpy as np

from ....schemas.errors import InputError
from .lines import Read

_SPACE = b" \t\r\n"
_QUOTE, _COMMA = ord('"'), ord(",")
_STRUCTURE = np.zeros(256, dtype=np.bool_)
_STRUCTURE[list(b'"[]{},')] = True
_STEPS = np.zeros(256, dtype=np.int64)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_CHUNK = 1 << 20


class ArrayLines:
    """Reads the elements of an array as lines.

    Args:
        path: of the file, for messages.
        read: returns the array's bytes.
    """

    def __init__(self, path: str, read: Read) -> None:
        self._path = path
        self._source = read
        self._waiting = b""
        """Lines that were not returned yet."""
        self._held = b""
        """A backslash at the end of the data read so far, kept with the character that it escapes."""
        self._begun = self._ended = False
        self._inside = False
        """Whether a string is open."""
        self._depth = 1
        self._elements = 0
        self._blank = True
        """Whether the current element is still empty."""

    def read(self, count: int) -> bytes:
        """The next bytes of lines, at most `count`; empty at the end.

        Raises:
            InputError: the array has no end, or something follows it.
        """
        while not self._waiting:
            data = self._source(_CHUNK)
            if not data:
                if not self._ended:
                    raise InputError(
                        f"{self._path} is cut short: its JSON array has no end, or a quote or a bracket stays open "
                        f"after element {self._elements:,}; copy it again, or write it again"
                    )
                self._check_end(self._held)
                return b""
            self._waiting = self._lines(data)
        out, self._waiting = self._waiting[:count], self._waiting[count:]
        return out

    def _lines(self, data: bytes) -> bytes:
        data = self._held + data
        held = (len(data) - len(data.rstrip(b"\\"))) % 2
        data, self._held = data[: len(data) - held], data[len(data) - held :]
        if not self._begun:
            data = data.lstrip(_SPACE)
            self._begun = bool(data)
            data = data.removeprefix(b"[")
        if self._ended:
            self._check_end(data)
            return b""
        # Escaped quotes blanked out, at the same length.
        bare = np.frombuffer(data.replace(b"\\\\", b"__").replace(b'\\"', b"__"), dtype=np.uint8)
        places = np.flatnonzero(_STRUCTURE[bare])
        kinds = bare[places]
        inside = (np.cumsum(kinds == _QUOTE) + self._inside) % 2 == 1
        if len(inside):
            self._inside = bool(inside[-1])
        outside = ~inside & (kinds != _QUOTE)
        places, kinds = places[outside], kinds[outside]
        depth = self._depth + np.cumsum(_STEPS[kinds])
        if len(depth):
            self._depth = int(depth[-1])
        closing = np.flatnonzero(depth == 0)
        end = int(closing[0]) if len(closing) else len(depth)
        commas = places[:end][(kinds[:end] == _COMMA) & (depth[:end] == 1)]
        out: list[bytes] = []
        at = 0
        for place in commas.tolist():
            self._add(data[at:place], out)
            self._close(out)
            at = place + 1
        if not len(closing):
            self._add(data[at:], out)
            return b"".join(out)
        self._ended = True
        last = int(places[end])
        self._add(data[at:last], out)
        if self._elements or not self._blank:
            self._close(out)
        self._check_end(data[last + 1 :])
        return b"".join(out)

    def _add(self, piece: bytes, out: list[bytes]) -> None:
        if self._blank:
            piece = piece.lstrip(_SPACE)
            self._blank = not piece
        out.append(piece.replace(b"\n", b"\r"))

    def _close(self, out: list[bytes]) -> None:
        # An extra comma gives an invalid row, not a blank line.
        out.append(b",\n" if self._blank else b"\n")
        self._blank = True
        self._elements += 1

    def _check_end(self, data: bytes) -> None:
        if data.strip(_SPACE):
            raise InputError(
                f"{self._path}: something follows the end of its JSON array, after element {self._elements:,}; write "
                "one array per file, or JSONL, one object a line"
            )
