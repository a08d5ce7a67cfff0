"""Folders as a person has them, and what a run or a stream packed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from packtrain.pipeline.run.run import run as run_packtrain

from tests import kit

Command = Callable[..., kit.Outcome]


@pytest.fixture
def packtrain() -> Command:
    """Calls the entry point in this process: `packtrain("run", "--demo")`."""
    return kit.cli


@dataclass(frozen=True)
class Little:
    """A small corpus of three sources with a held-out part and a row that is rejected, and an undisturbed run of it."""

    folder: Path
    """Holds `inputs/`, `run.yaml`, `out/` and `cache/`; not to be changed."""

    @property
    def config(self) -> Path:
        """The configuration; its paths start beside it."""
        return self.folder / "run.yaml"

    @property
    def out(self) -> Path:
        """The finished output."""
        return self.folder / "out"

    def files(self, out: Path | None = None) -> dict[str, str]:
        """See `kit.tree`."""
        return kit.tree(out or self.out)

    def copy(self, folder: Path, *, cache: bool = True, out: bool = True) -> Path:
        """Inputs and configuration, and what else is wanted, in a new folder. Returns the configuration."""
        shutil.copytree(self.folder / "inputs", folder / "inputs")
        shutil.copy(self.config, folder)
        if cache:
            shutil.copytree(self.folder / "cache", folder / "cache", dirs_exist_ok=True)
        if out:
            shutil.copytree(self.out, folder / "out")
        return folder / "run.yaml"


@pytest.fixture(scope="session")
def little(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> Little:
    """See `Little`."""
    folder = tmp_path_factory.mktemp("little")
    for seed, (name, count) in enumerate({"a": 150, "b": 150, "c": 60}.items()):
        kit.write(folder / "inputs" / f"{name}.jsonl", [*kit.corpus("texts", count, seed=seed), {"text": 5}])
    config = kit.configure(
        folder,
        *(kit.source("texts", name=name, path=f"inputs/{name}.jsonl") for name in "abc"),
        out="out",
        cache="cache",
        truncate={"max_length": 128},
        holdout={"fraction": 0.2},
    )
    (folder / "run.yaml").write_text(json.dumps(config))
    little = Little(folder)
    run_packtrain(folder / "run.yaml")
    assert len(list((folder / "out" / "train" / "shards").iterdir())) >= 3
    return little


@dataclass(frozen=True)
class Workplace:
    """A folder as a person has it after a while: data, a configuration, a tokenizer, a model, and what was packed."""

    folder: Path

    def copy(self, folder: Path, *without: str) -> Path:
        """All of it in a new folder, but for some names."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True, ignore=lambda place, names: without)
        return folder


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Workplace:
    """See `Workplace`; not to be changed."""
    folder = tmp_path_factory.mktemp("workplace")
    shutil.copytree(tiny_tokenizer, folder / "tokenizer")
    pairs = [{"question": row["prompt"], "answer": row["completion"]} for row in kit.corpus("pairs", 20)]
    kit.write(folder / "chats.jsonl", kit.corpus("chats", 160))
    kit.write(folder / "pairs.jsonl", pairs)
    kit.write(folder / "test.jsonl", [pairs[4] | {"answer": "none of the training data"}])
    keys = {"prompt": "question", "completion": "answer"}
    config = kit.configure(
        folder, "chats", kit.source("pairs", keys=keys), out="packed", tokenizer={"path": "tokenizer"}
    )
    del config["cache"], config["output"]
    (folder / "mix.yaml").write_text(json.dumps(config))
    run_packtrain(folder / "mix.yaml")
    again = config | {"out": "packed-2k", "truncate": {"max_length": 2048}}
    run_packtrain(again, base=folder)
    model = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 3200}  # fmt: skip
    (folder / "path" / "to" / "model").mkdir(parents=True)
    (folder / "path" / "to" / "model" / "config.json").write_text(json.dumps(model))
    train = {"out": "trained", "model": {"config": model}, "data": "packed", "rows_per_step": 4}
    (folder / "train.yaml").write_text(json.dumps(train))
    return Workplace(folder)
