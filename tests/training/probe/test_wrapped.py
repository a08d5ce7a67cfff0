"""The probe on what really trains: compiled, checkpointed, with adapters, in bf16, on several ranks, with a callable of
its own; and the model afterwards, which must be as it was."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.training.attention import NAME, use_packed
from packtrain.training.probe import ProbeReport, probe

from tests.training.probe.architectures import batch, build


def packed(kind: str = "llama", **options: Any) -> Any:
    model = build(kind, **options)
    use_packed(model)
    return model


def leaks(report: ProbeReport) -> bool:
    """Whether the very isolation was found wanting."""
    return any(not check.passed for check in report.checks if check.name in ("isolation", "perturbation"))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("llama", torch.float64),
        ("qwen3_moe", torch.float16),
        ("gemma3_text", torch.bfloat16),
    ],
)
def test_other_dtypes(kind: str, dtype: Any) -> None:
    assert probe(packed(kind, dtype=dtype)).require().isolated
    own = build(kind, dtype=dtype)
    assert leaks(probe(own, call=lambda batch: own(**{**batch, "use_cache": True})))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant: bool) -> None:
    model = packed()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    report = probe(model).require()
    # Re-entrant checkpointing has no gradients of inputs alone: then by perturbation.
    assert {"perturbation" if reentrant else "isolation"} <= {check.name for check in report.checks}
    eager = build("gpt_oss")
    eager.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert leaks(probe(eager))


def test_with_adapters() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.5)
    model = peft.get_peft_model(packed(), config)
    assert probe(model).require().isolated  # with dropout on, packed and alone would differ
    assert leaks(probe(peft.get_peft_model(build("gpt_oss"), config)))


def test_autocast() -> None:
    model = packed()

    def call(batch: dict[str, Any]) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(**batch)

    report = probe(model, call=call).require()
    assert report.check("equivalence").threshold == "at most 0.05"  # type: ignore[union-attr]


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
