"""JSON that somebody else wrote, read within bounds: too deep, or too large a number, is a ValueError."""

import json
from typing import Any, TypeVar

MAX_DEPTH = 100
"""Mappings and lists inside one another."""
MAX_DIGITS = 40
"""Characters of a number. Every number that is meant has fewer; Python refuses to convert more than 4,300."""

_T = TypeVar("_T")


def parse_json(data: bytes | str) -> Any:
    """The data of a JSON text.

    Raises:
        ValueError: it is not JSON, or larger than `MAX_DEPTH` and `MAX_DIGITS` allow.
    """
    try:
        value = json.loads(data, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"nested too deeply: at most {MAX_DEPTH} levels") from None
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested too deeply: at most {MAX_DEPTH} levels")
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        depth += 1
    return value


def decode_note(data: bytes | None, type: type[_T]) -> _T:
    """A note as JSON, of one type; nothing at all is not JSON.

    Raises:
        msgspec.MsgspecError: it is something else, or nested too deeply. A ValueError.
    """
    import msgspec  # here, because a trainer reads manifests and does without

    try:
        return msgspec.json.decode(data or b"", type=type)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)
