"""Standard output: lines, JSON, and the result of a command as one or the other."""

import json
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from ...schemas.escape import escape

if TYPE_CHECKING:
    from ..observer import Observer
    from ..report.grid import Lines

Made = TypeVar("Made")


def open_streams() -> None:
    """Open closed standard streams on the null device: else a file would get their number, and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(file, "w" if number else "r", encoding="utf-8"))


def lost_output(last: str = "") -> OSError | None:
    """Write the last of standard output. Returns why it cannot be written, such as a full disk, and drops what is left;
    None if it can.
    """
    try:
        print(end=last, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def print_line(text: str = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print untrusted text, escaped, with a line end.

    Args:
        file: standard output by default.
        flush: write at once, for occasional lines that someone watches through a pipe.
    """
    print(escape(text), file=file or sys.stdout, flush=flush)


def print_json(value: Any) -> None:
    """Print plain data, dataclasses and structs included, as JSON in ASCII.

    ASCII keeps control characters of the data escaped; DEL, which JSON leaves as it is, is escaped here. Infinite
    numbers and NaN become null, because JSON cannot write them.
    """
    text = json.dumps(_plain(value), indent=2, allow_nan=False, default=str)
    print_line(text.replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def show(
    make: "Callable[[Observer], Made]",
    view: "Callable[[Made], Lines]",
    plain: Callable[[Made], Any] = lambda made: made,
    *,
    as_json: bool = False,
) -> Made:
    """Do a command's work, with its progress, and print the result.

    Args:
        make: does the work.
        view: the result for people.
        plain: the result for JSON; by default as it is.
        as_json: print the result as JSON, and nothing else on standard output.
    """
    from .console import ConsoleObserver, make_console, put

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        made = make(observer)
    if as_json:
        print_json(plain(made))
    else:
        for line in view(made):
            put(console, line)
    return made
