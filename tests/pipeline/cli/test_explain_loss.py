"""A row of garbage in otherwise regular data is found by its loss, through the commands that a person types."""

import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packtrain.pipeline import demo

from tests.pipeline.conftest import Outcome, record_losses

Command = Callable[..., Outcome]
pytestmark = pytest.mark.xdist_group("workplace")
GARBAGE = 137
"""Its line, from 1."""


@pytest.fixture(scope="module")
def regular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that a tiny model soon knows, a line of random characters among them, and the configuration of a training
    that writes to `trained`."""
    folder = tmp_path_factory.mktemp("regular")
    chance = random.Random(1)
    lines = [f"Item {number % 7} of the list is worth {number % 7} coins. " * 6 for number in range(240)]
    lines[GARBAGE - 1] = "".join(chance.choice("qxzjkvwQXZJKVW#%&@^~|<>{}\\/;:?0123456789") for _ in range(240))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    run = {
        "out": "packed",
        "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
        "sources": [{"name": "texts", "format": "text", "path": "texts.jsonl"}],
        "truncate": {"max_length": 256},
        "run": {"workers": 1, "report": False},
    }
    (folder / "mix.yaml").write_text(yaml.safe_dump(run))
    model = {"model_type": "llama", "vocab_size": 3200, "hidden_size": 32, "intermediate_size": 64,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    trainer = {"learning_rate": 1e-2, "report_to": [], "save_strategy": "no", "logging_steps": 5}
    train = {"out": "trained", "model": {"config": model}, "data": "packed", "rows_per_step": 2, "export": False}
    (folder / "train.yaml").write_text(yaml.safe_dump({**train, "trainer": trainer}))
    return folder


@pytest.mark.slow
def test_a_row_of_garbage_is_found(program: Command, regular: Path) -> None:
    pytest.importorskip("torch")
    for command in ("run mix.yaml", "train train.yaml"):
        done = program(*command.split(), cwd=regular)
        assert done.code == 0, done.err
    steps = json.loads(program("explain-loss", "trained", "--json", cwd=regular).out)
    assert steps["recorded"] > 20
    rising = program("explain-loss", "trained", cwd=regular).out
    # the command that it prints shows the documents of the step that stands out
    listing = shlex.split(rising.splitlines()[-1].partition(": ")[2])
    assert listing == ["packtrain", "explain-loss", "trained", "--step", str(steps["steps"][0]["step"])]
    found = json.loads(program(*listing[1:], "--json", cwd=regular).out)
    first, second = found["documents"][:2]
    assert first["id"] == f"texts/texts:{GARBAGE}"
    assert first["loss"] > second["loss"] + 1
    assert sum(one["share"] for one in found["documents"]) == pytest.approx(1)
    said = program(*listing[1:], "--top", 1, cwd=regular).out
    assert f"texts/texts:{GARBAGE}" in said
    assert f"texts/texts:{first['line'] + 1}" not in said
    # and that one's command shows the text
    inspect = shlex.split(said.splitlines()[-1].partition(": ")[2])
    assert inspect[:2] == ["packtrain", "inspect"]
    garbage = json.loads((regular / "texts.jsonl").read_text().splitlines()[GARBAGE - 1])["text"]
    shown = program(*inspect[1:], "--full", cwd=regular)
    assert shown.code == 0, shown.err
    assert garbage[:20] in re.sub(r"[⟦⟧\s]", "", shown.out)


def test_a_dataset_that_has_moved_or_changed(
    packtrain: Command, workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = workplace.copy(tmp_path / "here")
    monkeypatch.chdir(here)
    shutil.rmtree(here / "trained")
    record_losses(here / "trained", here / "packed")
    (here / "packed").rename(here / "elsewhere")
    done = packtrain("explain-loss", "trained", "--step", 2)
    assert (done.code, done.out) == (2, "")
    assert str(here / "packed") in done.err
    assert packtrain("explain-loss", "trained").code == 0
    done = packtrain("explain-loss", "trained", "--step", 2, "--data", "elsewhere")
    assert done.code == 0, done.err
    (here / "packed-2k").rename(here / "packed")
    done = packtrain("explain-loss", "trained", "--step", 2)
    assert done.code == 2


def test_it_needs_no_torch(workplace: Any) -> None:
    code = "import sys; sys.modules['torch'] = None; from packtrain.pipeline.cli.main import main; main()"
    command = [sys.executable, "-c", code, "explain-loss", "trained", "--step", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=workplace.folder)
    assert done.returncode == 0, done.stderr
    assert "packtrain inspect " in done.stdout


def test_names_from_data_cannot_act(
    packtrain: Command, tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\x1b[31m b.jsonl").write_text(json.dumps({"text": "one two three four"}) + "\n")
    config = {
        "out": "packed",
        "tokenizer": {"path": str(tiny_tokenizer)},
        "sources": [{"name": "texts", "format": "text", "path": "*.jsonl"}],
        "run": {"workers": 1, "report": False},
    }
    (tmp_path / "mix.yaml").write_text(json.dumps(config))
    assert packtrain("run", "mix.yaml").code == 0
    record_losses(tmp_path / "trained", tmp_path / "packed")
    done = packtrain("explain-loss", "trained", "--step", 1)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "\\x1b[31m b:1" in done.out
