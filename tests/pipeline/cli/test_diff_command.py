"""`packtrain diff`, as a person meets it."""

import json
import resource
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain.pipeline.demo as packtrain_demo
import pytest
from packtrain.pipeline.run.driver import run

Command = Callable[..., Any]
HOSTILE = "a[bold]<script>alert(1)<,script>\x1b[31m\u202e"
"""A file name that a folder may hold."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    """Datasets `one`, the `same` again, `longer` rows, `fewer` examples, and `more` examples from a file with a bad
    name."""
    folder = tmp_path_factory.mktemp("diff")
    rows = [json.dumps({"text": f"{at} mules left the valley{' at last' * (at % 3)}"}) + "\n" for at in range(40)]
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / f"{HOSTILE}.jsonl").write_text("".join(rows[:7]))

    def make(name: str, length: int, *more: str, **keys: Any) -> None:
        data = {
            "out": name,
            "cache": "cache",
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [
                {"name": f"texts{at or ''}", "format": "text", "path": path}
                for at, path in enumerate(["rows.jsonl", *more])
            ],
            "truncate": {"max_length": length},
            "run": {"workers": 1, "report": False},
            **keys,
        }
        run(data, base=folder)

    make("one", 64)
    make("same", 64)
    make("longer", 128)
    make("fewer", 64, filter={"min_tokens": 11})
    # By its folder: a bracket in a path is a pattern's.
    (folder / "bad").mkdir()
    (folder / f"{HOSTILE}.jsonl").rename(folder / "bad" / f"{HOSTILE}.jsonl")
    make("more", 64, "bad")
    return folder


def test_the_way_to_the_reason_can_be_copied(packtrain: Command, runs: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "fewer")
    (line,) = (line for line in done.out.splitlines() if line.endswith(" says why B lacks it"))
    program, *arguments = shlex.split(line.removesuffix(" says why B lacks it"))
    assert program == "packtrain"
    assert "min_tokens" in packtrain(*arguments).out
    assert "says why" not in packtrain("diff", runs / "one", runs / "more").out, "A never read that file"


def test_the_same_dataset(packtrain: Command, runs: Path) -> None:
    for more in ([], ["--exit-code"]):
        done = packtrain("diff", runs / "one", runs / "same", *more)
        assert (done.code, done.err) == (0, "")
        assert len(done.out.splitlines()) < 20


def test_exit_codes(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    assert packtrain("diff", runs / "one", runs / "longer").code == 0
    assert packtrain("diff", runs / "one", runs / "longer", "--exit-code").code == 1
    assert packtrain("diff", runs / "one", runs / "longer", "--exit-code", "--json").code == 1
    shutil.copytree(runs / "longer", tmp_path / "damaged")
    next((tmp_path / "damaged").rglob("shards/*.arrow")).unlink()
    for place, says in (
        (tmp_path / "no", "does not exist; give the folder that `packtrain run` wrote"),
        (tmp_path, "has no manifest.json"),
        (tmp_path / "damaged", "`packtrain verify` says which"),
    ):
        done = packtrain("diff", runs / "one", place, "--exit-code")
        assert (done.code, done.out) == (2, "")
        assert says in done.err


def test_json_has_all_of_it(packtrain: Command, runs: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "longer", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert done.out.isascii()
    assert (found["a"]["max_length"], found["b"]["max_length"]) == (64, 128)
    assert found["settings"] == [
        {
            "section": "configuration",
            "key": "truncate.max_length",
            "a": 64,
            "b": 128,
            "spelling": False,
            "whole_source": False,
        }
    ]
    assert (found["identical"], found["same_rows"]) == (False, False)
    assert found["examples"]["sources"][0]["same"] == 40
    assert found["examples"]["contents"] == {"both": 40, "only_a": 0, "only_b": 0}
    assert {line["name"] for line in found["ledger"]} >= {"rows_read", "tokens_packed", "labels_trained"}
    assert sum(found["lengths"]["a"]["counts"]) == 40


def test_a_full_disk_leaves_the_page_that_was_there(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "diff.html").write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        done = packtrain("diff", runs / "one", runs / "longer", "--output", tmp_path / "diff.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["diff.html"]
    assert (tmp_path / "diff.html").read_text() == "before"


def test_names_from_data_are_harmless(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "more", "-o", tmp_path / "diff.html")
    assert (done.code, done.err) == (0, "")
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert f"texts1/{shown}:1" in done.out.replace("\n", "")
    assert not {"\x1b", "\u202e"} & set(done.out)
    page = (tmp_path / "diff.html").read_text()
    assert "<script>alert" not in page
    found = json.loads(packtrain("diff", runs / "one", runs / "more", "--json").out)
    assert found["examples"]["shown"]["only_b"][0]["id"] == f"texts1/{HOSTILE}:1"


def test_quick_opens_no_shard(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "longer", tmp_path / "b")
    for shard in (tmp_path / "b").rglob("shards/*.arrow"):
        shard.write_bytes(bytes(shard.stat().st_size))
    done = packtrain("diff", runs / "one", tmp_path / "b", "--quick")
    assert done.code == 0
    done = packtrain("diff", runs / "one", tmp_path / "b")
    assert done.code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
def test_one_of_the_two_may_be_far_away(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    from tests.support.faulty import BUCKET

    far = f"s3://{BUCKET}/diff/far"
    data = {
        "out": far,
        "cache": f"s3://{BUCKET}/diff/cache",
        "tokenizer": {"path": str(Path(packtrain_demo.__file__).parent / "tokenizer"), "engine": "tokenizers"},
        "sources": [{"name": "texts", "format": "text", "path": "rows.jsonl"}],
        "truncate": {"max_length": 128},
        "run": {"workers": 1, "report": False, "scratch": str(tmp_path / "scratch")},
    }
    run(data, base=runs)
    near, away = (packtrain("diff", runs / "one", place, "--json") for place in (runs / "longer", far))
    assert (away.code, away.err) == (0, "")
    found, same = json.loads(away.out), json.loads(near.out)
    for name in ("settings", "inputs", "ledger", "packing", "lengths", "examples"):
        assert found[name] == same[name], name
    assert found["b"]["where"] == far
