"""The loss: what is trained, by eye and against float64; inside the head, the model's own loss and gradients, for plain
heads; others keep the plain loss."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer import loss
from packtrain.training.trainer.loss import FusedHead, fuse_loss, offloaded, targets

from tests.training.trainer.tiny_models import batch, loss_of, make

torch.set_num_threads(1)
X = -100


def labelled(labels: list[int], *lengths: int) -> dict[str, Any]:
    return {
        "labels": torch.tensor([labels]),
        "cu_seq_lens_q": torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
    }


def test_a_token_is_predicted_one_position_before() -> None:
    found = targets(labelled([X, 5, 6, X, X, 8], 3, 3))
    assert found.index.tolist() == [0, 1, 4]
    assert found.tokens.tolist() == [5, 6, 8]
    assert found.document_sums(torch.tensor([1.0, 2.0, 4.0]), labelled([X, 5, 6, X, X, 8], 3, 3)).tolist() == [3, 4]


# Inside the head


def gradients(model: Any, fused: FusedHead | None = None, **inputs: Any) -> tuple[float, dict[str, Any]]:
    """The loss, and the gradient of every parameter."""
    model.zero_grad()
    loss = loss_of(model, fused, **inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Counted(loss.save_on_cpu):  # type: ignore[misc, name-defined]  # torch is not followed
    """torch's own hooks, which count the bytes that they move."""

    moved: ClassVar[list[int]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        move: Any = self.pack_hook  # type: ignore[has-type]

        def pack(tensor: Any) -> Any:
            self.moved.append(tensor.nbytes)
            return move(tensor)

        self.pack_hook = pack


@pytest.mark.parametrize("kind", ["none", "chunked"])
def test_offloading_moves_activations_and_changes_no_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "save_on_cpu", Counted)
    monkeypatch.setattr(Counted, "moved", [])
    model = make("Llama", attention="sdpa", hidden_size=64, tie_word_embeddings=False).train()
    fused = fuse_loss(model, kind, cuda=False)
    expected = gradients(model, fused, **batch(200))[1]
    assert not Counted.moved
    model.zero_grad()
    with offloaded(model, min_bytes=1024):
        through_host = loss_of(model, fused, **batch(200))
    through_host.backward()
    assert all(torch.equal(weight.grad, expected[name]) for name, weight in model.named_parameters())
    assert len(Counted.moved) > 20
    Counted.moved.clear()
    layer, value = torch.nn.Linear(64, 64), torch.rand(8, 64)
    with offloaded(layer, min_bytes=1):
        layer(value).sum()
    assert Counted.moved == [value.nbytes], "parameters stay"


def fuse(model: Any) -> FusedHead:
    fused = fuse_loss(model, "chunked", cuda=False)
    assert fused is not None
    return fused


@pytest.mark.parametrize(("name", "items"), [("Llama", 37), ("Mixtral", 37), ("Phi", None), ("GPT2", None)])
def test_a_model_has_the_same_loss_and_gradients(name: str, items: int | None) -> None:
    """Plain heads, biases, tied embeddings and auxiliary losses."""
    model, inputs = make(name), batch()
    expected_loss, expected = gradients(model, items=items, **inputs)
    plain = model(**inputs).loss.item()
    logits = model(input_ids=inputs["input_ids"]).logits
    fused = fuse(model)
    for _ in range(2):  # the first call is compared with the plain loss, later ones are not
        loss, found = gradients(model, fused, items=items, **inputs)
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        assert found.keys() == expected.keys()
        for key, gradient in expected.items():
            error = float((found[key] - gradient).norm() / gradient.norm().clamp_min(1e-12))
            assert error < 1e-6 or float(gradient.norm()) < 1e-9, f"{key}: {error}"
    # Outside of a training step the model is what it was.
    assert torch.equal(model(input_ids=inputs["input_ids"]).logits, logits)
    assert model(**inputs).loss.item() == plain


def test_nothing_trained_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    """All ranks must have all gradients, or DDP would wait for them."""
    model = make("Llama")
    names = set(gradients(model, **batch())[1])
    loss, found = gradients(model, fuse(model), **batch(trained=0.0))
    assert loss == 0
    assert found.keys() == names
    assert all(not gradient.any() for gradient in found.values())


@pytest.mark.parametrize("name", ["Gemma2", "Granite", "Cohere"])
def test_heads_that_scale_or_cap_their_logits_keep_the_plain_loss(name: str) -> None:
    model = make(name)
    assert fuse_loss(model, "auto", cuda=True) is None
    with pytest.raises(ConfigError, match=r"changes its logits before the loss.*take none or auto"):
        fuse_loss(model, "chunked", cuda=False)


def test_what_serves_no_fused_loss() -> None:
    assert fuse_loss(make("Llama"), "auto", cuda=False) is None
    assert fuse_loss(make("Llama"), "none", cuda=True) is None
    with pytest.raises(ConfigError, match="needs a GPU"):
        fuse_loss(make("Llama"), "liger", cuda=False)
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(make("Llama"), peft.LoraConfig(target_modules=["q_proj", "lm_head"]))
    assert fuse_loss(adapted, "auto", cuda=True) is None


def test_a_change_of_logits_that_no_key_tells_of_is_noticed_on_the_first_call() -> None:
    model = make("Llama")
    fused = fuse(model)
    model.lm_head.register_forward_hook(lambda module, given, logits: 2 * logits)
    with pytest.raises(ConfigError, match=r"gives a loss of .* where the plain one is .*; take none"):
        loss_of(model, fused, **batch())
