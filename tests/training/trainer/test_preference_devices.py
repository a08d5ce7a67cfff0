"""Trainings on preference pairs by several processes, and after a kill: the steps of one that was left alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.training.trainer.checkpoint import MARKER
from packtrain.training.trainer.pair_reference import REFERENCE

from tests import kit
from tests.support import warm
from tests.training.trainer.test_devices import SHARDED, TORCHRUN, Launched, accelerate, launched
from tests.training.trainer.test_resume import KILLED
from tests.training.trainer.trainings import LLAMA, SGD, Settings, losses, quietly

__all__ = ["launched"]  # a fixture
pytestmark = pytest.mark.slow
LARGE = {**LLAMA, "initializer_range": 0.15}
CHUNKS = """
from packtrain.training.trainer import heads
heads.LOGITS_BYTES = 3200 * 4 * 20
heads.CHUNK_BYTES = 3200 * 4 * 7
"""
"""Losses of single tokens in chunks of 7, for batches of more than 20 tokens."""
SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "logging_steps": 1}


@pytest.fixture
def common(tmp_path: Path, make_pairs: Callable[[str], Path]) -> dict[str, Any]:
    """A training on stored weights: drawn ones would differ where each process makes only its part."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LARGE))
    model.save_pretrained(tmp_path / "start")
    return {"data": str(make_pairs("row")), "model": {"path": str(tmp_path / "start")}, "eval": {"rows": 5}}


@pytest.mark.parametrize("loss", ["dpo", "orpo"])
def test_two_ranks_make_the_steps_of_one_which_goes_on_where_they_stopped(
    loss: str, launched: Launched, settings: Settings, common: dict[str, Any], tmp_path: Path
) -> None:
    """Four micro-batches on each rank, with different numbers of pairs."""
    keys = {**common, "rows_per_step": 8, "preference": {"loss": loss}, "probe": True, "trainer": {**SGD, **SAVED}}
    alone = settings(**keys, out=str(tmp_path / "alone"))
    expected = quietly(alone)
    found = launched([*TORCHRUN, "2"], settings(**keys, out=str(tmp_path / "two")))
    assert (found["kind"], found["ranks"]) == ("MULTI_CPU", 2)
    assert found["losses"] == pytest.approx(losses(expected), rel=1e-6)
    names = [name for name in expected.metrics if name.startswith("eval_") and "per_second" not in name]
    assert {"eval_loss_first", "eval_rewards/margin", "eval_logps/chosen_second", "eval_pairs"} <= set(names)
    for name in names:
        assert found["metrics"][name] == pytest.approx(expected.metrics[name], rel=1e-5, abs=1e-7), name
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "two" / "checkpoint-2", again / "checkpoint-2")
    for file in (tmp_path / "two").glob("*.arrow"):
        shutil.copy(file, again)
    assert losses(quietly({**alone, "out": str(again)})) == pytest.approx(losses(expected), rel=1e-6)


@pytest.mark.parametrize(("loss", "patch"), [("dpo", ""), ("dpo", CHUNKS), ("reward", "")])
def test_sharded_models_make_the_same_steps(
    loss: str, patch: str, launched: Launched, settings: Settings, common: dict[str, Any], tmp_path: Path
) -> None:
    keys = {**common, "rows_per_step": 8, "preference": {"loss": loss}, "probe": True, "trainer": {**SAVED}}
    expected = quietly(settings(**keys, out=str(tmp_path / "alone")))
    command = accelerate("fsdp2", 2, tmp_path)
    found = launched(
        command, settings(**keys, out=str(tmp_path / "two")), before=SHARDED + patch, ACCELERATE_USE_CPU="true"
    )
    assert (found["kind"], found["ranks"], found["sharded"]) == ("FSDP", 2, True)
    assert found["losses"] == pytest.approx(losses(expected), rel=1e-5)
    assert found["metrics"]["eval_loss"] == pytest.approx(expected.metrics["eval_loss"], rel=1e-5)


def test_the_command_goes_on_bit_for_bit_after_a_kill(
    settings: Settings, common: dict[str, Any], tmp_path: Path
) -> None:
    """By SIGKILL, when all but the last file of the second checkpoint is written; the reference is read then."""
    trainer = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "logging_steps": 1}
    keys = {**common, "preference": {"loss": "dpo"}, "trainer": trainer}
    quietly(settings(**keys, out=str(tmp_path / "whole")))
    out = tmp_path / "out"
    words = ["train", kit.saved(settings(**keys, out=str(out)))]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = warm.Process(words, env=environ, patch=KILLED, modules=warm.TRAINING)
    said = killed.communicate(timeout=600)
    assert (out / "checkpoint-6" / "model.safetensors").is_file(), said
    assert not (out / "checkpoint-6" / MARKER).exists()
    written = (out / REFERENCE).stat().st_mtime_ns
    done = warm.run(words, env=environ, modules=warm.TRAINING)
    assert f"resuming from {out / 'checkpoint-3'}" in done.stdout, done.stderr
    assert f"the reference of training rows is read from {out / REFERENCE}" in done.stdout
    assert (out / REFERENCE).stat().st_mtime_ns == written
    weights = [folder / "checkpoint-6" / "model.safetensors" for folder in (out, tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
