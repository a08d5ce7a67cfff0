"""Stopping and going on: bit for bit, from whole checkpoints only, and with the rows that are left."""

import json
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import BusyError, ConfigError, IntegrityError, PacktrainError, StoreError
from packtrain.training.trainer.checkpoint import LOCK, MARKER, last_whole, locked, read_checkpoint
from packtrain.training.trainer.trainer import PackedTrainer
from safetensors.torch import load_file, save_file

from tests import kit
from tests.support import warm
from tests.training.trainer.trainings import Outcome, Settings, quietly

DROPOUT = {
    "config": {
        "model_type": "gpt2", "vocab_size": 3200, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256,
        "attn_pdrop": 0.0, "resid_pdrop": 0.2, "embd_pdrop": 0.2,
    }
}  # fmt: skip
"""A model that draws random numbers in every step."""
SAVED = {"save_strategy": "steps", "save_steps": 3, "max_steps": 7, "lr_scheduler_type": "cosine", "warmup_steps": 2}


def losses(outcome: Outcome) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in outcome.log if "loss" in entry}


def tensors(value: Any) -> list[Any]:
    """All tensors and numbers of a nested state, in order."""
    if isinstance(value, dict):
        return [one for key in value for one in tensors(value[key])]
    if isinstance(value, list | tuple):
        return [one for item in value for one in tensors(item)]
    return [value]


def same(one: Path, other: Path) -> None:
    """Two checkpoints hold the same training, to the last bit."""
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        mine, theirs = (tensors(torch.load(path / name, weights_only=False)) for path in (one, other))
        assert len(mine) > 1
        for left, right in zip(mine, theirs, strict=True):
            equal = torch.equal(left, right) if isinstance(left, torch.Tensor) else repr(left) == repr(right)
            assert equal, name
    assert read_checkpoint(one).loader == read_checkpoint(other).loader


@pytest.fixture(scope="module")
def finished(settings_in: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Outcome]:
    """The settings of a training and what it ended with; not to be changed."""
    out = tmp_path_factory.mktemp("finished") / "whole"
    config = settings_in(out, model=DROPOUT, rows_per_device=2, probe=True, trainer=SAVED)
    return config, quietly(config)


@pytest.fixture
def stopped(finished: tuple[dict[str, Any], Outcome], tmp_path: Path) -> tuple[dict[str, Any], Outcome, Path]:
    """The same, with a folder that holds its checkpoint after three steps only."""
    config, outcome = finished
    shutil.copytree(outcome.out / "checkpoint-3", tmp_path / "again" / "checkpoint-3")
    return {**config, "out": str(tmp_path / "again")}, outcome, tmp_path / "again"


def test_it_goes_on_bit_for_bit(stopped: tuple[dict[str, Any], Outcome, Path]) -> None:
    config, whole, folder = stopped
    outcome = quietly(config)
    assert outcome.resumed_from == folder / "checkpoint-3"
    assert outcome.steps == whole.steps == 7
    assert losses(outcome) == losses(whole)
    epochs = [{entry["step"]: entry["epoch"] for entry in one.log if "loss" in entry} for one in (whole, outcome)]
    assert epochs[0] == epochs[1]
    assert epochs[0][7] > epochs[0][6] > 0
    same(folder / "checkpoint-6", whole.out / "checkpoint-6")
    same(folder / "checkpoint-7", whole.out / "checkpoint-7")
    # and what the equality would be worth nothing without: the steps did something, and the order moved on
    assert losses(whole)[7] != losses(whole)[4]
    assert read_checkpoint(folder / "checkpoint-7").step == 7


KILLED = """
import os, signal
from packtrain.training.trainer import checkpoint
write_marker = checkpoint.write_marker
def kill(folder, state):
    if state.step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    write_marker(folder, state)
checkpoint.write_marker = kill
"""


