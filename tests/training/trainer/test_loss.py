"""The loss: what is trained, by eye and against float64; inside the head, the model's own loss and gradients, for plain
heads; others keep the plain loss."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.training.targets import Targets, find_targets
from packtrain.training.trainer import heads, loss
from packtrain.training.trainer.heads import FusedHead, fuse_loss
from packtrain.training.trainer.loss import offloaded

from tests.training.trainer.tiny_models import batch, loss_of, make, needs_fused_loss

torch.set_num_threads(1)
X = -100


def labelled(labels: list[int], *lengths: int) -> dict[str, Any]:
    return {
        "labels": torch.tensor([labels]),
        "cu_seq_lens_q": torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
    }


def test_a_token_is_predicted_one_position_before() -> None:
    found = find_targets(labelled([X, 5, 6, X, X, 8], 3, 3))
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


@pytest.mark.parametrize("kind", ["none", pytest.param("chunked", marks=needs_fused_loss)])
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
@needs_fused_loss
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


@needs_fused_loss
def test_nothing_trained_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    """All ranks must have all gradients, or DDP would wait for them."""
    model = make("Llama")
    names = set(gradients(model, **batch())[1])
    loss, found = gradients(model, fuse(model), **batch(trained=0.0))
    assert loss == 0
    assert found.keys() == names
    assert all(not gradient.any() for gradient in found.values())


def in_liger_s_chunks(hidden: Any, weight: Any, bias: Any, tokens: Any) -> Any:
    """The arithmetic of Liger's wrapper, whose chunks are a share of the rows: with no rows it divides by zero."""
    rows, width = hidden.shape
    chunk = 2 ** (rows // -(-len(weight) // width)).bit_length()
    pieces = -(-rows // min(chunk, rows))
    parts = zip(hidden.tensor_split(pieces), tokens.tensor_split(pieces), strict=True)
    return sum(  # of losses in float32, as Liger keeps them
        torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(part, weight, bias).float(), labels, reduction="sum"
        )
        for part, labels in parts
    )


@pytest.mark.parametrize("name", ["Llama", "Phi"])
def test_a_kernel_that_fails_without_rows_is_not_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_liger", lambda: in_liger_s_chunks)
    model = make(name)
    fused = fuse_loss(model, "liger", cuda=True)
    expected, names = gradients(model, fused, **batch())
    assert expected > 0
    nothing, found = gradients(model, fused, **batch(trained=0.0))
    assert nothing == 0
    assert found.keys() == names.keys()
    assert all(not gradient.any() for gradient in found.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@needs_fused_loss
def test_the_head_s_gradient_is_nearly_as_exact_as_of_one_product(dtype: torch.dtype) -> None:
    """Through the head, as it trains; beside torch's own choice for such sizes, which is 128 chunks."""
    torch.manual_seed(0)
    rows, width, words = 8192, 16, 1024
    hidden = torch.randn(rows, width).to(dtype)
    tokens = torch.randint(0, words, (rows,)) ** 2 // words
    weight = (torch.randn(words, width) / 6).to(dtype)
    gradient = (hidden.float() @ weight.float().T).softmax(-1)
    gradient[torch.arange(rows), tokens] -= 1
    exact = gradient.T.double() @ hidden.double()

    def error(found: torch.Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    head = torch.nn.Linear(width, words, bias=False, dtype=dtype)
    head.weight.data.copy_(weight)
    fused = FusedHead(head, "chunked")
    with fused.of(Targets(torch.arange(rows), tokens)):
        (head(hidden[None]) * rows).sum().backward()
    theirs = weight.clone().requires_grad_()
    options = torch.nn.LinearCrossEntropyOptions()
    assert options._adjust(rows, width, words, dtype).batch_chunk_size == rows // 128
    torch.nn.functional.linear_cross_entropy(hidden, theirs, tokens, reduction="sum", options=options).backward()
    one = error((gradient.to(dtype).float().T @ hidden.float()).to(dtype))
    assert error(head.weight.grad) < 3 * one
    assert error(theirs.grad) > 4 * one
    assert heads.chunked_options(16384, dtype)._adjust(16384, 2048, 151936, dtype).batch_chunk_size == 2048


@pytest.mark.parametrize("name", ["Gemma2", "Granite", "Cohere"])
@needs_fused_loss
def test_heads_that_scale_or_cap_their_logits_keep_the_plain_loss(name: str) -> None:
    model = make(name)
    assert fuse_loss(model, "auto", cuda=True) is None
    with pytest.raises(ConfigError, match=r"changes its logits before the loss.*take none or auto"):
        fuse_loss(model, "chunked", cuda=False)


@needs_fused_loss
def test_what_serves_no_fused_loss() -> None:
    assert fuse_loss(make("Llama"), "auto", cuda=False) is None
    assert fuse_loss(make("Llama"), "none", cuda=True) is None
    with pytest.raises(ConfigError, match="needs a GPU"):
        fuse_loss(make("Llama"), "liger", cuda=False)
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(make("Llama"), peft.LoraConfig(target_modules=["q_proj", "lm_head"]))
    assert fuse_loss(adapted, "auto", cuda=True) is None


@pytest.mark.parametrize("trained", [0.7, 0.0])
@needs_fused_loss
def test_a_change_of_logits_that_no_key_tells_of_is_noticed_on_the_first_call(trained: float) -> None:
    model = make("Llama")
    fused = fuse(model)
    model.lm_head.register_forward_hook(lambda module, given, logits: 2 * logits)
    with pytest.raises(ConfigError, match=r"gives a loss of .* where the plain one is .*; take none"):
        loss_of(model, fused, **batch(trained=trained))
