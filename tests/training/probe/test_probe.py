"""Settings and models that leak are caught, and the isolated ones pass, without false alarms: also checkpointed, with
adapters, in bf16; and the model afterwards, which must be as it was."""

from typing import Any

import pytest
import torch
from packtrain.schemas.errors import LeakError
from packtrain.training import collate
from packtrain.training.attention.isolation_probe import probe
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.probe_report import ProbeReport
from packtrain.training.attention.varlen import NAME
from transformers import AutoModelForCausalLM

from tests.training.probe.architectures import (
    batch,
    build,
    configure,
    packed,
    row,
    tokens,
    with_default_cache,
    with_ones,
)


def failed(report: ProbeReport) -> set[str]:
    return {check.name for check in report.checks if not check.passed}


def counted_on(batch: dict[str, Any]) -> dict[str, Any]:
    """Positions run on from document to document, and no bounds come: what plain collators make."""
    rest = {name: one for name, one in batch.items() if "seq_lens" not in name and "max_length" not in name}
    return {**rest, "position_ids": torch.arange(batch["labels"].shape[1])[None]}


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize(
    "change",
    [with_default_cache, lambda batch: {**batch, "use_cache": True}, with_ones, counted_on],
    ids=["default cache", "cache", "mask of ones", "positions count on"],
)
def test_what_leaks_with_a_models_own_attention(kind: str, change: Any) -> None:
    model = build(kind)
    report = probe(model, call=lambda batch: model(**change(batch)))
    assert failed(report) == {"isolation", "equivalence"}
    assert float(report.check("isolation").value) > 1e-3  # type: ignore[union-attr]
    with pytest.raises(LeakError, match=r"isolation is .*should be 0, to the bit.*Set attention: auto"):
        report.require()
    assert probe(model).require().isolated  # the same model, as the loader feeds it


def test_attention_dropout_is_found_before_training_fails_on_it() -> None:
    report = probe(packed("gpt2", attn_pdrop=0.1))
    assert failed(report) == {"runs"}
    with pytest.raises(LeakError, match=r"does not run on a packed batch.*attention dropout 0\.1"):
        report.require()
    assert probe(build("gpt2", attn_pdrop=0.1)).isolated  # a model's own attention may drop weights


def test_the_control_sees_a_model_that_ignores_its_input() -> None:
    model = build("llama")
    torch.nn.init.zeros_(model.model.norm.weight)
    assert "control" in failed(probe(model))


def test_outputs_that_are_no_numbers() -> None:
    model = packed()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(LeakError, match="outputs are not numbers"):
        probe(model).require()


# Lengths of a real batch


HALF = 8
"""Half a tiny head's dimensions."""
LONG = {"short_factor": [1.0] * HALF, "long_factor": [3.0] * HALF, "original_max_position_embeddings": 32}
STRETCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 2.0}),
    "longrope": ("phi3", {"rope_type": "longrope", **LONG}),
    "PhiMoE": ("phimoe", {"rope_type": "longrope", **LONG, "short_mscale": 1.0, "long_mscale": 1.3}),
}
"""Rotary embeddings that change beyond 32 tokens."""


def roped(kind: str, rope: dict[str, Any], **changes: Any) -> Any:
    config = configure(kind)
    config.rope_parameters = {**(config.rope_parameters or {}), "rope_theta": 1e4, **rope}
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    use_packed(model)
    return model


@pytest.mark.parametrize("name", STRETCHED)
def test_rotary_embeddings_that_stretch(name: str) -> None:
    kind, rope = STRETCHED[name]
    lengths = {"original_max_position_embeddings": 32} if kind == "phi3" else {}
    model = roped(kind, rope, max_position_embeddings=32 if name == "dynamic" else 512, **lengths)
    report = probe(model, batch=batch(17, 33, 50))
    assert failed(report) == {"at length"}
    assert "truncate.max_length" in report.hint
    assert probe(model, batch=batch(17, 32, 31, 20)).require().isolated


def test_rows_of_llama_4_beyond_its_scale() -> None:
    model = roped("llama4_text", {}, floor_scale=60)
    assert probe(model, batch=batch(17, 23, 9)).isolated
    assert failed(probe(model, batch=batch(17, 23, 30))) == {"at length"}
    assert failed(probe(roped("llama4_text", {}, floor_scale=8))) == {"equivalence"}


def test_every_form_of_the_loaders_batches() -> None:
    model = packed()
    numbered = batch(17, 5, 40)
    numbered["seq_idx"] = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), torch.tensor([17, 5, 40]))[None]
    padded = collate([row(*tokens(17, 5)), row([0] * 10)])  # as of a fixed shape: padding, and empty documents
    padded["labels"][:, 22:] = -100
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        padded[name] = torch.tensor([0, 17, 22, 32, 32, 32], dtype=torch.int32)
    for given in (numbered, padded, batch(7), {**batch(9, 4), "loss_weights": torch.ones(1, 13)}):
        assert probe(model, batch=given).require().check("at length") is not None


# What really trains


def test_checkpointed() -> None:
    model, eager = packed(), build("gpt_oss")
    for reentrant in (False, True):  # such checkpoints give no gradients of inputs alone
        for checkpointed in (model, eager):
            checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
        function = model.model.layers[0]._gradient_checkpointing_func
        assert probe(model).require().isolated
        assert "isolation" in failed(probe(eager))
        assert model.model.layers[0]._gradient_checkpointing_func is function


def test_with_adapters() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.5)
    model = peft.get_peft_model(packed(), config)
    assert probe(model).require().isolated  # with dropout on, packed and alone would differ
    assert "isolation" in failed(probe(peft.get_peft_model(build("gpt_oss"), config)))


@pytest.mark.parametrize("train", [True, False])
def test_the_model_is_left_as_it_was(train: bool) -> None:
    model = packed("gpt2")  # with dropout
    model.train(train)
    model.lm_head.eval()
    model(**batch(7)).loss.backward() if not train else None

    def state() -> list[Any]:
        grads = [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]
        tensors = [one.detach().clone() for one in (*model.parameters(), *model.buffers())]
        modes = [
            (module.training, getattr(module, "p", None), len(module._forward_hooks)) for module in model.modules()
        ]
        return [*grads, *tensors, *modes]

    before = state()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    probe(model)
    assert torch.equal(torch.rand(3), expected)
    for one, other in zip(state(), before, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert model.config._attn_implementation == NAME
