"""Setting packed attention on models: what auto takes and why, and what cannot be set."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.schemas.errors import AttentionError, ConfigError
from packtrain.training.attention import (
    BLOCK_NAME,
    NAME,
    check_batch,
    count_calls,
    expected_calls,
    register,
    use_packed,
)
from packtrain.training.batch import flatten

from tests.training.probe.architectures import build, row


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("llama", NAME, "no CUDA device"),
        ("llama4_text", NAME, "no CUDA device"),
        ("gemma2", BLOCK_NAME, "soft-capped"),
        ("gpt_oss", BLOCK_NAME, "sinks"),
        ("doge", BLOCK_NAME, "does not support FlashAttention"),
    ],
)
def test_auto(kind: str, name: str, why: str) -> None:
    model = build(kind)
    applied = use_packed(model)
    assert applied.name == model.config._attn_implementation == name
    assert why in applied.reason
    assert ("T² scores" in applied.cost) == (name == BLOCK_NAME)
    assert use_packed(model) == applied  # once more changes nothing


@pytest.mark.parametrize("kind", ["falcon", "bloom", "mpt", "gpt_neo", "xglm"])
def test_models_that_would_stay_as_they_are(kind: str) -> None:
    model = build(kind)
    before = model.config._attn_implementation
    with pytest.raises(AttentionError, match=rf"could not be set.*still has '{before}'.*unpacked=True"):
        use_packed(model)


def test_what_was_asked_for() -> None:
    for name in (NAME, BLOCK_NAME, "sdpa", "eager"):
        model = build("llama")
        assert use_packed(model, name).name == model.config._attn_implementation == name
    with pytest.raises(ConfigError, match="attention: flash: choose one of auto"):
        use_packed(build("llama"), "flash")
    for kind, why in (("gemma2", "soft-capped"), ("gpt_oss", "sinks")):
        with pytest.raises(AttentionError, match=rf"{why}.*set attention: {BLOCK_NAME}"):
            use_packed(build(kind), NAME)


def test_every_part_of_a_model_is_set() -> None:
    model = build("llama4")  # a model of images and text, with configurations within its configuration
    use_packed(model)
    assert {layer.config._attn_implementation for layer in model.modules() if hasattr(layer, "is_causal")} == {NAME}


def test_within_peft() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    use_packed(model)
    assert model.get_base_model().config._attn_implementation == NAME


def test_calls_are_those_of_the_model() -> None:
    register()
    model, other = build("llama"), build("llama")
    use_packed(model)
    use_packed(other)
    batch = flatten([row(5, 3)])
    check_batch(batch)
    with count_calls(model) as seen, count_calls(other) as others:
        model(**batch)
        assert seen.calls == expected_calls(model) == 2
        model(**batch)
    model(**batch)
    assert (seen.calls, others.calls) == (4, 0)


def test_a_model_that_is_none() -> None:
    with pytest.raises(AttentionError, match="Linear is not a model of transformers"):
        use_packed(torch.nn.Linear(2, 2), NAME)
