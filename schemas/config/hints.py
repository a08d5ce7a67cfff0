"""Advice in messages: the nearest valid word, and how to set a key in a file or on the command line."""

import difflib
import json
import shlex
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, TypeVar

from ..errors import ConfigError

_Enum = TypeVar("_Enum", bound=StrEnum)

_TYPED: ContextVar[Collection[str] | None] = ContextVar("typed_keys", default=())
"""Keys given on the command line; None if there is no file."""
_OPTIONS = {"truncate.max_length": "--max-length", "run.workers": "--workers"}
"""Keys with a command-line option."""


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


def configured_by(typed: Collection[str] | None) -> None:
    """Remember how the configuration was given, for `setting`.

    Args:
        typed: keys given on the command line, such as `truncate.max_length`; None if there is no file.
    """
    _TYPED.set(typed)


def typed_keys() -> Collection[str] | None:
    """The argument of `configured_by`, for other processes of the same run."""
    return _TYPED.get()


def setting(key: str, value: Any) -> str:
    """How to set a key, in the way this run was configured: `truncate: {keep: end}` in a file, `--set
    truncate.keep=end` on a command line.

    Args:
        key: the path of the key, such as `sources.0.keys.text`. For a source in a file, only the part below it is
            shown.
    """
    typed = _TYPED.get()
    text = value if isinstance(value, str) else json.dumps(value)
    if typed is None or key in typed:
        if key in _OPTIONS:
            return f"{_OPTIONS[key]} {text}"
        return f"--set {shlex.quote(f'{key}={text}')}"
    parts = key.split(".")
    if parts[0] == "sources":
        parts = parts[2:]
    *sections, last = parts
    opened = "".join(f"{section}: {{" for section in sections)
    return f"{opened}{last}: {text}{'}' * len(sections)}"
