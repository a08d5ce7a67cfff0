"""The nearest valid word, for messages. Advice on a key is spelt `key=value` everywhere, as `--set` takes it."""

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from ..errors import ConfigError

_Enum = TypeVar("_Enum", bound=StrEnum)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean train?`, or "" if no word is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def choice(name: str, value: str, kind: type[_Enum]) -> _Enum:
    """The member of `kind` with this value. Raises ConfigError with the valid values if there is none."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(kind)}") from None
