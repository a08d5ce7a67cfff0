"""The elements of a JSON array, one at a time, in memory for one element and a chunk, whatever the array has.

A decoder of the whole array needs all of it in memory: a compressed file of a megabyte can be an array of a gigabyte.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from io import BufferedReader
from json import JSONDecodeError, JSONDecoder

_CHUNK = 1 << 20
_MIN_SEARCHED = 8 << 20
"""Characters within which an element's end is looked for, where rows may be no longer than that."""
_SPACE = re.compile(r"[ \t\r\n]*")


def array_elements(stream: BufferedReader, longest: int) -> Iterator[bytes]:
    """Each element of an array, as it is written, without white space around it.

    Python's own decoder says where an element ends. What it makes of the element is not used: it takes NaN for a
    number, for example, which `_DECODER` refuses.

    Args:
        longest: bytes of an element that is certainly found. A longer one may be, too.

    Raises:
        ValueError: it is no array, or cut short, an element is not JSON, or one is much too long; says at which byte.
    """
    # Bytes that are no UTF-8 cost their own row: they become lone surrogates here, and bytes again in the element.
    utf8 = getincrementaldecoder("utf-8")("surrogateescape")
    searched = max(longest, _MIN_SEARCHED)
    text = utf8.decode(stream.read(_CHUNK))
    text_start = 0  # where the text begins in the stream, in bytes
    opening = _skip_space(text, 0)
    if not text.startswith("[", opening):
        raise ValueError("it does not begin with [, at byte 0")
    position = opening + 1  # in the text, behind the last bracket or comma
    is_first = True
    while True:
        begin = _skip_space(text, position)
        if is_first and text.startswith("]", begin):
            position = begin + 1
            break
        try:
            _, end = _DECODER.raw_decode(text, begin)
            separator_place = _skip_space(text, end)
            separator = text[separator_place]
            if separator not in ",]":
                raise JSONDecodeError("there is no comma between two elements", text, separator_place)
        except (ValueError, IndexError, RecursionError) as error:
            # The element is wrong, or the text ends within it or right behind it, as in `[12` or `[12.` of `[12.5]`.
            # More text shows which: twice as much each time, so that a long element is decoded few times.
            rest = text[begin:]
            more = b""
            if len(rest) <= searched:
                more = stream.read(min(max(len(rest), _CHUNK), searched + _CHUNK - len(rest)))
            if not more:
                raise _described(error, text, text_start, is_too_long=len(rest) > searched) from None
            text_start += len(_encode(text[:begin]))
            text = rest + utf8.decode(more)
            position = 0
            continue
        yield _encode(text[begin:end])
        is_first = False
        position = separator_place + 1
        if separator == "]":
            break
    # A second array behind the first would be lost unseen.
    end_byte = text_start + len(_encode(text[:position]))
    data = _encode(text[position:]) or stream.read(_CHUNK)
    while data:
        if data.strip():
            raise ValueError(f"something follows its end, at byte {end_byte:,}")
        data = stream.read(_CHUNK)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Numbers stay text: converting them takes time, and Python refuses integers of more than 4,300 digits.
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
