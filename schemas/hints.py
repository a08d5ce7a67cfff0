"""What messages advise: the nearest right word, and how to set a key in the way in which this person sets keys."""

import difflib
import json
import shlex
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from typing import Any

_TYPED: ContextVar[Collection[str] | None] = ContextVar("typed_keys", default=())
"""Keys that were given on the command line; None where all were, because there is no file."""
_OPTIONS = {"truncate.max_length": "--max-length", "run.workers": "--workers"}
"""Keys that have an option of their own."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean train?`, or nothing where no word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def configured_by(typed: Collection[str] | None) -> None:
    """Remember how the configuration was given, for `setting`.

    Args:
        typed: keys that the command line overrides, such as `truncate.max_length`; None where there is no file.
    """
    _TYPED.set(typed)


def typed_keys() -> Collection[str] | None:
    """What `configured_by` was told, for other processes of the same run."""
    return _TYPED.get()


def setting(key: str, value: Any) -> str:
    """How this person sets a key: `truncate: {keep: end}` in a file, `--set truncate.keep=end` on a command line.

    Args:
        key: the path of the key, such as `sources.0.keys.text`. Of a source, a file is shown the part below it.
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
