"""Warnings at the beginning of a training: given where something is wrong, silent where nothing is."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packtrain.schemas.errors import DivergedError  # noqa: E402
from packtrain.training.trainer.trainer import PackedTrainer  # noqa: E402
from packtrain.training.trainer.watch import EarlyWarnings  # noqa: E402

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
    with suppress(DivergedError):
        trainer.train()
    return warnings


def test_a_sound_training_is_not_warned_of(folder: Path, tmp_path: Path) -> None:
    warnings = train(folder, tmp_path, small(), learning_rate=1e-3)
    assert not warnings.findings
    assert warnings._first == pytest.approx(math.log(VOCABULARY), rel=0.05)
    assert warnings._least_norm < math.inf


def test_a_learning_rate_that_is_far_too_high(folder: Path, tmp_path: Path) -> None:
    warnings = train(folder, tmp_path, small(), steps=8, learning_rate=3.0, lr_scheduler_type="constant")
    assert warnings.findings.keys() & {"rising", "steep", "norm_not_finite"}
    assert "learning rate" in next(iter(warnings.findings.values()))


def test_weights_that_know_less_than_a_guess(folder: Path, tmp_path: Path) -> None:
    model = small(tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(100)
    warnings = train(folder, tmp_path, model, steps=1, learning_rate=1e-5)
    assert list(warnings.findings) == ["worse_than_guessing"]
    assert "another tokenizer" in warnings.findings["worse_than_guessing"]


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
