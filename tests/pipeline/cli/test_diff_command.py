"""`packtrain diff`, as a person meets it."""

import json
import re
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
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, answered: Callable[[Path], Path]) -> Path:
    """Datasets `one`, the `same` again, `longer` rows, `fewer` examples, and `more` examples from a file with a bad
    name."""
    folder = tmp_path_factory.mktemp("diff")
    shutil.copytree(answered(tiny_tokenizer), folder / "cache" / "tokenizers")
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


def test_what_changed_is_said_first(packtrain: Command, runs: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "longer")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("B trains on the same number of tokens, in ")
    assert lines[0].endswith(" fewer rows: max_length 64 → 128.")
    assert "truncate.max_length │ 64 │ 128" in done.out
    assert len(lines) <= 40
    assert "Both have the same 40 examples with the same tokens and the same labels." in done.out
    assert "▼ −" in done.out
    assert "labels trained" not in done.out, "it did not change"
    assert "\x1b" not in done.out
    assert lines[-1].endswith("--all shows them; --output diff.html writes it as a page")


def test_the_way_to_the_reason_can_be_copied(packtrain: Command, runs: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "fewer")
    (line,) = (line for line in done.out.splitlines() if line.endswith(" says why B lacks it"))
    program, *arguments = shlex.split(line.removesuffix(" says why B lacks it"))
    assert program == "packtrain"
    assert "min_tokens" in packtrain(*arguments).out
    assert "says why" not in packtrain("diff", runs / "one", runs / "more").out, "A never read that file"


def test_all_is_all_that_changed(packtrain: Command, runs: Path) -> None:
    """The short form counts exactly the lines that only the long form shows."""

    def changed(text: str) -> set[tuple[str, ...]]:
        rows = [tuple(map(str.strip, line.split("│"))) for line in text.splitlines() if "│" in line]
        return {row for row in rows if row[-1].startswith(("▲", "▼"))}

    brief = packtrain("diff", runs / "one", runs / "fewer").out
    whole = packtrain("diff", runs / "one", runs / "fewer", "--all").out
    (left,) = re.findall(r"^and ([\d,]+) more changed lines?", brief, re.MULTILINE)
    shown, all_of_it = changed(brief), changed(whole)
    # The brief has a split's name only where there are several, the long form always.
    assert {row[0] for row in shown} <= {name for row in all_of_it for name in row}
    assert len(all_of_it) - len(shown) == int(left) > 3
    assert "--full also shows what did not change" in whole.splitlines()[-1]
    assert len(brief.splitlines()) <= 40 < len(whole.splitlines())
    assert "filter.min_tokens" in brief
    assert "examples dropped: min_tokens" in brief
    assert "only in A: texts/rows:1 (" in brief


def test_in_full(packtrain: Command, runs: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "longer", "--full")
    assert "labels trained" in done.out
    assert "The inputs are the same files." in done.out


def test_the_same_dataset(packtrain: Command, runs: Path) -> None:
    for more in ([], ["--exit-code"]):
        done = packtrain("diff", runs / "one", runs / "same", *more)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("A and B are the same dataset, byte for byte: manifest ")
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


def test_a_page(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    done = packtrain("diff", runs / "one", runs / "longer", "--output", tmp_path / "diff.html")
    assert done.code == 0
    assert done.out.rstrip().endswith(f"{tmp_path / 'diff.html'} shows it as a page")
    page = (tmp_path / "diff.html").read_text()
    assert "max_length 64 → 128" in page
    assert len(page.encode()) < 6_000_000
    assert list(tmp_path.iterdir()) == [tmp_path / "diff.html"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("diff.txt", "must end in .html, such as diff.html"),
        ("a/diff.HTM", "must end in .html"),
        ("", "is a folder; name a file in it"),
    ],
)
def test_a_page_that_cannot_be_written(packtrain: Command, runs: Path, tmp_path: Path, name: str, says: str) -> None:
    done = packtrain("diff", runs / "one", runs / "longer", "-o", tmp_path / name)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_page_that_was_there(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "diff.html").write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        done = packtrain("diff", runs / "one", runs / "longer", "--output", tmp_path / "diff.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 2
    assert "choose another file" in done.err
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
    assert "&lt;script&gt;alert(1)" in page
    found = json.loads(packtrain("diff", runs / "one", runs / "more", "--json").out)
    assert found["examples"]["shown"]["only_b"][0]["id"] == f"texts1/{HOSTILE}:1"


def test_quick_opens_no_shard(packtrain: Command, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "longer", tmp_path / "b")
    for shard in (tmp_path / "b").rglob("shards/*.arrow"):
        shard.write_bytes(bytes(shard.stat().st_size))
    done = packtrain("diff", runs / "one", tmp_path / "b", "--quick")
    assert done.code == 0
    assert "rows were not compared" in " ".join(done.out.split())
    done = packtrain("diff", runs / "one", tmp_path / "b")
    assert done.code == 2
    assert "cannot be read" in done.err


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
