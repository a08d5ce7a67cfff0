"""Each `--input` is a source of its own: its name, its format, and its line in the ledger."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain as package
import pytest
from packtrain.pipeline.inputs.source_names import name_sources
from packtrain.schemas.errors import ConfigError

from tests import kit

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["chats.jsonl"], ["chats"]),
        (["data/chats.jsonl.gz", "data/pairs.parquet"], ["chats", "pairs"]),
        (["a/train.jsonl", "b/train.jsonl", "c/train.jsonl"], ["train", "train-2", "train-3"]),
        (["a/x.jsonl", "b/x.jsonl", "x-2.jsonl"], ["x", "x-3", "x-2"]),
        (["web/**/*.jsonl", "web"], ["web", "web-2"]),
        (["*.jsonl", ".", "..", "/"], ["data", "data-2", "data-3", "data-4"]),
        (["hf://stingning/ultrachat@main", "hf://openai/gsm8k"], ["ultrachat", "gsm8k"]),
        (["https://example.org/a/b.jsonl?token=secret"], ["b"]),
        (["s3://bucket/more/c.parquet", "s3://bucket"], ["c", "data"]),
        (["Zürich chats (1).jsonl", "数据.jsonl"], ["Z-rich-chats-1", "data"]),
        (["-x.jsonl", ".hidden.jsonl", "_.jsonl"], ["x", "hidden", "data"]),
    ],
)
def test_names(paths: list[str], names: list[str]) -> None:
    assert name_sources(paths) == names
    for name, path in zip(names, paths, strict=True):
        source = {"name": name, "path": path}
        package.RunConfig.model_validate({"out": "x", "tokenizer": {"path": "y"}, "sources": [source]})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pairs and conversations, in files of their own, as the working directory."""
    monkeypatch.chdir(tmp_path)
    kit.write(tmp_path / "pairs.jsonl", kit.corpus("pairs", 300))
    kit.write(tmp_path / "chats.jsonl", kit.corpus("chats", 60))
    kit.write(tmp_path / "more" / "chats.jsonl", kit.corpus("chats", 40, seed=3))
    return tmp_path


def run(packtrain: Command, *words: object) -> Any:
    return packtrain("run", *words, "--tokenizer", kit.demo_tokenizer(), "--out", "out", "--set", "run.report=false")


def test_no_row_vanishes(packtrain: Command, here: Path) -> None:
    """The first file does not decide the format of the others."""
    done = run(packtrain, "--input", "pairs.jsonl", "--input", "chats.jsonl", "--input", "more/chats.jsonl")
    assert done.code == 0, done.err
    ledger = kit.Packed(here / "out").ledger
    assert {name: entry["rows_used"] for name, entry in ledger.items()} == {"pairs": 300, "chats": 60, "chats-2": 40}
    for name in ("pairs", "chats", "chats-2"):
        assert f"source {name}: format " in done.out


def test_a_pattern_is_one_source(packtrain: Command, here: Path) -> None:
    done = run(packtrain, "--input", "**/chats.jsonl")
    assert done.code == 0, done.err
    assert {name: entry["rows_used"] for name, entry in kit.Packed(here / "out").ledger.items()} == {"data": 100}


@pytest.mark.parametrize("again", ["chats.jsonl", "./chats.jsonl", "*.jsonl", ".", "link.jsonl"])
def test_a_file_is_not_read_twice_in_the_same_way(packtrain: Command, here: Path, again: str) -> None:
    (here / "link.jsonl").symlink_to(here / "chats.jsonl")
    done = run(packtrain, "--input", "chats.jsonl", "--input", again)
    assert done.code == 2
    assert "is also read by source" in done.err or "listed twice" in done.err


def test_sources_may_do_different_things_with_a_file(here: Path) -> None:
    answers = {"name": "answers", "format": "messages", "path": "chats.jsonl", "mask": "last_assistant"}
    turns = {"name": "turns", "format": "messages", "path": "chats.jsonl", "mask": "assistant"}
    packed = kit.packed(kit.configure(here, answers, turns))
    assert {name: entry["rows_used"] for name, entry in packed.ledger.items()} == {"answers": 60, "turns": 60}


def test_two_of_three_sources_that_read_a_file_in_the_same_way_are_refused(here: Path) -> None:
    """Also if another one, which reads it in its own way, comes first."""
    answers = {"name": "answers", "format": "messages", "path": "chats.jsonl", "mask": "last_assistant"}
    turns = {"name": "turns", "format": "messages", "path": "chats.jsonl", "mask": "assistant"}
    with pytest.raises(ConfigError, match=r"sources\.again\.path: .*chats\.jsonl is also read by source turns"):
        kit.packed(kit.configure(here, answers, turns, {**turns, "name": "again"}))


def test_one_format_for_all(packtrain: Command, here: Path) -> None:
    """A format that is given counts for every input: rows of the others are not read as something else."""
    done = run(packtrain, "--input", "chats.jsonl", "--input", "pairs.jsonl", "--format", "messages")
    assert done.code == 2
    assert "sources.pairs" in done.err
    done = run(packtrain, "--input", "chats.jsonl", "--input", "more/chats.jsonl", "--format", "messages")
    assert done.code == 0, done.err


def test_prep_writes_one_of_them(packtrain: Command, here: Path) -> None:
    inputs = ("--input", "pairs.jsonl", "--input", "chats.jsonl")
    done = packtrain("prep", *inputs, "-o", "examples.jsonl")
    assert done.code == 2
    assert "choose one of pairs, chats" in done.err
    done = packtrain("prep", *inputs, "--source", "chats", "-o", "examples.jsonl")
    assert done.code == 0, done.err
    assert len((here / "examples.jsonl").read_text().splitlines()) == 60


def test_files_of_two_formats_in_a_pattern_end_the_run(packtrain: Command, here: Path) -> None:
    """The first file decides the format of a pattern: the rows of the other do not vanish."""
    done = run(packtrain, "--input", "*.jsonl")
    assert done.code == 2
    assert "source data: of 360 rows, 300 cannot be used (83.3 %)" in done.err
    assert "The first: pairs.jsonl, line 1: missing_key" in done.err
    assert "Files of another format are a source of their own (--input several times)" in done.err
    assert not (here / "out" / "manifest.json").exists()
    done = packtrain("plan", "--input", "*.jsonl", "--tokenizer", kit.demo_tokenizer(), "--out", "out")
    assert done.code == 0
    assert "a run would end before it packs: source data: of 360 rows, 300" in done.out + done.err
