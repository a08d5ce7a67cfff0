"""The figures of speed: tokens a second, waiting, utilisation, held against a count by hand."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.training.trainer.watch import Meter  # noqa: E402

from tests.training.trainer.tiny_models import make  # noqa: E402


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def bounds(*lengths: int) -> dict[str, Any]:
    return {"cu_seq_lens_q": torch.tensor([0, *lengths]).cumsum(0).int()}


def test_figures_are_those_of_a_count_by_hand() -> None:
    clock, model = Clock(), make("Llama", tie_word_embeddings=False)
    meter = Meter(model, torch.device("cpu"), clock)
    assert meter.collect(0) == {}
    meter.peak = 1e6
    clock.now += 50  # what came before the first batch is not training
    meter.batch(bounds(10, 30), waited=1.0)
    clock.now += 4
    meter.batch(bounds(20), waited=0.5)
    with meter.paused():
        clock.now += 1000
    clock.now += 5
    found = meter.collect(7)
    weights = sum(one.numel() for one in model.parameters()) - 97 * 32  # looking up a row multiplies nothing
    flops = 6 * weights * 60 + 6 * 2 * 32 * (100 + 900 + 400)
    assert found == pytest.approx(
        {"tokens_per_second": 6.0, "mfu": flops / 10 / 1e6, "loader_wait": 0.15, "tokens_seen": 67}
    )
    clock.now += 3
    meter.batch(bounds(9))
    assert meter.collect(67)["tokens_per_second"] == pytest.approx(3.0)  # since the last time


def test_without_a_known_peak_there_is_no_utilisation() -> None:
    clock = Clock()
    meter = Meter(make("Llama"), torch.device("cpu"), clock)
    meter.batch(bounds(10))
    clock.now += 2
    assert "mfu" not in meter.collect(0)


def test_of_experts_only_those_that_a_token_goes_to_count() -> None:
    clock = Clock()

    def mfu(chosen: int) -> float:
        meter = Meter(make("Mixtral", num_experts_per_tok=chosen), torch.device("cpu"), clock)
        meter.peak = 1.0
        meter.batch(bounds(10))
        clock.now += 1
        return meter.collect(0)["mfu"]

    assert mfu(4) - mfu(2) == pytest.approx(2 * (mfu(2) - mfu(1)))
