"""Options for what everybody types: each does what its key does, and help stays short and quick."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import kit

Command = Callable[..., Any]
COMMANDS = {
    "run": ("--format", "--max-length", "--row-length", "--seed", "--workers"),
    "plan": ("--format", "--max-length", "--row-length", "--seed", "--workers"),
    "prep": ("--format",),
    "contamination": ("--format", "--workers"),
    "loader": ("--seed",),
    "sample": ("--seed",),
}
HELP_SECONDS = 0.25
"""Of a processor's time."""
HELP_LINES = 45


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with conversations and a configuration of them, as the working directory."""
    monkeypatch.chdir(tmp_path)
    kit.saved(kit.configure(tmp_path, "chats", truncate={"max_length": 512}, holdout=0.2), "mix.yaml")
    return tmp_path


@pytest.mark.parametrize("start", ["mix.yaml", "--input chats.jsonl --tokenizer TOKENIZER --set holdout=0.2"])
def test_options_are_their_keys(packtrain: Command, here: Path, start: str) -> None:
    """The same datasets come from options and from `--set`, by any number of workers; another seed gives another."""
    words = start.replace("TOKENIZER", str(kit.demo_tokenizer())).split()
    settings = [
        ("--set", key)
        for key in ("truncate.max_length=128", "pack.row_length=300", "seed=7", "run.workers=1", "run.report=false")
    ]
    keys = packtrain("run", *words, "--out", "keys", *(part for pair in settings for part in pair))
    assert keys.code == 0, keys.err
    options = ("--max-length", 128, "--row-length", 300, "--workers", 2, "--set", "run.report=false")
    for name, seed in (("options", 7), ("other", 8)):
        done = packtrain("run", *words, "--out", name, "--seed", seed, *options)
        assert done.code == 0, done.err
    assert kit.tree(here / "keys") == kit.tree(here / "options")
    assert kit.tree(here / "keys") != kit.tree(here / "other")


def test_a_plan_has_the_options_of_a_run(packtrain: Command, here: Path) -> None:
    done = packtrain(
        "plan", "mix.yaml", "--max-length", 128, "--row-length", 512, "--seed", 7, "--workers", 1, "--json"
    )
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert (plan["choice"]["max_length"], plan["packing"]["row_length"]) == (128, 512)
    settings = [("--set", key) for key in ("truncate.max_length=128", "pack.row_length=512", "seed=7")]
    by_keys = packtrain("plan", "mix.yaml", *(part for pair in settings for part in pair), "--json")
    assert json.loads(by_keys.out)["packing"] == plan["packing"]


def test_the_format_of_inputs(packtrain: Command, here: Path) -> None:
    """Rows that fit two formats are read as the option says, by every command that reads inputs."""
    row = {"text": "one two three four five six seven", "prompt": "one two three", "completion": " four five six seven"}
    kit.write(here / "rows.jsonl", [row] * 3)
    for format, field in (("text", "text"), ("prompt_completion", "prompt")):
        done = packtrain("prep", "--input", "rows.jsonl", "--format", format, "-o", f"{format}.jsonl")
        assert done.code == 0, done.err
        assert field in json.loads((here / f"{format}.jsonl").read_text().splitlines()[0])
    kit.write(here / "test.jsonl", [{"question": "one two three four five six seven"}])
    found = packtrain(
        "contamination", "--input", "rows.jsonl", "--format", "text", "--against", "test.jsonl", "--workers", 1,
        "--out", "hits.jsonl",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert len((here / "hits.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_them_in_little_space(packtrain: Command, command: str) -> None:
    text = packtrain(command, "--help").out
    for option in COMMANDS[command]:
        assert f"  {option} N" in text or f"  {option} FORMAT" in text or f"  {option} <" in text
    assert len(text.splitlines()) <= HELP_LINES


def test_help_is_quick() -> None:
    """The installed program, in processor time, so that other programs beside it do not count; the best of five."""
    program = Path(sys.executable).parent / "packtrain"
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([program, "run", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    assert min(seconds) <= HELP_SECONDS


def test_a_choice_that_is_nearly_right_is_named(packtrain: Command) -> None:
    done = packtrain("train", "--recipe", "fsdp3")
    assert done.code == 2
    assert done.err.strip().endswith("is not one of 'ddp', 'fsdp2', 'zero3', 'slurm'; did you mean fsdp2?")
