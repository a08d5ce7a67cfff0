"""What the meter says of a training, against counting by hand; a model's operations, against torch's own counter."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.schemas.flops import ModelShape, attention_flops  # noqa: E402
from packtrain.training.batch import flatten  # noqa: E402
from packtrain.training.shard import Row  # noqa: E402
from packtrain.training.trainer.meter import PEAKS, Meter, ModelFlops, peak_flops, peak_of  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.training.trainer.tiny_models import batch, make  # noqa: E402

LENGTH = 64
PER_TOKEN = ModelFlops(ModelShape(1.0, 0, 0), 0.0)
"""A model whose cost is tokens."""


def row(*lengths: int, trained: int = 1) -> Row:
    """Documents in which the last `trained` tokens are."""
    labels = np.concatenate([np.r_[np.full(n - trained, -100), np.arange(trained) + 7] for n in lengths])
    positions = np.concatenate([np.arange(n) for n in lengths])
    return Row(whole(np.arange(sum(lengths)) + 5), whole(labels), whole(positions), whole(np.array(lengths)))


def whole(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    return numbers.astype(np.int32)


class Clock:
    """Seconds that a test decides."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def one_step(meter: Meter, clock: Clock, batches: list[Any], *, wait: float = 0.0, work: float = 1.0) -> None:
    """As the trainer does it: draw all micro-batches, then work."""
    for one in batches:
        clock.now += wait
        meter.batch(one, wait)
    clock.now += work


def test_figures_are_those_of_a_count_by_hand() -> None:
    flops, clock = ModelFlops.of(make("Llama")), Clock()
    meter = Meter(flops, 1e6, clock)
    assert meter.collect(0) == {}
    clock.now += 1000  # loading and probing
    packed = [flatten([row(3, 5)]), flatten([row(10, trained=4)])]
    one_step(meter, clock, packed, wait=0.5, work=3)
    one_step(meter, clock, packed, work=4)
    found = meter.collect(0)
    needed = 2 * flops.of_lengths(np.array([3, 5, 10]), 6)
    assert found == pytest.approx(
        {
            "tokens_per_second": 36 / 8,
            "model_tflops": needed / 8 / 1e12,
            "mfu": needed / 8 / 1e6,
            "loader_wait": 1 / 8,
            "tokens_seen": 36,
        }
    )
    assert meter.collect(36) == {}
    one_step(meter, clock, packed, work=2)
    found = meter.collect(36)
    assert (found["tokens_per_second"], found["tokens_seen"]) == (9, 54)


def test_without_a_known_peak_there_is_no_utilisation() -> None:
    clock = Clock()
    meter = Meter(PER_TOKEN, None, clock)
    one_step(meter, clock, [flatten([row(4)])])
    assert "mfu" not in meter.collect(0)


def test_evaluations_and_saves_are_left_out_but_not_the_waiting_after_them() -> None:
    clock = Clock()
    meter = Meter(PER_TOKEN, None, clock)
    batches = [flatten([row(6)])]
    one_step(meter, clock, batches, work=2)
    with meter.paused():
        clock.now += 57
    one_step(meter, clock, batches, wait=1, work=2)
    found = meter.collect(0)
    assert found["tokens_per_second"] == pytest.approx(12 / 5)
    assert found["loader_wait"] == pytest.approx(1 / 5)
    with meter.paused():  # an evaluation after the line was written
        clock.now += 9
    one_step(meter, clock, batches, work=3)
    assert meter.collect(0)["tokens_per_second"] == pytest.approx(2)


# Operations


def counted(model: Any) -> int:
    """What torch counts for one document of LENGTH tokens."""
    model.config._experts_implementation = "eager"  # the counter knows no grouped matrix multiplication
    with FlopCounterMode(display=False) as counter:
        model(**batch(LENGTH)).loss.backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "name", ["Llama", "Qwen3", "Granite", "Cohere", "Phi", "GPT2", "Mixtral", "Qwen3Moe", "DeepseekV3"]
)
def test_the_count_is_what_torch_counts(name: str) -> None:
    """Eager attention computes all ℓ² scores, and the model needs half of them."""
    model = make(name)
    flops = ModelFlops.of(model)
    unneeded = flops.body.attention(LENGTH**2)
    found = flops.of_lengths(np.array([LENGTH]))
    assert counted(model) == pytest.approx(found + unneeded, rel=0.001)
    assert unneeded > 0.01 * found, "attention is a part that would be missed"


@pytest.mark.parametrize(("name", "windowed"), [("Mistral", 2), ("Gemma2", 1)])
def test_attention_within_a_window_is_left_out(name: str, windowed: int) -> None:
    model = make(name)
    flops = ModelFlops.of(model)
    assert flops.body.layers == 2 - windowed
    scores = attention_flops(LENGTH**2, 2 * flops.body.hidden, windowed)
    found = flops.of_lengths(np.array([LENGTH])) + flops.body.attention(LENGTH**2) + scores
    assert counted(model) == pytest.approx(found, rel=0.001)


def test_by_hand() -> None:
    """Llama: hidden 32, intermediate 48, 4 heads of 8, 2 key heads, 2 layers, vocabulary 97."""
    flops = ModelFlops.of(make("Llama"))
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert flops == ModelFlops(ModelShape(2 * layer, 2, 4 * 8), 32 * 97)
    lengths = np.array([10, 6])
    expected = 6 * (2 * layer + 32 * 97) * 16 + 4 * (100 + 36) * 4 * 8 * 2 / 2 * 3
    assert flops.of_lengths(lengths) == expected
    assert flops.of_lengths(lengths, 5) == expected - 6 * 11 * 32 * 97


def test_frozen_weights_take_no_gradient_of_their_own() -> None:
    from peft import LoraConfig, get_peft_model

    plain = ModelFlops.of(make("Llama", num_hidden_layers=12))
    model = get_peft_model(make("Llama", num_hidden_layers=12), LoraConfig(r=4, target_modules=["q_proj"]))
    flops = ModelFlops.of(model)
    assert flops.head == pytest.approx(plain.head * 2 / 3)
    assert flops.body.parameters == pytest.approx(plain.body.parameters * 2 / 3 + 12 * 2 * 4 * 32)
    # Before the first adapter no gradient is needed, which is one layer of twelve in part.
    expected = flops.of_lengths(np.array([LENGTH])) + flops.body.attention(LENGTH**2)
    assert counted(model) == pytest.approx(expected, rel=0.03)


def test_peaks_are_known_or_not_but_never_made_up() -> None:
    assert peak_of("NVIDIA H200") == 989.4e12
    assert peak_of("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("NVIDIA A100-SXM4-80GB") == peak_of("NVIDIA A100 80GB PCIe") == 311.9e12
    assert peak_of("NVIDIA GeForce RTX 4090") == 165.2e12
    assert peak_of("Tesla T4") is None
    assert peak_of("NVIDIA RTX 4000 Ada Generation") is None
    assert all(peak_of(f"NVIDIA {name}") == value * 1e12 for name, value in PEAKS.items()), "one hides another"
    assert peak_flops("cpu") is None
