"""`--json`: of a plan, a report, a difference and a check, parsable, and alone on the standard output."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from packtrain.pipeline.cli import main as cli

Command = Callable[..., Any]
pytestmark = pytest.mark.xdist_group("workplace")

WITH = {"plan", "report", "diff", "verify"}
"""The commands that have it."""

CASES: list[tuple[str, int, dict[str, type | tuple[type, ...]]]] = [
    ("plan mix.yaml --rows 50", 0, {"choice": dict}),
    ("report packed", 0, {}),
    ("diff packed packed-2k", 0, {}),
    ("verify packed", 0, {"sound": bool, "findings": list}),
]  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What a command left on both streams."""

    code: int
    value: Any
    err: str


def ask(packtrain: Command, line: str) -> Said:
    """Runs a command with --json; its whole output must be one JSON value in ASCII."""
    done = packtrain(*shlex.split(line), "--json")
    assert done.out.isascii()
    assert "\x1b" not in done.out
    assert "\x7f" not in done.out
    return Said(done.code, json.loads(done.out, parse_constant=pytest.fail), done.err)


@pytest.fixture
def here(workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the workplace, as the working directory."""
    folder: Path = workplace.copy(tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


def test_each_of_these_commands_has_a_case() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    having = {name for name, one in commands.items() if any("--json" in each.opts for each in one.params)}
    assert having == {line.split()[0] for line, _, _ in CASES} == WITH


@pytest.mark.parametrize(("line", "code", "keys"), CASES)
def test_the_output_is_json_and_nothing_else(
    packtrain: Command, here: Path, line: str, code: int, keys: dict[str, type]
) -> None:
    said = ask(packtrain, line)
    assert said.code == code, said.err
    assert said.value
    for key, kind in keys.items():
        assert isinstance(said.value[key], kind), key
    assert "Traceback" not in said.err


def test_what_is_wrong_is_listed_and_the_code_says_so(packtrain: Command, here: Path) -> None:
    (shard,) = (here / "packed").glob("shards/*")
    shard.write_bytes(shard.read_bytes()[:-7])
    said = ask(packtrain, "verify packed")
    assert (said.code, said.value["sound"]) == (1, False)
    assert [finding["where"] for finding in said.value["findings"]] == [f"shards/{shard.name}"]
    repaired = ask(packtrain, "verify packed --repair mix.yaml").value
    assert [finding["where"] for finding in repaired["findings"]] == [f"shards/{shard.name}"]
    assert repaired["sound"]
    assert ask(packtrain, "verify packed").code == 0


def test_a_mistake_stays_text_on_the_other_stream(packtrain: Command, here: Path) -> None:
    for line in ("plan no.yaml", "verify no", "report no"):
        done = packtrain(*line.split(), "--json")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("packtrain: ")
