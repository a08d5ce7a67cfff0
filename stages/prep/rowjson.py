"""JSON text inside rows, and a limit on how deeply rows may nest."""

from collections.abc import Callable
from typing import Any

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.jsontext import MAX_DEPTH, too_deep

TOO_DEEP = "too_deep"
"""Reason for rows nested deeper than `MAX_DEPTH`. Later steps need several Python frames per level, and templates many
more; a fixed limit does not depend on how deep the stack already is."""


def require_shallow(value: Any, what: str) -> None:
    """Refuse a value that nests too deeply.

    Args:
        what: names the row or key in the message.

    Raises:
        RowRejectedError: `too_deep`.
    """
    if too_deep(value):
        raise RowRejectedError(TOO_DEEP, f"{what} nests more than {MAX_DEPTH} lists and objects within one another")


def decode_json(
    text: str,
    where: str,
    decode: Callable[[bytes], Any] = msgspec.json.decode,
    *,
    what: str = "JSON",
    reason: str = "wrong_type",
) -> Any:
    """Decode a JSON text.

    Args:
        where: names the key in messages.
        decode: of a decoder of msgspec, which knows the type of the value.
        what: the type in words.
        reason: the reason of the rejection.

    Raises:
        RowRejectedError: `reason`, `invalid_utf8` or `too_deep`.
    """
    try:
        value = decode(text.encode())
    except UnicodeEncodeError as error:
        raise RowRejectedError("invalid_utf8", f"{where}: {error.reason}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowRejectedError(reason, f"{where} is not {what}: {error}") from None
    require_shallow(value, where)
    return value
