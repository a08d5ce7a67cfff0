"""A scratch copy of the package, in which a recipe of CONTRIBUTING.md is followed, and the files that it names."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import packtrain

ROOT = Path(packtrain.__file__).parent
FOLDERS = ("schemas", "stages", "pipeline", "training")
_STEP = re.compile(r"^\d+\. (.*?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w/<>]+\.py)`")
_SECONDS = 120.0


def files_of(recipe: str, name: str) -> tuple[set[str], set[str]]:
    """The files of the package that a recipe of CONTRIBUTING.md names: those that it always changes, and those of steps
    that begin with "Only".

    Args:
        name: what stands for `<name>` in the recipe.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    heading = f"### {recipe}\n"
    assert text.count(heading) == 1, f"CONTRIBUTING.md has no recipe {recipe!r}"
    section = re.split(r"^##", text.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]
    always: set[str] = set()
    sometimes: set[str] = set()
    for step in _STEP.finditer(section):
        files = {file.replace("<name>", name) for file in _FILE.findall(step[1])}
        kept = {file for file in files if file.partition("/")[0] in FOLDERS}
        (sometimes if step[1].startswith("Only") else always).update(kept)
    assert always, f"recipe {recipe!r} names no file"
    return always, sometimes - always


class Scratch:
    """The package in a folder of its own: links to its files, but for those that were edited."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.package = site / "packtrain"
        self.package.mkdir(parents=True)
        for path in [ROOT / "__init__.py", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]:
            if path.is_file() and "__pycache__" not in path.parts:
                link = self.package / path.relative_to(ROOT)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)

    @contextmanager
    def edited(self, edits: dict[str, "str | list[tuple[str, str]]"]) -> Iterator[None]:
        """Make files, or put lines before a place in a file that is there only once.

        Args:
            edits: file → its text, or (place, what stands there afterwards).
        """
        try:
            for name, edit in edits.items():
                path = self.package / name
                if isinstance(edit, str):
                    assert not path.exists(), f"{name} is there already"
                    path.write_text(dedent(edit))
                    continue
                text = path.read_text()
                for place, replacement in edit:
                    assert text.count(place) == 1, f"{name} has {text.count(place)} times {place!r}"
                    text = text.replace(place, replacement)
                path.unlink()
                path.write_text(text)
            yield
        finally:
            for name in edits:
                (self.package / name).unlink(missing_ok=True)
                if (ROOT / name).exists():
                    (self.package / name).symlink_to(ROOT / name)

    def run(self, program: str, folder: Path) -> None:
        """Run a program that imports the copy; it must end without an error."""
        path = os.pathsep.join([str(self.site), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", dedent(program)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, done.stderr
