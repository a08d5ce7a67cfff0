"""What a person may do after a run, as commands that run from where they are."""

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console

from .console import say
from .stores import is_url


def near(path: str | Path) -> str:
    """A path as it is typed from here; a URL as it is."""
    if is_url(str(path)):
        return str(path)
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def program() -> str:
    """How packtrain is called from here, whether or not the environment is active."""
    return "packtrain" if shutil.which("packtrain") else near(Path(sys.executable).with_name("packtrain"))


def say_finished(console: Console, out: str, page: str) -> None:
    """Of a dataset that was finished before: where its report is, and how to see the tables again."""
    say(console, f"report: {page}")
    say(console, f"  its tables: {program()} report {near(out)}")


def say_next(console: Console, out: str, page: str | None) -> None:
    """What to look at, as commands that run from here whether or not the environment is active.

    Args:
        page: where the report is, if there is one.
    """
    command = program()
    say(console)
    say(console, "Look at it:")
    if page is not None:
        say(console, f"  in a browser: open {near(page)}")
    say(console, f"  {command} report {near(out)}      # the same, as tables")
    say(console, f"  {command} inspect {near(out)} --row 0")
    say(console, f"  {command} verify {near(out)} --deep")
    python = "python" if command == "packtrain" else near(sys.executable)
    say(console, f"  {python} -c \"import datasets; print(datasets.load_from_disk('{near(out)}'))\"")
    data = "" if near(out) == str(Path("runs/demo")) else f" --set data={near(out)}"
    say(console, f"  {command} train --demo{data}      # a tiny model; needs torch:")
    say(console, "    without a GPU first: pip install torch==2.13.0; then pip install 'packtrain[fast,train]'")
