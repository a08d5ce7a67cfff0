"""The command line, as a person meets it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import warm
from tests.support.terminal import in_terminal

Command = Callable[..., Any]


DEMO = Path(str(files("packtrain.pipeline.demo")))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the installed program has run its demo, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    program = Path(sys.executable).parent / "packtrain"
    done = subprocess.run([program, "run", "--demo"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


# Help and mistakes


def test_the_version(packtrain: Command) -> None:
    done = packtrain("--version")
    assert done.code == 0
    assert re.fullmatch(r"packtrain \d+\.\d+\.\d+\n", done.out)


# The demo


def test_an_unexpected_end_of_file_is_no_interruption() -> None:
    """typer takes every EOFError for Ctrl-D; a broken pipe to a child raises it, too."""
    code = (
        "import sys; from packtrain.pipeline.cli import main as cli\n"
        "cli.command.cache_clear()\n"
        "@cli.app.command()\ndef broken() -> None:\n    raise EOFError('a pipe')\n"
        "sys.argv = ['packtrain', 'broken']\ncli.main()"
    )
    done = warm.run(["python", "-c", code])
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, "EOFError: a pipe")


def test_the_demo_runs_in_an_empty_folder(demo: tuple[Path, str]) -> None:
    folder, out = demo
    assert [path.name for path in folder.iterdir()] == ["runs"]
    assert re.search(r"^rows read +│ +32$", out, re.MULTILINE)
    assert re.search(r"^examples made +│ +77$", out, re.MULTILINE)
    assert "\x1b" not in out, "there is no terminal"


@pytest.mark.slow
def test_what_the_demo_says_to_do_next_works(demo: tuple[Path, str]) -> None:
    commands = re.findall(r"^  (packtrain .*|python .*)$", demo[1], re.MULTILINE)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert len(commands) == 5
    assert " train " in commands[-1]
    # torch by itself brings gigabytes of CUDA.
    assert f"open {Path('runs/demo/report.html')}\n" in demo[1]
    # The training takes longer: tests/docs runs it.
    for command in [command for command in commands if " train " not in command]:
        # As it stands there, from the folder where it was printed.
        done = subprocess.run(command, shell=True, cwd=demo[0], env=env, capture_output=True, text=True, check=True)
    assert "DatasetDict" in done.stdout
    assert "input_ids" in done.stdout


# Run again, in the program's own way: what it imports, and no more.
AGAIN = """
import sys, time
from packtrain.pipeline.cli.main import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_finished_run_imports_nothing_heavy(demo: tuple[Path, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, "run", "--demo"], cwd=demo[0], capture_output=True, text=True, check=True
    )
    assert "already finished" in done.stdout
    assert not {"torch", "transformers", "datasets", "pandas", "polars"} & set(done.stdout.split())


# Schema


def test_the_schema_validates_as_a_schema(packtrain: Command) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(packtrain("schema").out)
    config = yaml.safe_load((DEMO / "demo.yaml").read_text())
    jsonschema.validate(config, schema)
    config["nosuch"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schema)


# Terminals and pipes


@pytest.mark.slow
def test_a_terminal_gets_colours_and_progress(tmp_path: Path, warm_program: Path) -> None:
    code, seen = in_terminal(
        [warm_program, "run", "--demo", "--set", "run.report=false", "--set", "run.workers=1"], tmp_path
    )
    assert code == 0
    assert "\x1b[1;32m" in seen, "colours"
    for stage in ("encode", "pack"):
        assert re.search(rf" {stage}.*━", seen), "a bar"
    assert "tokens/s" in seen
    assert "\x1b[?25h" in seen, "the cursor is back"
    code, seen = in_terminal([warm_program, "inspect", "runs/demo"], tmp_path)
    assert code == 0
    assert "⟦" not in seen
    assert "\x1b[1;32m" in seen


def test_an_interrupted_terminal_is_left_in_order(tmp_path: Path, warm_program: Path) -> None:
    code, seen = in_terminal([warm_program, "run", "--demo"], tmp_path, interrupt_at=b"load inputs")
    assert code == 130
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0, "the cursor is back"
