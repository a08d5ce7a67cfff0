"""The elements of a JSON array, one at a time, in memory for one element and a chunk, whatever the array has.

A decoder of the whole array needs all of it in memory: a compressed file of a megabyte can be an array of a gigabyte.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from io import BufferedReader
from json import JSONDecodeError, JSONDecoder

_CHUNK = 1 << 20
"""Bytes that are read at once, at least."""
_MIN_SEARCHED = 8 << 20
"""Characters within which an element's end is looked for, where rows may be no longer than that."""
_SPACE = re.compile(r"[ \t\r\n]*")


def array_elements(stream: BufferedReader, longest: int) -> Iterator[bytes]:
    """Each element of an array, as it is written, without white space around it.

    Python's own decoder says where an element ends. What it makes of the element is not used.

    Args:
        longest: bytes of the longest element that is found for certain. Longer ones may be found, too.

    Raises:
        ValueError: it is no array, or cut short, an element is not JSON, or one is much too long; says at which byte.
    """
    # Bytes that are no UTF-8 cost their own row: they become lone surrogates here, and bytes again in the element.
    utf8 = getincrementaldecoder("utf-8")("surrogateescape")
    max_searched = max(longest, _MIN_SEARCHED)
    # A window of the stream, decoded. Positions are characters of it.
    text = utf8.decode(stream.read(_CHUNK))
    text_start = 0  # the byte of the stream at which the text begins
    opening = _skip_space(text, 0)
    if not text.startswith("[", opening):
        raise ValueError("it does not begin with [, at byte 0")
    position = opening + 1  # behind the bracket that opens the array, or behind a comma
    is_first = True
    while True:
        begin = _skip_space(text, position)
        if is_first and text.startswith("]", begin):  # an empty array; `[1,]` is none
            position = begin + 1
            break
        try:
            end, separator = _find_end(text, begin)
        except (ValueError, IndexError, RecursionError) as error:
            # The element is wrong, or the text ends within it or right behind it, as in `[12` or `[12.` of `[12.5]`.
            # More text shows which.
            remaining = text[begin:]
            is_too_long = len(remaining) > max_searched
            more = b""
            if not is_too_long:
                # As much again, so that a long element, which is decoded from its beginning each time, is decoded few
                # times; but only a chunk more than may be searched.
                more = stream.read(min(max(len(remaining), _CHUNK), max_searched + _CHUNK - len(remaining)))
            if not more:
                raise _described(error, text, text_start, is_too_long=is_too_long) from None
            text_start += len(_encode(text[:begin]))
            text = remaining + utf8.decode(more)
            position = 0
            continue
        yield _encode(text[begin:end])
        is_first = False
        position = separator + 1
        if text[separator] == "]":
            break
    # Only white space may follow: a second array behind the first would be lost unseen.
    end_byte = text_start + len(_encode(text[:position]))
    data = _encode(text[position:]) or stream.read(_CHUNK)
    while data:
        if data.strip():
            raise ValueError(f"something follows its end, at byte {end_byte:,}")
        data = stream.read(_CHUNK)


def _find_end(text: str, begin: int) -> tuple[int, int]:
    """Where the element that begins at a position ends, and where the comma or bracket behind it is.

    In `[12 , 3]`, the element that begins at 1 ends at 3, and its comma is at 4.

    Raises:
        ValueError, RecursionError: it is no JSON, the text ends within it, or something else follows it.
        IndexError: the text ends behind it.
    """
    _, end = _DECODER.raw_decode(text, begin)
    separator = _skip_space(text, end)
    if text[separator] not in ",]":
        raise JSONDecodeError("there is no comma between two elements", text, separator)
    return end, separator


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Numbers stay text: converting them takes time, and Python refuses integers of more than 4,300 digits. NaN and Infinity
# are refused: Python reads them, but they are no JSON.
_DECODER = JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse_constant)


def _skip_space(text: str, position: int) -> int:
    """The first position from this one on that holds no white space; the text's length if there is none."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _described(error: Exception, text: str, text_start: int, *, is_too_long: bool) -> ValueError:
    """The error of an element that cannot be read, with its byte in the stream.

    Args:
        error: that of the decoder, or an IndexError if the text ends behind an element.
        text_start: the byte of the stream at which the text begins.
        is_too_long: whether the element's end was not found in as much text as may be searched.
    """
    problem = str(error)
    position = len(text)
    if isinstance(error, JSONDecodeError):
        problem = error.msg
        position = error.pos
    if isinstance(error, IndexError) or position >= len(text):
        problem = "it is cut short"
    if is_too_long:
        problem = f"an element is not JSON, or far longer than max_row_bytes ({problem})"
    return ValueError(f"{problem}, at byte {text_start + len(_encode(text[:position])):,}")
