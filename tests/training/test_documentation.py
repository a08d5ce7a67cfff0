"""The page about the loader: every snippet and command of it runs, in one folder, in order."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

PAGE = Path(__file__).parents[2] / "docs" / "loader.md"
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_all_of_it_runs(make_packed: Any, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "packed")
    shutil.copytree(make_packed("other", 60), tmp_path / "other")
    scripts = [code for language, code in BLOCKS if language == "python"]
    commands = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    assert len(scripts) >= 7
    assert len(commands) >= 2
    # One process for all of them: importing torch takes longer than the rest.
    whole = "\n".join(f"exec(compile({code!r}, 'snippet {i}', 'exec'), {{}})" for i, code in enumerate(scripts))
    run([sys.executable, "-c", whole], tmp_path)
    for command in commands:
        name, *arguments = command.split()
        assert name == "packtrain"
        run([str(Path(sys.executable).parent / name), *arguments], tmp_path)


def run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout
