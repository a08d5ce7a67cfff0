"""A command whose output cannot be written or is not read prints one line or none, never a traceback."""

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.cli.main import main

PROGRAM = Path(sys.executable).parent / "packtrain"
pytestmark = [
    pytest.mark.xdist_group("workplace"),
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full"),
]
LOST = (
    "packtrain: standard output cannot be written (No space left on device), so what was printed is incomplete. Make "
    "room, or redirect it elsewhere, and run the same command again\n"
)
LINES = (
    "run mix.yaml --dry-run", "run mix.yaml", "report packed", "diff packed packed-2k", "verify packed",
    "repair packed", "clean mix.yaml", "inspect packed --row 1", "inspect packed --id chats/chats:3", "wait packed",
)  # fmt: skip
ALONE = (
    "schema", "launch", "launch ddp", "diff --help", "--version",
    "prep mix.yaml --source pairs -o p.jsonl",
)  # fmt: skip
HEAVY = ("plan mix.yaml --rows 50", "train train.yaml --dry-run", "loader packed --steps 1", "doctor")


@pytest.fixture
def here(workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the workplace, as the working directory."""
    folder: Path = workplace.copy(tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def into(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[int, str], tuple[Any, str]]:
    """Runs a command whose standard output is a descriptor: its exit code, and what it said beside."""

    def call(descriptor: int, line: str) -> tuple[Any, str]:
        with io.FileIO(descriptor, "w") as raw:
            stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
            with monkeypatch.context() as patched:
                for name in ("stdout", "__stdout__"):
                    patched.setattr(sys, name, stream)
                patched.setattr(sys, "argv", ["packtrain", *shlex.split(line)])
                with pytest.raises(SystemExit) as leave:
                    main()
                sys.stdout.flush()  # as Python does when it ends: that must not fail again
            stream.detach()
        return leave.value.code, capsys.readouterr().err

    return call


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def unread() -> int:
    ours, theirs = os.pipe()
    os.close(ours)
    return theirs


@pytest.mark.parametrize(
    "line",
    [
        *LINES,
        *(f"{line} --json" for line in LINES[2::3]),
        *ALONE,
        *(pytest.param(one, marks=pytest.mark.slow) for one in HEAVY),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("here")
def test_a_full_disk_is_told_in_a_line(into: Callable[[int, str], tuple[Any, str]], line: str) -> None:
    if line in HEAVY:
        pytest.importorskip("torch")
    assert into(full(), line) == (1, LOST)


@pytest.mark.parametrize("line", ["report packed", "report packed --json", "schema", "--help", "launch"])
@pytest.mark.usefixtures("here")
def test_a_reader_who_has_left_is_told_nothing(into: Callable[[int, str], tuple[Any, str]], line: str) -> None:
    assert into(unread(), line) == (141, "")


@pytest.mark.usefixtures("here")
def test_an_output_that_is_lost_is_told_whoever_caught_it(
    into: Callable[[int, str], tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from packtrain.pipeline.cli import verify as cli_verify

    def careless(value: Any) -> None:
        try:
            print(value, flush=True)
        except Exception:
            return

    monkeypatch.setattr(cli_verify, "print_json", careless)
    assert into(full(), "verify packed --json") == (1, LOST)


@pytest.mark.slow
def test_streams_of_a_process(here: Path) -> None:
    """As a shell opens them: closed, full, and with a reader that goes away."""
    script = f"""
        {PROGRAM} wait packed >&-; echo $?
        {PROGRAM} wait packed <&- >&- 2>&-; echo $?
        {PROGRAM} verify no 2>/dev/full; echo $?
        {PROGRAM} wait packed > /dev/full; echo $?
        ({PROGRAM} schema; echo $? >&2) | true
    """
    done = subprocess.run(["bash", "-c", script], cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "2", "1"]
    assert done.stderr == f"{LOST}141\n"
