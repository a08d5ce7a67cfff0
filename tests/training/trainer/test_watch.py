"""What a training says of itself: figures of speed, and the lines that it logs."""

import pytest
from packtrain.training.trainer.watch import Meter

from tests.training.trainer.trainings import Settings, quietly


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
