"""JSON of rows and inside rows: a limit on how deeply it may nest, the keys of a row, and what is wrong with it."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.jsontext import MAX_DEPTH, too_deep

_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Matches the escape of half of a surrogate pair: the first half of `\\ud83d\\ude00` without the second behind it, or
the second without the first before it. In a line that is not JSON, it is the likely reason."""
_NO_NUMBER = re.compile(rb"NaN|-?Infinity")
"""Words that Python's json writes, and JSON does not have. The longest has 9 bytes."""
_BYTE = re.compile(r"\(byte (\d+)\)")
"""Finds the place in a message of msgspec: `JSON is malformed: invalid character (byte 7)`."""
_MISMATCH = re.compile(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?\Z")
"""Divides a message of msgspec: `Expected `str`, got `int` - at `$.messages[0].role``. The path may be missing."""
_MISSING = re.compile(r"object missing required field `(.*)`")
TOO_DEEP = "too_deep"
"""Reason for rows nested deeper than `MAX_DEPTH`. Later steps need several Python frames per level, and templates many
more; a fixed limit does not depend on how deep the stack already is."""


def require_shallow(value: Any, name: str) -> None:
    """Refuse a value that nests too deeply.

    Args:
        name: of the row or key, for the message.

    Raises:
        RowRejectedError: `too_deep`.
    """
    if too_deep(value):
        raise RowRejectedError(TOO_DEEP, f"{name} nests more than {MAX_DEPTH} lists and objects within one another")


def decode_json(
    text: str,
    where: str,
    decode: Callable[[bytes], Any] = msgspec.json.decode,
    *,
    kind: str = "JSON",
    reason: str = "wrong_type",
) -> Any:
    """Decode a text that is JSON inside a row.

    Args:
        where: the key that has the text, for messages.
        decode: the method of a msgspec decoder that knows the type of the value.
        kind: that type in words, for messages.
        reason: the reason of the rejection if it is not JSON, or of another type.

    Raises:
        RowRejectedError: `reason`, `invalid_utf8` or `too_deep`.
    """
    try:
        value = decode(text.encode())
    except UnicodeEncodeError as error:
        raise RowRejectedError("invalid_utf8", f"{where}: {error.reason}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowRejectedError(reason, f"{where} is not {kind}: {error}") from None
    require_shallow(value, where)
    return value


def mismatch(error: msgspec.ValidationError) -> tuple[str, str]:
    """What msgspec says of a value of the wrong type, and the path to that value; "" if it is the whole row.

    "Expected `str`, got `int` - at `$.messages[0].role`" becomes "expected `str`, got `int`" and "messages[0].role".
    """
    complaint, path = _MISMATCH.fullmatch(str(error)).groups()  # type: ignore[union-attr]  # matches any text
    return complaint[:1].lower() + complaint[1:], path or ""


_SHAPE = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decodes the keys of a row, and none of its values."""


def keys_of_row(line: bytes) -> tuple[str, ...]:
    """The keys of a row. If one of them is not UTF-8, none can be read, and a single name stands for all."""
    # A row can be decoded although a key of it is damaged: msgspec skips what no field has, unread.
    try:
        return tuple(_SHAPE.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ("(a name that is not UTF-8)",)


def rejected_row(error: Exception, line: bytes = b"") -> RowRejectedError:
    """Translate a decoder's error into a rejection.

    Args:
        error: the error of msgspec. A RecursionError: the row nests too deeply. A ValidationError: a value has the
            wrong type. Any other: the line is not JSON.
        line: the line that the row was decoded from; empty if there is none.
    """
    if isinstance(error, RecursionError):
        return RowRejectedError(TOO_DEEP, f"the row nests more than {MAX_DEPTH} lists and objects within one another")
    if not isinstance(error, msgspec.ValidationError):
        return _rejected_line(error, line)
    # msgspec stops at the first value of the wrong type, which may stand before the place where the line stops being
    # JSON: then the line is damaged, and the type says nothing. So the whole line is decoded once more, as any type.
    try:
        msgspec.json.decode(line or b"{}")
    except msgspec.ValidationError:
        pass  # a number that is too large for any type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as damage:
        return rejected_row(damage, line)
    complaint, path = mismatch(error)
    missing = _MISSING.fullmatch(complaint)
    if missing is not None:
        return RowRejectedError("missing_key", f"the row has no `{missing[1]}`")
    if path:
        return RowRejectedError("wrong_type", f"`{path}`: {complaint}")
    return RowRejectedError("not_an_object", complaint)


def _rejected_line(error: Exception, line: bytes) -> RowRejectedError:
    """The rejection of a line that is not JSON, or not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as broken:
        return RowRejectedError("invalid_utf8", f"byte {broken.start} of the line: {broken.reason}")
    half = _HALF_PAIR.search(line)
    if half is not None:
        detail = f"a text holds half of a surrogate pair, {half[0].decode()} alone (byte {half.start()})"
        return RowRejectedError("half_surrogate", detail)
    return RowRejectedError("invalid_json", _damage(str(error), line))


def _damage(complaint: str, line: bytes) -> str:
    """What is wrong with a line that is not JSON, and at which byte.

    Args:
        complaint: of msgspec.
    """
    if "truncated" in complaint:
        return "the line ends early"
    byte_match = _BYTE.search(complaint)
    position = int(byte_match[1]) if byte_match is not None else 0
    # In `{"a": NaN}`, msgspec names byte 6, the N; in `{"a": -Infinity}` byte 7, the I: a word begins there, or one
    # byte before. Position 0 stands for a message without a place.
    word = _NO_NUMBER.search(line, position - 1, position + 9) if position else None
    if word is not None:
        return f"{word[0].decode()} (byte {word.start()}) is not JSON; write null, or leave it out"
    return complaint
