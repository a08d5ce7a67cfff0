"""Standard output: lines, JSON, and the result of a command as one or the other."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from ...schemas.errors import ConfigError
from ...schemas.escape import escape

if TYPE_CHECKING:
    from ..observer import Observer
    from ..report.grid import Lines

Result = TypeVar("Result")


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

    # NaN and infinities are no JSON, and other programs would refuse all of it.
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


def show(
    make: "Callable[[Observer], Result]",
    view: "Callable[[Result], Lines]",
    plain: Callable[[Result], Any] = lambda result: result,
    *,
    as_json: bool = False,
) -> Result:
    """Do a command's work, with its progress, and print the result.

    Args:
        make: does the work.
        view: the result for people.
        plain: the result for JSON; by default as it is.
        as_json: print the result as JSON, and nothing else on standard output.
    """
    from .console import ConsoleObserver, make_console, put

    console = make_console(stderr=as_json)  # progress must not get into the JSON
    with ConsoleObserver(console) as observer:
        result = make(observer)
    # The progress is gone from the terminal before the first line is printed.
    if as_json:
        print_json(plain(result))
    else:
        for line in view(result):
            put(console, line)
    return result
