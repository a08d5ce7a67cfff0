"""What a person may do after the demo, as commands that run from where they are."""

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console

from .console import say
from .stores import is_url


def say_next(console: Console, out: str) -> None:
    """What to look at, as commands that run from here whether or not the environment is active."""

    def near(path: str | Path) -> str:
        if is_url(str(path)):
            return str(path)
        relative = os.path.relpath(path)
        return str(path) if relative.startswith("..") else relative

    command = "packtrain" if shutil.which("packtrain") else near(Path(sys.executable).with_name("packtrain"))
    say(console)
    say(console, "Look at it:")
    say(console, f"  {command} inspect {near(out)} --row 0")
    say(console, f"  {command} verify {near(out)} --deep")
    data = "" if near(out) == str(Path("runs/demo")) else f" --set data={near(out)}"
    say(console, f"  {command} train --demo{data}      # a tiny model; needs pip install 'packtrain[train]'")
    python = "python" if command == "packtrain" else near(sys.executable)
    say(console, f"  {python} -c \"import datasets; print(datasets.load_from_disk('{near(out)}'))\"")
