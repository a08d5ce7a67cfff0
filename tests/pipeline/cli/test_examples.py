"""The examples below every command's help: each is run as it stands there."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from packtrain.pipeline.cli import main as cli
from packtrain.pipeline.cli.help import COMMANDS

from tests.support.hub_stand_in import HubStandIn, taken_for_the_hub
from tests.support.problems import add_problems
from tests.support.small_models import add_trained

Command = Callable[..., Any]
pytestmark = pytest.mark.xdist_group("workplace")

EXAMPLES = {name: lines for group in COMMANDS.values() for name, lines in group.items()}
LINES = [(name, line) for name, lines in EXAMPLES.items() for line in lines]
ALONE = ("packtrain run --demo", "packtrain train --demo")
"""The tests of the demo run both: one needs nothing, the other needs what the first one made."""
FAILS = {"packtrain doctor": (0, 1), "packtrain probe path/to/model/config.json --attention eager": (0, 1)}
"""Commands that may fail: on a machine that cannot train, or because a failure is the right answer."""


def test_every_command_has_an_example(packtrain: Command) -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(EXAMPLES)
    for name, lines in EXAMPLES.items():
        assert 1 <= len(lines) <= 4
        printed = packtrain(name, "--help").out
        shown = printed.partition("Example")[2]
        assert shown.startswith((":\n", "s:\n"))
        # As they stand, one a line, after the options, and not wrapped.
        assert shown.splitlines()[1:] == [f"    {line}" for line in lines]
        assert printed.index("--help") < printed.index("Example")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    """A stand-in for the Hub; see `hub_stand_in`."""
    with taken_for_the_hub(monkeypatch, tmp_path) as stand_in:
        yield stand_in


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"), [one for one in LINES if one[1] not in ALONE and not one[1].startswith("torchrun")]
)
def test_an_example_runs(
    request: pytest.FixtureRequest,
    packtrain: Command,
    warm_program: Path,
    workplace: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    line: str,
) -> None:
    if name in ("train", "probe", "loader", "sample", "export"):
        pytest.importorskip("torch")
    made = ("packed", "packed-2k") if name == "run" else ()
    monkeypatch.chdir(workplace.copy(tmp_path / "here", *made))
    if "trained/" in line:
        add_trained(Path())
    if name == "eval-apps":
        add_problems(Path())
    if "hf://" in line:
        request.getfixturevalue("hub")
    before = set(Path().rglob("*"))
    if " > " in line:
        path = f"PATH={warm_program.parent}:$PATH"
        done = subprocess.run(f"{path} {line}", shell=True, capture_output=True, text=True, check=False)
        code, err = done.returncode, done.stderr
    else:
        outcome = packtrain(*shlex.split(line)[1:])
        code, err = outcome.code, outcome.err
    assert code in FAILS.get(line, (0,)), err
    assert err == "" or "Traceback" not in err
    # A file that the line names is there afterwards.
    for target in re.findall(r"(?:-o|>|--out) (\S+)", line):
        assert Path(target).exists()
        assert Path(target) not in before
