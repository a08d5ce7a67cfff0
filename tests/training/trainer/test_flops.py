"""Operations of real models, against torch's own counter, which looks at every matrix multiplication that is made."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.training.trainer.flops import PEAKS, AttentionKind, ModelFlops, peak_flops, peak_of  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.training.trainer.tiny_models import batch, make  # noqa: E402

LENGTH = 64


@pytest.mark.parametrize(
    "name",
    ["Llama", "Mistral", "Qwen3", "Gemma2", "Granite", "Cohere", "Phi", "GPT2", "Mixtral", "Qwen3Moe", "DeepseekV3"],
)
def test_the_count_is_what_torch_counts(name: str) -> None:
    """Eager attention computes all ℓ² scores, windows or not, and the model needs half of them at most."""
    model = make(name)
    model.config._experts_implementation = "eager"  # the counter knows no grouped matrix multiplication
    flops = ModelFlops.of(model)
    inputs = batch(LENGTH)
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    every_score = sum(kind.layers * kind.dims for kind in flops.attention) * LENGTH**2
    expected = flops.matrices(LENGTH) + 3 * 2 * every_score
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.001)
    assert 0.01 < 3 * 2 * every_score / expected < 0.9, "attention is a part that would be missed"


def test_by_hand() -> None:
    """Llama: hidden 32, intermediate 48, 4 heads of 8, 2 key heads, 2 layers, vocabulary 97."""
    flops = ModelFlops.of(make("Llama"))
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert (flops.trained, flops.head, flops.frozen) == (2 * layer, 32 * 97, 0)
    assert flops.attention == (AttentionKind(2, 4 * 8 * 2),)
    lengths = np.array([10, 6])
    expected = 6 * (2 * layer + 32 * 97) * 16 + 4 * (100 + 36) * 4 * 8 * 2 / 2 * 3
    assert flops.of_lengths(lengths) == expected
    assert flops.of_lengths(lengths, headed=5) == expected - 6 * 11 * 32 * 97


def test_adapters_and_frozen_weights_take_no_gradient_of_their_own() -> None:
    from peft import LoraConfig, get_peft_model

    plain = ModelFlops.of(make("Llama", num_hidden_layers=12))
    model = get_peft_model(make("Llama", num_hidden_layers=12), LoraConfig(r=4, target_modules=["q_proj"]))
    flops = ModelFlops.of(model)
    assert flops.frozen == plain.trained
    assert flops.trained == 12 * 2 * 4 * 32
    assert (flops.head, flops.head_trained) == (plain.head, False)
    with FlopCounterMode(display=False) as counter:
        model(**batch(LENGTH)).loss.backward()
    every_score = 12 * 4 * 8 * 2 * LENGTH**2
    # Before the first adapter no gradient is needed, which is one layer of twelve in part.
    assert counter.get_total_flops() == pytest.approx(flops.matrices(LENGTH) + 6 * every_score, rel=0.03)


@given(st.integers(0, 60), st.integers(1, 70))
def test_windows_and_chunks_against_counting(length: int, size: int) -> None:
    place = np.arange(length)
    back = place[:, None] - place[None, :]
    for kind, seen in (
        (AttentionKind(1, 1), back >= 0),
        (AttentionKind(1, 1, window=size), (back >= 0) & (back < size)),
        (AttentionKind(1, 1, chunk=size), (back >= 0) & (place[:, None] // size == place[None, :] // size)),
    ):
        # A token's pair with itself counts half; within a window, so does the one that has just left it.
        found = kind.pairs(np.array([length]))
        assert found <= seen.sum() <= found + length


def test_windows_of_real_configurations() -> None:
    assert ModelFlops.of(make("Mistral")).attention[0].window == 8
    assert {kind.window for kind in ModelFlops.of(make("Gemma2")).attention} == {8, None}
    long = np.array([1000])
    assert ModelFlops.of(make("Mistral")).of_lengths(long) < ModelFlops.of(make("Qwen3")).of_lengths(long)


def test_peaks_are_known_or_not_but_never_made_up() -> None:
    assert peak_of("NVIDIA H200") == 989.4e12
    assert peak_of("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("NVIDIA A100-SXM4-80GB") == peak_of("NVIDIA A100 80GB PCIe") == 311.9e12
    assert peak_of("NVIDIA A10G") == 70e12
    assert peak_of("NVIDIA L40S") == 362.1e12
    assert peak_of("NVIDIA GeForce RTX 4090") == 165.2e12
    assert peak_of("NVIDIA B200") == 2250e12
    assert peak_of("NVIDIA H20") == 148e12
    assert peak_of("Tesla T4") is None
    assert peak_of("NVIDIA RTX 4000 Ada Generation") is None
    assert all(peak_of(f"NVIDIA {name}") == value * 1e12 for name, value in PEAKS.items()), "one hides another"
    assert peak_flops("cpu") is None
