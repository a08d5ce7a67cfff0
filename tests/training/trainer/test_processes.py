"""Trainings in processes of their own: several ranks, a kill in the middle, and a machine without half the packages."""

import json
import os
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.training.trainer.checkpoint import MARKER, read_checkpoint  # noqa: E402
from packtrain.training.trainer.run import train  # noqa: E402

from tests.support import warm  # noqa: E402

Settings = Callable[..., dict[str, Any]]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0, "weight_decay": 0.0}
COMMAND = ["-m", "packtrain.pipeline.cli", "train"]


def written(config: dict[str, Any], where: Path) -> Path:
    path = where / f"{Path(config['out']).name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def launched(ranks: int, config: dict[str, Any], where: Path) -> subprocess.CompletedProcess[str]:
    """Train on so many processes of this machine, with gloo."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *torchrun, *COMMAND, str(written(config, where))]
    return subprocess.run(
        command, env=ENVIRONMENT | warm.python(), capture_output=True, text=True, check=False, timeout=600
    )


def logged(out: Path, step: int) -> dict[int, float]:
    """Step → loss, as a checkpoint's state has it."""
    return {entry["step"]: entry["loss"] for entry in history(out, step) if "loss" in entry}


def history(out: Path, step: int) -> list[dict[str, Any]]:
    """Everything that was logged up to a checkpoint."""
    entries: list[dict[str, Any]] = json.loads((out / f"checkpoint-{step}" / "trainer_state.json").read_text())[
        "log_history"
    ]
    return entries


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


@pytest.mark.slow
def test_two_ranks_make_the_same_steps_as_one_also_when_one_goes_on_where_two_stopped(
    settings: Settings, two_sources: Path, tmp_path: Path
) -> None:
    keys = {**SGD, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    common: dict[str, Any] = {"data": str(two_sources), "rows_per_step": 8, "loss_kernel": "none"}
    alone = settings(**common, out=str(tmp_path / "alone"), trainer=keys)
    # 4 micro-batches on each of two ranks, of conversations and texts: packs with very different trained tokens
    pair = settings(**common, out=str(tmp_path / "pair"), trainer=keys, eval={"rows": 5})
    train({**alone, "eval": {"rows": 5}}, say=lambda text: None)
    done = launched(2, pair, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "8 packed rows = 2 ranks · 4 batches · 1 row;" in done.stdout
    assert done.stdout.count("isolation proved") == 1
    one, two = tmp_path / "alone", tmp_path / "pair"
    assert list(logged(two, 4).values()) == pytest.approx(list(logged(one, 4).values()), rel=1e-6)
    for name, value in weights(one / "checkpoint-4").items():
        assert torch.allclose(value, weights(two / "checkpoint-4")[name], rtol=1e-5, atol=1e-6), name
    assert read_checkpoint(one / "checkpoint-4").loader == read_checkpoint(two / "checkpoint-4").loader
    mine, theirs = (next(entry for entry in reversed(history(out, 4)) if "eval_loss" in entry) for out in (one, two))
    for key in ("eval_loss", "eval_loss_chats", "eval_loss_texts", "eval_tokens"):
        assert mine[key] == pytest.approx(theirs[key], rel=1e-6)
    # two ranks stopped after two steps; one goes on
    (two / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    on = train({**alone, "out": str(tmp_path / "on"), "resume": str(tmp_path / "checkpoint-2")}, say=lambda text: None)
    assert on.steps == 4
    assert list(logged(tmp_path / "on", 4).values()) == pytest.approx(list(logged(one, 4).values()), rel=1e-6)
    assert read_checkpoint(tmp_path / "on" / "checkpoint-4").loader == read_checkpoint(one / "checkpoint-4").loader


@pytest.mark.slow
def test_a_kill_in_the_middle_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    keys = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "max_steps": 16}
    killed = settings(out=str(tmp_path / "killed"), trainer=keys, epochs=4)
    whole = train({**killed, "out": str(tmp_path / "whole")}, say=lambda text: None)
    command = ["train", written(killed, tmp_path)]
    kills = 0
    for after in (3, 9):
        process = warm.Process(command, env=ENVIRONMENT, modules=warm.TRAINING)
        for _ in range(3000):
            # in the middle of writing, as like as not: as soon as anything of a checkpoint is there
            if process.poll() is not None or (tmp_path / "killed" / f"checkpoint-{after}").is_dir():
                break
            time.sleep(0.005)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
    assert kills == 2
    done = warm.run(command, env=ENVIRONMENT, timeout=600, modules=warm.TRAINING)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from" in done.stdout
    last = Path("checkpoint-16")
    for name in ("model.safetensors", "scheduler.pt"):
        assert (tmp_path / "killed" / last / name).read_bytes() == (whole.out / last / name).read_bytes()
    assert logged(tmp_path / "killed", 16) == logged(whole.out, 16)
    assert (tmp_path / "killed" / last / MARKER).is_file()


@pytest.mark.slow
def test_it_trains_where_data_packages_are_not_installed(settings: Settings, tmp_path: Path) -> None:
    """A site-packages without them: not blocked, but absent."""
    home = tmp_path / "site"
    home.mkdir()
    absent = (
        "polars",
        "datasets",
        "pandas",
        "trl",
        "peft",
        "tensorboard",
        "torchdata",
        "liger",
        "rich",
        "typer",
    )
    for folder in dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages(), *sys.path]):
        place = Path(folder)
        if place.name != "site-packages" or not place.is_dir():
            continue
        for path in place.iterdir():
            if not path.name.lower().startswith((*absent, "_polars")) and not (home / path.name).exists():
                (home / path.name).symlink_to(path.resolve())
    packtrain = home / "packtrain"
    if not packtrain.exists():
        packtrain.symlink_to(Path(__file__).parents[3])
    config = settings(trainer={"max_steps": 2})
    code = (
        "import importlib.util as u, sys, json\n"
        f"assert not any(u.find_spec(name) for name in {[*absent[:4], 'rich', 'typer']!r})\n"
        "from packtrain.training.trainer.run import train\n"
        f"print(train(json.loads({json.dumps(config)!r})).steps, 'steps')"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": str(home)}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 steps" in done.stdout
