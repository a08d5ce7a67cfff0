"""JSON text inside rows, and a limit on how deeply rows may nest."""

from typing import Any

import msgspec
import numpy as np

from ...schemas.errors import RowRejectedError
from ...schemas.jsontext import MAX_DEPTH

TOO_DEEP = "too_deep"
"""Reason for rows nested deeper than `MAX_DEPTH`. Later steps need several Python frames per level, and templates many
more; a fixed limit does not depend on how deep the stack already is."""

_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_QUOTE = ord('"')
_split_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonObject(dict[str, Any]):
    """An object decoded from JSON text: all its nulls are real, none was added by Arrow."""


class JsonArray(list[Any]):
    """A list decoded from JSON text; see `JsonObject`."""


def check_depth(data: bytes, what: str) -> None:
    """Refuse JSON that nests too deeply.

    Args:
        what: names the row or key in the message.

    Raises:
        RowRejectedError: `too_deep`.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH or _outside_texts(data) <= 2 * MAX_DEPTH:
        return
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_AS_LISTS, _NOT_BRACKETS)
    # Two quotes side by side begin and end texts in between, in which there is no bracket.
    left = outside = b"".join(bare.replace(b'""', b"").split(b'"')[::2])
    for _ in range(MAX_DEPTH):  # each removes one level; faster than counting, because most rows have few levels
        left = left.replace(b"[]", b"")
        if not left:
            return
    brackets = np.frombuffer(outside, dtype=np.uint8)
    if int(np.cumsum(np.where(brackets == ord("["), 1, -1)).max()) > MAX_DEPTH:
        raise RowRejectedError(TOO_DEEP, f"{what} nests more than {MAX_DEPTH} lists and objects within one another")


def _outside_texts(data: bytes) -> int:
    """How many bytes are not values of the outer object that are texts. Each level of nesting needs two of them.

    Values of a key that occurs again are outside too, because only the last one counts. So it is all of the data if
    there is no outer object.
    """
    try:
        values = [memoryview(value) for value in _split_values(data).values()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return len(data)
    return len(data) - sum(len(value) for value in values if value[0] == _QUOTE)


def decode_json(text: str, where: str, type: Any = Any, *, what: str = "JSON", reason: str = "wrong_type") -> Any:
    """Decode a JSON text.

    Args:
        where: names the key in messages.
        type: the type of the value, for msgspec.
        what: the type in words.
        reason: the reason of the rejection.

    Raises:
        RowRejectedError: `reason`, `invalid_utf8` or `too_deep`.
    """
    try:
        data = text.encode()
        check_depth(data, where)
        return msgspec.json.decode(data, type=type)
    except UnicodeEncodeError as error:
        raise RowRejectedError("invalid_utf8", f"{where}: {error.reason}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowRejectedError(reason, f"{where} is not {what}: {error}") from None


def exact(value: Any) -> Any:
    """A value decoded from JSON text, marked so that its nulls are not mistaken for nulls that Arrow added."""
    if isinstance(value, dict):
        return JsonObject(value)
    return JsonArray(value) if isinstance(value, list) else value


def pruned(value: Any) -> Any:
    """Messages or tools without the nulls that Arrow adds for keys of other rows.

    An Arrow column has one type, so a key that any message has becomes a null in all other messages. A null that was in
    the data looks the same, unless the value was JSON text. Works at any depth; the `content` of a message is not
    changed.
    """
    if isinstance(value, dict) and not isinstance(value, JsonObject):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None or key == "content"}
    if isinstance(value, list) and not isinstance(value, JsonArray):
        return [pruned(one) if isinstance(one, dict) else _pruned(one) for one in value]
    return _pruned(value)


def _pruned(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return dict(value)
    if isinstance(value, JsonArray):
        return list(value)
    if isinstance(value, dict):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_pruned(inner) for inner in value]
    return value


def unmarked(value: Any) -> Any:
    """The value as plain dicts and lists, with all nulls."""
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items()}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value
