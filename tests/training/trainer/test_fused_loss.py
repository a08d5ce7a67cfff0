"""The chunked loss: the model's own loss and gradients, without holding its logits."""

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training.trainer import fused_loss  # noqa: E402
from packtrain.training.trainer.fused_loss import FusedLoss, Shaping, fuse_loss  # noqa: E402
from packtrain.training.trainer.loss import Targets  # noqa: E402

from tests.support import warm  # noqa: E402
from tests.support.examples import examples  # noqa: E402
from tests.training.trainer.tiny_models import batch, loss_of, make  # noqa: E402

torch.set_num_threads(1)


@examples(40)
@given(
    tokens=st.integers(0, 23),
    vocabulary=st.integers(2, 40),
    chunk=st.integers(1, 30),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
    shaping=st.sampled_from([None, Shaping(), Shaping(0.25), Shaping(1.0, 2.0), Shaping(0.25, 2.0)]),
)
def test_kernels_give_the_sum_of_cross_entropies(
    tokens: int, vocabulary: int, chunk: int, seed: int, bias: bool, shaping: Shaping | None
) -> None:
    """torch's (None) and our own in any chunks, against float64, written out."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 6, generator=generator).requires_grad_()
    head = torch.nn.Linear(6, vocabulary, bias=bias)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    wanted = Targets(torch.arange(tokens), targets, torch.zeros(tokens))
    if shaping is None:
        ours, each = fused_loss._torch_kernel(hidden, head, wanted)
        assert each is None
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused_loss, "CHUNK_BYTES", 4 * vocabulary * chunk)
            ours, each = fused_loss._in_chunks(hidden, head, wanted, shaping=shaping)
        assert each is not None
        alone = torch.nn.functional.cross_entropy(shaping(head(hidden)).double(), targets, reduction="none")
        assert torch.allclose(each.double(), alone, rtol=1e-5, atol=1e-5)
        assert not each.requires_grad
    inputs = [hidden, *head.parameters()]
    found = torch.autograd.grad(3 * ours, inputs)

    exact = [one.detach().double().requires_grad_() for one in inputs]
    logits = (shaping or Shaping())(exact[0] @ exact[1].T + (exact[2] if bias else 0))
    reference = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    assert ours.item() == pytest.approx(reference.item(), rel=1e-5, abs=1e-5)
    for one, other in zip(found, torch.autograd.grad(3 * reference, exact, allow_unused=True), strict=True):
        assert other is not None
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-5)


def gradients(model: Any, fused: FusedLoss | None = None, **inputs: Any) -> tuple[float, dict[str, Any]]:
    """The loss, and the gradient of every parameter."""
    model.zero_grad()
    loss = loss_of(model, fused, **inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def fuse(model: Any, kind: str = "chunked") -> FusedLoss:
    fused = fuse_loss(model, kind)
    assert fused is not None
    return fused


ARCHITECTURES = ["Llama", "Gemma2", "Granite", "Cohere", "Mixtral", "Phi", "GPT2"]


@pytest.mark.parametrize("own", [False, True], ids=["torch", "own"])
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("items", [None, 37])
def test_a_model_has_the_same_loss_and_gradients(
    name: str, own: bool, items: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain heads, softcaps, scales, biases, tied embeddings and auxiliary losses; with torch's function or not."""
    if own:
        monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    model, inputs = make(name), batch()
    expected_loss, expected = gradients(model, items=items, **inputs)
    plain = model(**inputs).loss.item()
    logits = model(input_ids=inputs["input_ids"]).logits
    fused = fuse(model)
    for _ in range(2):  # the first call compares logits, later ones do not
        loss, found = gradients(model, fused, items=items, **inputs)
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        assert found.keys() == expected.keys()
        for key, gradient in expected.items():
            error = float((found[key] - gradient).norm() / gradient.norm().clamp_min(1e-12))
            assert error < 1e-6 or float(gradient.norm()) < 1e-9, f"{key}: {error}"
    # Outside of a training step the model is what it was.
    assert torch.equal(model(input_ids=inputs["input_ids"]).logits, logits)
    assert model(**inputs).loss.item() == plain


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_nothing_trained_is_a_loss_of_zero_with_gradients_of_zero(name: str) -> None:
    """All ranks must have all gradients, or DDP would wait for them."""
    model = make(name)
    names = set(gradients(model, **batch())[1])
    loss, found = gradients(model, fuse(model), **batch(trained=0.0))
    assert loss == 0
    assert found.keys() == names
    assert all(not gradient.any() for gradient in found.values())


def test_a_frozen_head_gets_no_gradient_and_costs_none() -> None:
    model = make("Llama", tie_word_embeddings=False)
    model.lm_head.weight.requires_grad_(False)
    _, found = gradients(model, fuse(model), **batch())
    assert "lm_head.weight" not in found
    assert "model.embed_tokens.weight" in found


