"""`packtrain sample` as a person runs it: killed, in shards, from adapters and sharded checkpoints, and misused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.pipeline.samples.samples_file import read_samples  # noqa: E402

from tests.support.small_models import TOKENIZER, add_trained, write_model  # noqa: E402

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    add_trained(folder)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with trained/model, trained/checkpoint-2 and test.jsonl, as the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sample(packtrain: Command, out: str, *more: object, model: str = "trained/model", code: int = 0) -> Any:
    """Draws four samples of twelve tokens for each row."""
    common = ("--data", "test.jsonl", "-n", 4, "--max-new-tokens", 12, "--batch", 4, "--device", "cpu")
    done = packtrain("sample", model, *common, "--out", out, *more)
    assert done.code == code, done.err
    return done


@pytest.mark.slow
def test_samples_of_every_row_the_same_each_time(packtrain: Command, here: Path) -> None:
    sample(packtrain, "a.jsonl")
    samples = list(read_samples(Path("a.jsonl")))
    assert [(one.id, one.row, one.sample) for one in samples] == [
        (f"p{row}", row, number) for row in range(3) for number in range(4)
    ]
    assert sum(one.tokens or 0 for one in samples) <= 12 * 12
    assert len({one.text for one in samples}) > 6
    sample(packtrain, "none.jsonl", "-o", "b.jsonl")
    assert Path("b.jsonl").read_bytes() == Path("a.jsonl").read_bytes()
    sample(packtrain, "c.jsonl", "--seed", 5)
    assert Path("c.jsonl").read_bytes() != Path("a.jsonl").read_bytes()
    packtrain("prep", "--format", "apps", "--input", "test.jsonl", "--prompt-only", "--out", "prompts.jsonl")
    sample(packtrain, "e.jsonl", "--data", "prompts.jsonl")
    assert Path("e.jsonl").read_bytes() == Path("a.jsonl").read_bytes()


def test_greedy_samples_of_a_row_are_alike(packtrain: Command, here: Path) -> None:
    sample(packtrain, "a.jsonl", "--temperature", 0)
    by_row: dict[int, set[str]] = {}
    for one in read_samples(Path("a.jsonl")):
        by_row.setdefault(one.row, set()).add(one.text)
    assert [len(texts) for texts in by_row.values()] == [1, 1, 1]


@pytest.mark.slow
def test_shards_end_to_end_are_the_whole(packtrain: Command, here: Path) -> None:
    sample(packtrain, "whole.jsonl")
    for shard in ("1/2", "0/2"):
        sample(packtrain, "part.jsonl", "--shard", shard)
    parts = sorted(Path().glob("part.*-of-2.jsonl"))
    assert b"".join(one.read_bytes() for one in parts) == Path("whole.jsonl").read_bytes()
    assert all(one.stat().st_size for one in parts)


@pytest.mark.slow
def test_a_sharded_checkpoint_gives_the_samples_of_the_whole_model(packtrain: Command, here: Path) -> None:
    sample(packtrain, "a.jsonl")
    more = ("--tokenizer", TOKENIZER)
    sample(packtrain, "b.jsonl", *more, model="trained/checkpoint-2")
    assert Path("b.jsonl").read_bytes() == Path("a.jsonl").read_bytes()
    done = packtrain("export", "trained/checkpoint-2", "--to", "model", "-o", "gathered", *more)
    assert done.code == 0, done.err
    sample(packtrain, "c.jsonl", model="gathered")
    assert Path("c.jsonl").read_bytes() == Path("a.jsonl").read_bytes()


def test_a_checkpoint_without_a_tokenizer_names_one(packtrain: Command, here: Path) -> None:
    sample(packtrain, "a.jsonl", model="trained/checkpoint-2", code=2)
    (here / "trained" / "model").rename(here / "elsewhere")
    sample(packtrain, "a.jsonl", model="trained/checkpoint-2", code=2)
    assert not list(here.glob("a.jsonl*"))


def test_a_tokenizer_of_another_model_is_refused(packtrain: Command, here: Path) -> None:
    write_model(here / "small", vocabulary=1000)
    assert "1,000" in sample(packtrain, "a.jsonl", model="small", code=2).err
    assert not list(here.glob("a.jsonl*"))
