"""What watches a training: warnings at its beginning, figures of speed, and the lines that it prints."""

import math

import pytest
import transformers
from packtrain.training.trainer.watch import EarlyWarnings, Meter

from tests.training.trainer.trainings import Settings, quietly

VOCABULARY = 4096


def lines(*logs: dict[str, float], guessing: float | None = math.log(VOCABULARY)) -> list[str]:
    """The kinds of findings, for these lines of a log, of steps 1, 2, …"""
    warnings = EarlyWarnings(guessing)
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
    assert lines({"loss": 1.0}, guessing=math.log(2)) == ["worse_than_guessing"]
    assert lines({"loss": 1e6}, guessing=None) == []
    assert lines({"loss": 3.0}, {"loss": 5.2}, {"loss": 6.0}) == ["rising"]
    assert lines({"loss": 0.0, "grad_norm": 0.0}) == ["nothing_trained"]
    assert lines({"loss": 3.0, "grad_norm": 0.9}, {"loss": 3.0, "grad_norm": 40.0}) == ["steep"]
    assert lines({"loss": 3.0, "grad_norm": math.inf}) == ["steep"]
    assert lines(*[{"loss": 3.0}] * 60, {"loss": 9.0}) == [], "only early steps are looked at"


# Figures of speed


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_figures_are_those_of_a_count_by_hand() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert meter.collect() == {}
    clock.now += 50  # what came before the first batch is not training
    meter.batch(40, waited=1.0)
    clock.now += 4
    meter.batch(20, waited=0.5)
    with meter.paused():
        clock.now += 1000
    clock.now += 5
    found = meter.collect()
    assert found == pytest.approx({"tokens_per_second": 6.0, "loader_wait": 0.15})
    clock.now += 3
    meter.batch(9)
    assert meter.collect()["tokens_per_second"] == pytest.approx(3.0)  # since the last time


def test_what_is_logged(settings: Settings) -> None:
    """Also for TensorBoard."""
    event_files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    outcome = quietly(settings(trainer={"report_to": ["tensorboard"]}))
    log = [entry for entry in outcome.log if "loss" in entry]
    assert len(log) == 6
    assert all(entry["tokens_per_second"] > 0 and 0 <= entry["loader_wait"] < 1 for entry in log)
    (folder,) = (outcome.out / "runs").iterdir()
    curves = event_files.EventAccumulator(str(folder)).Reload()
    drawn = [point.value for point in curves.Scalars("train/loss")]
    assert drawn == pytest.approx([entry["loss"] for entry in log], rel=1e-5)