@pytest.mark.parametrize("name", ["Llama", "Granite"])
@pytest.mark.parametrize("autocast", [False, True])
def test_in_bfloat16_it_is_no_further_from_the_truth_than_the_plain_loss(autocast: bool, name: str) -> None:
    inputs = batch(64)
    truth = make(name, dtype=torch.float32).to(torch.bfloat16).to(torch.float32)
    _, exact = gradients(truth, **inputs)
    model = make(name, dtype=torch.float32).to(torch.bfloat16)
    if autocast:
        model = model.to(torch.float32)
    weight = next(key for key in exact if key in ("lm_head.weight", "model.embed_tokens.weight"))

    def error(fused: FusedLoss | None = None) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            _, found = gradients(model, fused, **inputs)
        return float((found[weight].float() - exact[weight]).norm() / exact[weight].norm())

    plain = error()
    assert 0 < error(fuse(model)) < 1.05 * plain


def test_what_cannot_be_taken_over_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from peft import LoraConfig, get_peft_model

    with pytest.raises(ConfigError, match="choose one of auto, none, chunked, liger"):
        fuse_loss(make("Llama"), "fast")
    assert fuse_loss(make("Llama"), "none") is None
    adapted = get_peft_model(make("Llama"), LoraConfig(r=2, target_modules=["lm_head"]))
    with caplog.at_level(logging.INFO):
        assert fuse_loss(adapted, "auto") is None
    assert "not a plain nn.Linear" in caplog.text
    with pytest.raises(ConfigError, match="take none or auto"):
        fuse_loss(adapted, "chunked")
    if find_spec("liger_kernel") is None:
        with pytest.raises(ConfigError, match="liger needs a GPU and pip install"):
            fuse_loss(make("Llama"), "liger")


def test_an_undeclared_change_of_logits_is_found() -> None:
    """A model whose head is followed by something that its configuration does not say."""
    model = make("Cohere")
    model.config.logit_scale = None
    model.logit_scale = 0.5
    with pytest.raises(ConfigError, match="changes its logits between head and loss"):
        gradients(model, fuse(model), **batch())


def test_through_peft() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(make("Llama"), LoraConfig(r=2, target_modules=["q_proj"]))
    expected, gradient = gradients(model, **batch())
    fused = fuse(model, "auto")
    assert fused.name == "chunked"
    loss, found = gradients(model, fused, **batch())
    assert loss == pytest.approx(expected, rel=1e-6)
    assert len(found) == len(gradient) > 0


SHARDED = """
import sys
import torch
from torch.distributed.fsdp import fully_shard
sys.path.append(sys.argv[3])
from tiny_models import batch, loss_of, make
from packtrain.training.trainer.fused_loss import fuse_loss

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
found = []
for kind in ("none", "chunked"):
    model = make("Llama", tie_word_embeddings=False)
    fused = fuse_loss(model, kind)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    loss = loss_of(model, fused, items=11, **batch(seed=torch.distributed.get_rank()))
    loss.backward()
    found.append([loss.detach()] + [parameter.grad.full_tensor() for parameter in model.parameters()])
assert all(type(parameter.data).__name__ == "DTensor" for parameter in model.parameters())
plain, chunked = found
assert len(plain) > 10
for one, other in zip(plain, chunked):
    assert float((one - other).norm()) <= 1e-6 * float(one.norm()), (one, other)
print("equal")
"""


@pytest.mark.slow
def test_sharded_by_fsdp2(tmp_path: Path) -> None:
    """Two processes: gradients of the chunked loss are those of the plain one, the head being sharded, too."""
    command, here = [sys.executable, "-c", SHARDED], str(Path(__file__).parent)
    environment = os.environ | warm.python() | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet"), here], stdout=subprocess.PIPE, env=environment)
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert all(output.endswith(b"equal\n") for output in outputs), outputs


def peak(run: Callable[[], object]) -> int:
    """Most bytes that torch's allocator held at once during a call, beyond those before it."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events, "nothing was measured"
    held = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", ["Llama", "Granite"])
def test_the_logits_are_never_held_all_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of a step, measured by torch's allocator: vocabulary 16,000, 512 tokens, a quarter of them trained."""
    monkeypatch.setattr(fused_loss, "CHUNK_BYTES", 2 << 20)
    model = make(name, vocab_size=16_000, max_position_embeddings=512, attention="sdpa")
    one_copy = 512 * 16_000 * 4

    def step(trained: float, fused: FusedLoss | None = None) -> Callable[[], None]:
        inputs = batch(512, 16_000, trained=trained)
        return lambda: loss_of(model, fused, **inputs).backward()

    step(1.0)()  # so that the gradients exist
    plain = peak(step(1.0))
    fused = fuse(model)
    step(1.0, fused)()
    all_trained, some_trained = peak(step(1.0, fused)), peak(step(0.25, fused))
    print(f"peak bytes: plain {plain:,}, chunked {all_trained:,}, a quarter trained {some_trained:,}")
    assert plain > 2 * one_copy
    assert all_trained < one_copy / 2
    assert some_trained <= all_trained