@pytest.mark.slow
def test_the_command_goes_on_bit_for_bit_after_a_kill(finished: tuple[dict[str, Any], Outcome], tmp_path: Path) -> None:
    """By SIGKILL, when all but the last file of a checkpoint is written."""
    config, whole = finished
    out, environ = tmp_path / "out", {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["train", kit.saved({**config, "out": str(out)})]
    killed = warm.Process(words, env=environ, patch=KILLED, modules=warm.TRAINING)
    said = killed.communicate(timeout=600)
    assert (out / "checkpoint-6" / "model.safetensors").is_file(), said
    assert not (out / "checkpoint-6" / MARKER).exists()
    done = warm.run(words, env=environ, modules=warm.TRAINING)
    assert f"resuming from {out / 'checkpoint-3'}" in done.stdout, done.stderr
    same(out / "checkpoint-7", whole.out / "checkpoint-7")


def test_what_is_finished_stays_finished(settings: Settings) -> None:
    config = settings(trainer={**SAVED, "max_steps": 3}, export=True)
    first = quietly(config)
    weights = (first.out / "checkpoint-3" / "model.safetensors").read_bytes()
    again = quietly(config)
    assert (again.steps, again.resumed_from) == (3, first.out / "checkpoint-3")
    assert losses(again) == losses(first)
    assert (first.out / "checkpoint-3" / "model.safetensors").read_bytes() == weights
    assert again.export is not None
    assert (again.export / "model.safetensors").is_file()


# Whole checkpoints only


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ([MARKER], MARKER),  # it is written last
        ([MARKER, "trainer_state.json", "rng_state.pth"], MARKER),
        (["model.safetensors"], "model.safetensors is missing"),
        ([], "optimizer.pt has 100 bytes"),
    ],
)
def test_a_checkpoint_that_was_cut_short_is_passed_over(
    stopped: tuple[dict[str, Any], Outcome, Path], gone: list[str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    config, whole, folder = stopped
    shutil.copytree(whole.out / "checkpoint-6", folder / "checkpoint-6")
    for name in gone:
        (folder / "checkpoint-6" / name).unlink()
    if not gone:
        os.truncate(folder / "checkpoint-6" / "optimizer.pt", 100)
    with pytest.raises(ConfigError, match=named):
        read_checkpoint(folder / "checkpoint-6")
    with caplog.at_level(logging.WARNING, logger="packtrain"):
        assert last_whole(folder) == folder / "checkpoint-3"
    assert named in caplog.text
    if len(gone) > 1:
        outcome = quietly(config)
        assert outcome.resumed_from == folder / "checkpoint-3"
        assert losses(outcome) == losses(whole)
        same(folder / "checkpoint-6", whole.out / "checkpoint-6")  # written over, and whole


def test_a_checkpoint_that_is_not_finite_is_passed_over(
    stopped: tuple[dict[str, Any], Outcome, Path], caplog: pytest.LogCaptureFixture
) -> None:
    config, whole, folder = stopped
    spoilt = folder / "checkpoint-6"
    shutil.copytree(whole.out / "checkpoint-6", spoilt)
    weights = load_file(spoilt / "model.safetensors")
    name = sorted(weights)[-1]
    weights[name].view(-1)[-1] = float("nan")
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, logger="packtrain"):
        assert last_whole(folder) == folder / "checkpoint-3"
    assert f"{spoilt} cannot be used: {name} in model.safetensors holds NaN or infinity" in caplog.text
    # Named by hand, it is not trained on either.
    trainer = PackedTrainer({**config, "probe": False}, say=lambda text: None)
    with pytest.raises(PacktrainError, match=r"weights hold NaN or infinity at step 6, for example in "):
        trainer.train(resume_from_checkpoint=spoilt)


def test_a_checkpoint_that_is_damaged_but_not_cut_short(stopped: tuple[dict[str, Any], Outcome, Path]) -> None:
    config, _, folder = stopped
    state = folder / "checkpoint-3" / "optimizer.pt"
    state.write_bytes(bytes(state.stat().st_size))
    with pytest.raises(IntegrityError, match=r"resuming from .*-3 failed before its first batch: .*delete it"):
        quietly(config)
    marker = folder / "checkpoint-3" / MARKER
    whole = json.loads(marker.read_text())
    wrongs: list[Any] = [{"step": "3"}, {"settings": []}, {"loader": 5}, {"files": {"a": None}}, {"format": 1}]
    for wrong in [*({**whole, **wrong} for wrong in wrongs), [whole]]:
        marker.write_text(json.dumps(wrong))
        assert last_whole(folder) is None, wrong


# What is refused


def test_another_training_into_the_same_folder_is_refused(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked(out), pytest.raises(BusyError, match="another training works on "):
        quietly(settings())
    assert [path.name for path in out.iterdir()] == [LOCK]
    assert quietly(settings(trainer={"max_steps": 1})).steps == 1
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written as a folder"), locked(tmp_path / "file"):
        pass


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"rows_per_step": 2}, "rows_per_step: 4, .*: 2"),
        ({"seed": 4}, "seed differs"),
        ({"data": "two sources"}, "dataset differs"),
        ({"trainer": {"learning_rate": 0.5}}, "trainer.learning_rate: 0.001, .*: 0.5"),
        ({"trainer": {"optim": "sgd"}}, "trainer.optim: adamw_torch.*, .*: sgd"),
        ({"trainer": {"weight_decay": 0.1}}, "trainer.weight_decay"),
        ({"model": {"config": {**DROPOUT["config"], "n_layer": 1}}}, "trained weights: "),
    ],
)
def test_what_would_not_be_the_same_training_is_refused(
    stopped: tuple[dict[str, Any], Outcome, Path], two_sources: Path, keys: dict[str, Any], named: str
) -> None:
    config = kit.merged(stopped[0], {key: value for key, value in keys.items() if key != "model"})
    config["model"] = keys.get("model", config["model"])
    config["data"] = str(two_sources) if "data" in keys else config["data"]
    with pytest.raises(ConfigError, match=named):
        quietly(config)


def test_a_full_disk_is_said(settings: Settings) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing raises, as on a full disk
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(StoreError, match=r"checkpoint-3 could not be written: .*Free some space"):
            quietly(settings(trainer=SAVED))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
