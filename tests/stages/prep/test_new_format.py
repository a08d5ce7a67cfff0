"""A format is added as CONTRIBUTING.md says: one file, its class in `FORMATS`, its columns in `FORMAT_KEYS`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import packtrain
import pytest

from tests import kit

FORUM = '''"""Threads of a forum: a question and its best answer."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Column, Columns, Format


class ForumFormat(Format):
    """Questions and answers."""

    name = "forum"
    columns: ClassVar[Columns] = {"asked": Column(str, required=True), "best": Column(str, required=True)}

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`. Rejects `empty`."""
        if not row.best:
            raise RowRejectedError("empty", f"`{self.keys['best']}` is empty")
        return [Example(line, -1, "", row.asked, row.best, None)]
'''


def insert(file: Path, before: str, line: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, f"{line}\n{before}"))


@pytest.mark.slow
def test_a_format_is_one_file_and_two_lines(tmp_path: Path) -> None:
    root, copy = Path(packtrain.__file__).parent, tmp_path / "site" / "packtrain"
    for folder in ("schemas", "stages", "pipeline", "training"):
        shutil.copytree(root / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "__init__.py", copy)
    (copy / "stages/prep/forum.py").write_text(FORUM)
    insert(copy / "stages/prep/__init__.py", "from .preference import", "from .forum import ForumFormat")
    insert(copy / "stages/prep/__init__.py", "        AppsFormat,", "        ForumFormat,")
    insert(copy / "schemas/config/source.py", '    "apps": ("weight",),', '    "forum": ("prompt", "weight"),')

    rows = [{"asked": f"Is {number} even?", "best": "Yes." if number % 2 == 0 else "No."} for number in range(20)]
    kit.write(tmp_path / "threads.jsonl", [*rows, {"asked": "Why?", "best": ""}])
    source = {"name": "threads", "path": "threads.jsonl", "format": "auto"}
    config = kit.saved(kit.configure(tmp_path, source))
    done = subprocess.run(
        [sys.executable, "-m", "packtrain.pipeline.cli", "run", str(config)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copy.parent), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    out = Path(json.loads(config.read_text())["out"])
    assert json.loads((out / "rejects.jsonl").read_text().splitlines()[0])["reason"] == "empty"
    assert list(out.rglob("*.arrow"))
