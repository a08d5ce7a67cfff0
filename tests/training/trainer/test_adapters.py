"""Adapters: the only weights that move, merged to the same function, refused where they cannot be."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training.trainer.adapters import add_adapters, is_adapted, is_quantised, merged  # noqa: E402
from packtrain.training.trainer.fused_loss import fuse_loss  # noqa: E402

from tests.training.trainer.tiny_models import batch, loss_of, make  # noqa: E402


def test_without_settings_the_model_is_what_it_was() -> None:
    model = make("Llama")
    assert add_adapters(model, None) is model
    assert merged(model) is model
    assert not is_adapted(model)
    assert not is_quantised(model)


def test_only_adapters_learn_and_merging_keeps_what_they_learned() -> None:
    model = add_adapters(make("Llama"), {"r": 4})
    assert is_adapted(model)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert names
    assert all("lora_" in name for name in names)
    assert {name.split(".")[-4] for name in names} >= {"q_proj", "down_proj"}
    assert not any("lm_head" in name for name in names)
    assert model.peft_config["default"].lora_alpha == 8
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fused = fuse_loss(model, "auto")
    assert fused is not None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(8):
        loss = loss_of(model, fused, **batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == names
    expected = model(input_ids=batch()["input_ids"]).logits
    plain = merged(model)
    assert not any("lora_" in name for name, _ in plain.named_parameters())
    assert torch.allclose(plain(input_ids=batch()["input_ids"]).logits, expected, atol=1e-4)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"lora\.alpha: .* did you mean lora_alpha\?"):
        add_adapters(make("Llama"), {"alpha": 4})
    with pytest.raises(ConfigError, match=r"peft refuses it for LlamaForCausalLM: .*no_such_layer"):
        add_adapters(make("Llama"), {"target_modules": ["no_such_layer"]})
    with pytest.raises(ConfigError, match="causal language models"):
        add_adapters(make("Llama"), {"task_type": "SEQ_CLS"})
