"""The page about training: its commands and snippets run, in one folder, in order; and the demo's own command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh|yaml)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
KEYS = set(re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE))
NEXT = "=== next ==="
DRIVER = f"""
import sys
from packtrain.pipeline.cli import main
for command in sys.argv[1].splitlines():
    print({NEXT!r}, flush=True)
    sys.argv = command.split()
    try:
        main()
    except SystemExit as leave:
        assert leave.code == 0, (command, leave.code)
"""


@pytest.mark.slow
def test_all_of_it_runs(tmp_path: Path) -> None:
    scripts = [code for language, code in BLOCKS if language == "python"]
    [settings] = [code for language, code in BLOCKS if language == "yaml"]
    (tmp_path / "train.yaml").write_text(settings)
    commands = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    assert (len(commands), len(scripts)) == (5, 2)
    assert all(command.startswith("packtrain ") for command in commands)
    # One process for all commands, one for the snippets: importing torch takes longer than the rest.
    said = run([sys.executable, "-c", DRIVER, "\n".join(commands)], tmp_path).split(NEXT)[1:]
    demo = said[1]
    assert "isolation proved: isolation 0" in demo
    steps = re.findall(r"^ +(\d+)/22 +([\d.]+)", demo, re.MULTILINE)
    assert float(steps[-1][1]) < float(steps[0][1]) - 2
    assert (tmp_path / "runs" / "demo-train" / "model" / "chat_template.jinja").is_file()
    assert "well formed" in said[2]
    assert "held out, after 2 steps" in said[3]
    whole = "\n".join(f"exec(compile({code!r}, 'snippet {i}', 'exec'), {{}})" for i, code in enumerate(scripts))
    done = run([sys.executable, "-c", whole], tmp_path)
    assert "True per document" in done
    assert "all 2 steps were made already" in done


def test_the_table_names_every_key() -> None:
    from packtrain.training.trainer.config import TrainConfig

    named = {name for cell in KEYS for name in re.findall(r"`(\w+)`", cell)}
    in_the_example = {"out", "rows_per_step", "rows_per_device", "epochs"}
    assert named | in_the_example == set(TrainConfig.model_fields)


def run(command: list[str], where: Path) -> str:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
