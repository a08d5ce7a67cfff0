"""Notes of a cache under the names of others, or of the wrong kind: a run makes them again, with the same data."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline import demo
from packtrain.pipeline.encode.engine.choice import EngineChoice
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.store.checksummed import seal, unseal

TOKENIZER = Path(demo.__file__).parent / "tokenizer"
KINDS = ("encoded/*/*.json", "engines/*.json", "scans/*.json", "tokenizers/*.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of two runs: other rows of the same size, and a tokenizer with two ids exchanged."""
    folder = tmp_path_factory.mktemp("swapped")
    for name in "ab":
        shutil.copytree(TOKENIZER, folder / f"tokenizer-{name}")
        rows = [{"prompt": f"{name} the {index}", "completion": f"tea {name}"} for index in range(5)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "tokenizer-b" / "tokenizer.json"
    content = json.loads(path.read_text())
    ids = content["model"]["vocab"]
    ids["e"], ids["t"] = ids["t"], ids["e"]
    path.write_text(json.dumps(content))
    time.sleep(0.2)  # files that have just changed are not noted
    for name in "ab":
        pack(folder, name, folder / "cache", name)
    return folder


def pack(folder: Path, name: str, cache: Path, out: str) -> str:
    """The manifest's hash."""
    config: dict[str, Any] = {
        "out": str(folder / out),
        "cache": str(cache),
        "tokenizer": {"path": str(folder / f"tokenizer-{name}")},
        "sources": [{"name": "pairs", "format": "prompt_completion", "path": str(folder / f"{name}.jsonl")}],
        "run": {"workers": 1, "report": False},
    }
    return run(config).hash


def unaffected(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether both runs give the same again with the cache in `tmp_path`, and no answers of the user's cache."""
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    shutil.rmtree(finished / "again", ignore_errors=True)
    same = []
    for name in "ab":
        before = json.loads((finished / name / "manifest.json").read_text())["hash"]
        same.append(pack(finished, name, tmp_path / "cache", "again") == before)
        shutil.rmtree(finished / "again")
    return all(same)


@pytest.mark.parametrize("kind", KINDS)
def test_a_note_under_the_name_of_another_is_not_read(
    kind: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "cache", tmp_path / "cache")
    one, other = (tmp_path / "cache").glob(kind)
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)
    assert unaffected(finished, tmp_path, monkeypatch)


def test_a_tokenizers_answer_that_is_something_else_is_asked_for_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "cache", tmp_path / "cache")
    one, other = (tmp_path / "cache").glob("tokenizers/*.json")
    answer = json.loads(unseal(one.read_bytes(), one.name) or b"")
    one.write_bytes(seal(json.dumps({**answer, "prefix_ids": "abc"}).encode(), one.name))
    other.unlink()
    os.mkfifo(other)
    assert unaffected(finished, tmp_path, monkeypatch)


def test_an_engines_note_of_another_version_is_made_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished / "cache", tmp_path / "cache")
    for path in (tmp_path / "cache").glob("engines/*.json"):
        name = f"engines/{path.name}"
        note = json.loads(unseal(path.read_bytes(), name) or b"")
        assert note.keys() == set(EngineChoice.__slots__)
        path.write_bytes(seal(json.dumps({"engine": note["name"]}).encode(), name))
    assert unaffected(finished, tmp_path, monkeypatch)
