"""Setting packed attention on models: what auto takes and why, and what cannot be set."""

import pytest
import torch
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.varlen import NAME

from tests.training.probe.architectures import build


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("llama", NAME, "no CUDA device"),
        ("gemma2", NAME, "no CUDA device"),
        ("gpt_oss", NAME, "no CUDA device"),
        ("doge", "sdpa", "does not support FlashAttention"),
        ("llama4_text", "sdpa", "does not support FlashAttention"),
        ("bloom", "eager", "does not support FlashAttention"),  # which leaks, as the probe says
    ],
)
def test_auto(kind: str, name: str, why: str) -> None:
    model = build(kind)
    applied = use_packed(model)
    assert applied.name == model.config._attn_implementation == name
    assert why in applied.reason
    assert use_packed(model) == applied  # once more changes nothing


def test_what_was_asked_for() -> None:
    for name in (NAME, "sdpa", "eager"):
        model = build("llama")
        assert use_packed(model, name).name == model.config._attn_implementation == name
    with pytest.raises(AttentionError, match="attention: flash: choose one of auto"):
        use_packed(build("llama"), "flash")
    with pytest.raises(AttentionError, match="does not use masks; set attention: sdpa"):
        use_packed(build("doge"), NAME)
    with pytest.raises(
        AttentionError, match="flash_attention_2"
    ):  # the package is not here, and nothing takes its place
        use_packed(build("llama"), "flash_attention_2")
    with pytest.raises(AttentionError, match="Linear is not a model of transformers"):
        use_packed(torch.nn.Linear(2, 2), NAME)


def test_every_part_of_a_model_is_set() -> None:
    model = build("llama4")  # a model of images and text, with configurations within its configuration
    use_packed(model, "eager")
    assert {one.config._attn_implementation for one in model.modules() if "is_causal" in vars(one)} == {"eager"}
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    use_packed(model)
    assert model.get_base_model().config._attn_implementation == NAME
