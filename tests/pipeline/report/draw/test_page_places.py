"""`--output` of report, plan and diff: one rule for all three, checked before anything is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
pytestmark = pytest.mark.xdist_group("workplace")
COMMANDS = {
    "report": ("packed",),
    "plan": ("mix.yaml", "--rows", 20),
    "diff": ("packed", "packed-2k", "--quick"),
}


@pytest.fixture
def here(workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder: Path = workplace.copy(tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_folders_that_are_missing_are_made(packtrain: Command, here: Path, command: str) -> None:
    done = packtrain(command, *COMMANDS[command], "-o", "new/and deep/page.html")
    assert done.code == 0, done.err
    assert (here / "new/and deep/page.html").read_bytes().startswith(b"<!DOCTYPE html>")
    assert (here / "new/and deep/page.json").exists() == (command != "diff")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("page.htm", "page.htm must end in .html, such as page.html"),
        ("new/page", "must end in .html"),
        ("packed", "packed is a folder; name a file in it, such as packed/page.html"),
        ("folder.html", "folder.html is a folder"),
        ("mix.yaml/deep/page.html", "mix.yaml is a file, not a folder; choose another place"),
    ],
)
def test_what_is_no_place_is_told_alike(packtrain: Command, here: Path, command: str, output: str, says: str) -> None:
    (here / "folder.html").mkdir()
    before = sorted(here.rglob("*"))
    # The inputs are not there: nothing was looked at yet.
    arguments = [str(one).replace("packed", "gone").replace("mix", "gone") for one in COMMANDS[command]]
    done = packtrain(command, *arguments, "--output", output)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("packtrain: --output: ")
    assert says in done.err
    assert sorted(here.rglob("*")) == before
