"""Completion in zsh: what typer leaves undone there for the first Tab of a shell, and for keys of `--set`."""

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from ...schemas.files.foreign import read_regular_text

_OPTION = "--install-completion"
_FILE = Path(".zfunc", "_packtrain")
"""The file that typer installs, in the home of the user."""
_ANSWER = '[[ $zsh_eval_context[-1] == loadautofunc ]] && _packtrain_completion "$@"\n'
"""Answers the Tab for which zsh loads the file: its other lines only say what answers the next one."""
_KEYS = re.compile(r"""_arguments '\*: :\(\((?P<keys>(?:"[\w.]+="\s*)+)\)\)'\s*""", re.ASCII)
"""What typer has zsh evaluate where nothing but keys is offered, such as `pack.strategy=`."""


@contextmanager
def completed_in_zsh() -> Iterator[None]:
    """Let the body, which is typer, answer zsh in full, and install what answers it."""
    if os.environ.get("_PACKTRAIN_COMPLETE") == "complete_zsh":
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                yield
        finally:
            sys.stdout.write(_without_space(printed.getvalue()))
        return
    try:
        yield
    finally:
        if _OPTION in sys.argv:
            _answer_first_tab()


def _without_space(command: str) -> str:
    """Let no space follow a key, where its value is to be written: `compadd -S ''` in place of `_arguments`."""
    match = _KEYS.fullmatch(command)
    if match is None:
        return command
    return f"compadd -S '' -- {' '.join(match['keys'].split())}\n"


def _answer_first_tab() -> None:
    """Complete the file that typer has installed, if there is one."""
    path = Path.home() / _FILE
    if path.is_file() and _ANSWER not in (text := read_regular_text(path)):
        path.write_text(f"{text}\n\n{_ANSWER}")
