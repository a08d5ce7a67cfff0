"""A file instead of a folder, a folder instead of a file, or nothing at all: the error says what is there and what to
give."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
pytestmark = pytest.mark.xdist_group("workplace")

FILE = "mix.yaml is a file; give the folder that `packtrain run` wrote"
FOLDER = "packed is a folder; the configuration is a YAML file, such as mix.yaml"
NOTHING = "does not exist; give the folder that `packtrain run` wrote"
CASES = [
    ("verify mix.yaml", FILE),
    ("inspect mix.yaml", FILE),
    ("report mix.yaml", FILE),
    ("repair mix.yaml", FILE),
    ("diff packed mix.yaml", FILE),
    ("loader mix.yaml", FILE),
    ("loader gone", NOTHING),
    ("repair gone", "has no manifest.json"),
    ("run packed", FOLDER),
    ("plan packed", FOLDER),
    ("prep packed -o x.jsonl", FOLDER),
    ("train packed", FOLDER),
    ("clean packed", "packed is a folder, not a configuration; give --out packed to clean an output"),
    ("train train.yaml --set data=mix.yaml", FILE),
    ("train train.yaml --set data=packed/manifest.json", "{here}/packed/manifest.json is a file"),
    ("train train.yaml --set 'data=[packed, mix.yaml]'", FILE),
    ("train train.yaml --set eval.data=mix.yaml --set eval.every=1", FILE),
]


@pytest.fixture
def here(workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder: Path = workplace.copy(tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(("line", "says"), CASES)
def test_what_it_is_and_what_to_give(packtrain: Command, here: Path, line: str, says: str) -> None:
    if line.startswith(("train", "loader")):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    done = packtrain(*shlex.split(line))
    assert (done.code, done.out) == (2, ""), done
    assert says.format(here=here) in done.err
    assert len(done.err.splitlines()) == 1
    assert "Errno" not in done.err
    assert "Error(" not in done.err
