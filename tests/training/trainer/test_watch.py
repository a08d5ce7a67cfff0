"""What watches a training: warnings at its beginning, figures of speed, and the lines that it prints."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.training.trainer.train import train as run  # noqa: E402
from packtrain.training.trainer.trainer import PackedTrainer  # noqa: E402
from packtrain.training.trainer.watch import EarlyWarnings, Meter  # noqa: E402

from tests.training.trainer.tiny_models import make  # noqa: E402

VOCABULARY = 4096


def small(**changes: Any) -> Any:
    """A model with transformers' own initial weights: it guesses."""
    model = make("Llama", vocab_size=VOCABULARY, attention="sdpa", **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.div_(6)
    return model


def train(folder: Path, out: Path, model: Any, *, steps: int = 6, **changes: Any) -> EarlyWarnings:
    """A real training with its warnings."""
    arguments = transformers.TrainingArguments(
        str(out), max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, **changes
    )
    trainer = PackedTrainer(model, arguments, data=folder, rows_per_step=4, probe=False, say=None)
    (warnings,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, EarlyWarnings))
    trainer.train()
    return warnings


def test_weights_that_know_less_than_a_guess_and_a_sound_training(folder: Path, tmp_path: Path) -> None:
    model = small(tie_word_embeddings=False)
    assert not train(folder, tmp_path, model, learning_rate=1e-3).findings
    with torch.no_grad():
        model.lm_head.weight.mul_(100)
    assert list(train(folder, tmp_path, model, steps=1, learning_rate=1e-5).findings) == ["worse_than_guessing"]


def lines(*logs: dict[str, float]) -> list[str]:
    """The kinds of findings, for these lines of a log, of steps 1, 2, …"""
    warnings = EarlyWarnings(VOCABULARY)
    state = transformers.TrainerState(is_world_process_zero=True)
    warnings.on_train_begin(None, state, None)
    for log in logs:
        state.global_step += 1
        warnings.on_log(None, state, None, logs=log)
    return list(warnings.findings)


def test_lines_one_by_one() -> None:
    assert lines({"loss": 3.1, "grad_norm": 1.2}, {"loss": 2.8, "grad_norm": 1.0}, {"eval_loss": 9.0}) == []
    assert lines({"loss": 8.4}) == []
    assert lines({"loss": 12.0}, {"loss": 11.0}) == ["worse_than_guessing"]
    assert lines({"loss": 3.0}, {"loss": 5.2}, {"loss": 6.0}) == ["rising"]
    assert lines({"loss": 0.0, "grad_norm": 0.0}) == ["nothing_trained", "no_gradient"]
    assert lines({"loss": 3.0, "grad_norm": 0.9}, {"loss": 3.0, "grad_norm": 40.0}) == ["steep"]
    assert lines({"loss": 3.0, "grad_norm": math.inf}) == ["norm_not_finite"]
    assert lines(*[{"loss": 3.0}] * 60, {"loss": 9.0}) == [], "only early steps are looked at"


# Figures of speed


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_figures_are_those_of_a_count_by_hand() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert meter.collect(0) == {}
    clock.now += 50  # what came before the first batch is not training
    meter.batch(40, waited=1.0)
    clock.now += 4
    meter.batch(20, waited=0.5)
    with meter.paused():
        clock.now += 1000
    clock.now += 5
    found = meter.collect(7)
    assert found == pytest.approx({"tokens_per_second": 6.0, "loader_wait": 0.15, "tokens_seen": 67})
    clock.now += 3
    meter.batch(9)
    assert meter.collect(67)["tokens_per_second"] == pytest.approx(3.0)  # since the last time


def test_what_is_logged(settings: Callable[..., dict[str, Any]]) -> None:
    """Also for TensorBoard."""
    event_files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    outcome = run(settings(trainer={"report_to": ["tensorboard"]}), say=lambda text: None)
    log = [entry for entry in outcome.log if "loss" in entry]
    seen = [entry["tokens_seen"] for entry in log]
    assert len(log) == 6
    assert seen == sorted(seen)
    assert all(entry["tokens_per_second"] > 0 and 0 <= entry["loader_wait"] < 1 for entry in log)
    (folder,) = (outcome.out / "runs").iterdir()
    curves = event_files.EventAccumulator(str(folder)).Reload()
    drawn = [point.value for point in curves.Scalars("train/loss")]
    assert drawn == pytest.approx([entry["loss"] for entry in log], rel=1e-5)
