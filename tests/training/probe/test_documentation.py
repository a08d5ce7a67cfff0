"""The page about isolation: its snippets and commands run, and its table says what the tests say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.training import PackedLoader

if TYPE_CHECKING:
    from tests.training.probe.architectures import build
else:
    sys.path.append(str(Path(__file__).parent))
    from architectures import build

PAGE = (Path(__file__).parents[3] / "docs" / "isolation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_all_of_it_runs(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "packed")
    model = build("llama")
    highest = max(int(batch["input_ids"].max()) for batch in PackedLoader(folder, rows_per_step=1))
    model.resize_token_embeddings(highest + 1)
    model.save_pretrained(tmp_path / "model")
    scripts = [code for language, code in BLOCKS if language == "python"]
    commands = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    assert len(scripts) == 3
    assert len(commands) == 3
    whole = "\n".join(f"exec(compile({code!r}, 'snippet {i}', 'exec'), {{}})" for i, code in enumerate(scripts))
    run([sys.executable, "-c", whole], tmp_path)
    for command in commands:
        name, *arguments = command.split("#")[0].split()
        assert name == "packtrain"
        run([sys.executable, "-m", "packtrain.pipeline.cli", *arguments], tmp_path)


def run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout
