"""What commands print: lines, JSON, tables, and their progress."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ...schemas.errors import ConfigError
from ...schemas.escape import escape

if TYPE_CHECKING:
    from ..observer import Observer
    from ..report.grid import Line


def print_line(text: str = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print untrusted text, escaped, with a line end.

    Args:
        file: standard output by default.
        flush: write at once, for occasional lines that someone watches through a pipe.
    """
    print(escape(text), file=file or sys.stdout, flush=flush)


def print_json(value: Any) -> None:
    """Print plain data, dataclasses and structs as JSON in ASCII, without characters that control a terminal."""
    import msgspec  # here, because most commands print no JSON

    # `to_builtins` makes dicts, lists and texts; what it does not know goes through `str`. NaN and infinities are no
    # JSON, and other programs would refuse all of it.
    text = json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2, allow_nan=False)
    print_line(text.replace("\x7f", "\\u007f"))  # DEL, which JSON leaves as it is


@contextmanager
def training_extra() -> Iterator[None]:
    """Import what only training needs.

    Raises:
        ConfigError: a package is missing, or cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"this command needs {error.name or 'torch'}, which cannot be imported ({error}). Install torch's build "
            "for this machine, then pip install 'packtrain[train]'"
        ) from error


@contextmanager
def show_progress(*, as_json: bool = False) -> "Iterator[Observer]":
    """Show the progress of the body's work, which gets an observer for it. At the end the terminal is free of it.

    Args:
        as_json: whether the result will be printed as JSON. Then progress and notes go to standard error, so that
            standard output has nothing but the JSON.
    """
    # Here, because `--help` needs no rich, whose import takes longer than the help.
    from .console import ConsoleObserver, make_console

    with ConsoleObserver(make_console(stderr=as_json)) as observer:
        yield observer


def print_lines(lines: "Iterable[Line]") -> None:
    """Print the result of a command for people: sentences, tables, and rows as text."""
    from .console import make_console, put

    console = make_console()
    for line in lines:
        put(console, line)
