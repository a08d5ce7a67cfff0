"""The whole step: the gradient of a packed step is that of its documents one by one, for every parameter.

Auxiliary losses of routers are off: they take all tokens of a row together, by design.
"""

from typing import Any

import pytest
import torch
from packtrain.training import collate
from packtrain.training.attention.packed_attention import use_packed

from tests.training.probe.architectures import build, row, tokens

LENGTHS = (17, 23, 1, 9, 40, 2)
KINDS = [
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "gpt2", "olmo3",
    "granite", "glm4", "deepseek_v3", "llama4_text", "gpt_oss", "opt", "stablelm",
]  # fmt: skip


def gradients(model: Any, batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the summed loss of all labels, over their number in all batches together."""
    model.zero_grad()
    count = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    for batch in batches:
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        loss = torch.nn.functional.cross_entropy(
            logits[0, :-1], batch["labels"][0, 1:], ignore_index=-100, reduction="sum"
        )
        (loss / count).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if place % 6 else []) for place, kind in enumerate(KINDS)]
)
def test_packed_is_one_by_one(kind: str) -> None:
    settings = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} if kind == "gpt2" else {}
    model = build(kind, **settings)
    for module in model.modules():  # some have dropout by default
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    use_packed(model)
    model.train()
    documents = tokens(*LENGTHS)
    alone = gradients(model, [collate([row(one)]) for one in documents])
    assert len(alone) > 10
    padded = collate([row(*documents), row([0] * 36)])  # as of a fixed shape: padding, and empty documents
    padded["labels"][:, sum(LENGTHS) :] = -100
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        padded[name] = torch.nn.functional.pad(padded[name], (0, 3), value=sum(LENGTHS) + 36)
    more = gradients(model, [collate([row(one)]) for one in [*documents, [1, 2, 3]]])
    for name, batch, expected in (
        ("packed", collate([row(*documents)]), alone),
        ("two rows", collate([row(*documents), row([1, 2, 3])]), more),
        ("fixed shape", padded, alone),
    ):
        found = gradients(model, [batch])
        assert found.keys() == expected.keys()
        for weight, grad in found.items():
            scale = float(expected[weight].norm())
            error = float((grad - expected[weight]).norm())
            # A parameter whose gradient is nothing but rounding (a key's bias, say) has no relative error.
            assert error <= 1e-6 * scale + 1e-8, f"{name}, {weight}: {error / max(scale, 1e-30):.1e} of {scale:.1e}"


def test_it_would_be_seen_if_it_were_not() -> None:
    model = build("llama")  # its own attention, and a cache
    documents = tokens(17, 23)
    alone = gradients(model, [collate([row(one)]) for one in documents])
    found = gradients(model, [{**collate([row(*documents)]), "use_cache": True}])
    errors = [float((found[name] - alone[name]).norm() / alone[name].norm()) for name in alone]
    assert max(errors) > 0.1
