"""How tests of this folder run the program: in this process, or as a person does."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from packtrain.pipeline.cli import main

PROGRAM = Path(sys.executable).parent / "packtrain"


@dataclass(frozen=True)
class Outcome:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def packtrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Calls the entry point in this process: `packtrain("run", "--demo")`. Anything but a clean exit fails."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["packtrain", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main()
        out, err = capsys.readouterr()
        assert isinstance(leave.value.code, int)
        return Outcome(leave.value.code, out, err)

    return call


@pytest.fixture
def program(tmp_path: Path) -> Command:
    """Runs the installed program in its own process and folder: `program("run", "--demo", cwd=folder)`."""

    def call(*arguments: object, cwd: Path = tmp_path, timeout: float = 120) -> Outcome:
        done = subprocess.run(
            [str(PROGRAM), *map(str, arguments)],
            cwd=cwd,
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call


def plain_environment() -> dict[str, str]:
    """The environment without what would make a console think that it is a terminal, or another one."""
    drop = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    return {key: value for key, value in os.environ.items() if key not in drop}
