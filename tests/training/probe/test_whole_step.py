"""The whole step: the gradient of a packed step is that of its documents one by one, for every parameter.

Auxiliary losses of routers are off: they take all tokens of a row together, by design.
"""

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.training.attention import use_packed
from packtrain.training.batch import FixedShape, flatten

from tests.training.probe.architectures import build, row, strip

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


@pytest.mark.parametrize("kind", KINDS)
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
    whole = row(*LENGTHS)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).tolist()
    documents = [strip(whole.input_ids[begin:end].tolist()) for begin, end in pairwise(ends)]
    alone = gradients(model, [flatten([one]) for one in documents])
    assert len(alone) > 10
    for name, batch in (
        ("packed", flatten([whole])),
        ("two rows", flatten([row(*LENGTHS), strip([1, 2, 3])])),
        ("fixed shape", flatten([whole], shape=FixedShape(length=128, docs=9))),
    ):
        expected = alone
        if name == "two rows":
            expected = gradients(model, [flatten([one]) for one in [*documents, strip([1, 2, 3])]])
        found = gradients(model, [batch])
        assert found.keys() == expected.keys()
        for weight, grad in found.items():
            scale = float(expected[weight].norm())
            error = float((grad - expected[weight]).norm())
            # A parameter whose gradient is nothing but rounding (a key's bias, say) has no relative error.
            assert error <= 1e-6 * scale + 1e-8, f"{name}, {weight}: {error / max(scale, 1e-30):.1e} of {scale:.1e}"


def test_it_would_be_seen_if_it_were_not() -> None:
    model = build("llama")  # its own attention, and a cache
    whole = row(17, 23)
    alone = gradients(model, [flatten([strip(whole.input_ids[a:b].tolist())]) for a, b in ((0, 17), (17, 40))])
    found = gradients(model, [{**flatten([whole]), "use_cache": True}])
    errors = [float((found[name] - alone[name]).norm() / alone[name].norm()) for name in alone]
    assert max(errors) > 0.1
