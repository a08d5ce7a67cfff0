"""`packtrain sample` from sharded checkpoints, and with a tokenizer of another model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.small_models import TOKENIZER, add_trained, write_model

Command = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with trained/model, trained/checkpoint-2 and prompts.jsonl, as the working directory."""
    add_trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sample(packtrain: Command, out: str, *more: object, model: str = "trained/model", code: int = 0) -> Any:
    """Draws four samples of twelve tokens for each row."""
    common = ("--data", "prompts.jsonl", "-n", 4, "--max-new-tokens", 12, "--batch", 4)
    done = packtrain("sample", model, *common, "--out", out, *more)
    assert done.code == code, done.err
    return done


@pytest.mark.slow
def test_a_sharded_checkpoint_gives_the_samples_of_the_whole_model(packtrain: Command, here: Path) -> None:
    sample(packtrain, "a.jsonl")
    more = ("--tokenizer", TOKENIZER)
    assert (
        "export trained/checkpoint-2 --to model"
        in sample(packtrain, "b.jsonl", *more, model="trained/checkpoint-2", code=2).err
    )
    done = packtrain("export", "trained/checkpoint-2", "--to", "model", "-o", "gathered")
    assert done.code == 0, done.err
    sample(packtrain, "b.jsonl", *more, model="gathered")
    assert Path("b.jsonl").read_bytes() == Path("a.jsonl").read_bytes()


def test_a_tokenizer_of_another_model_is_refused(packtrain: Command, here: Path) -> None:
    write_model(here / "small", vocabulary=1000)
    assert "1,000" in sample(packtrain, "a.jsonl", model="small", code=2).err
    assert not list(here.glob("a.jsonl*"))
