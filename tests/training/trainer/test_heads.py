"""The chunked loss: the model's own loss and gradients, without holding its logits."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training.trainer import cross_entropy, heads  # noqa: E402
from packtrain.training.trainer.cross_entropy import Shaping, chunked_cross_entropy  # noqa: E402
from packtrain.training.trainer.heads import use_fused_loss  # noqa: E402

from tests.training.trainer.tiny_models import batch, make  # noqa: E402

torch.set_num_threads(1)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(0, 23),
    vocabulary=st.integers(2, 40),
    chunk=st.integers(1, 30),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
    weighed=st.booleans(),
    scale=st.sampled_from([1.0, 0.25]),
    softcap=st.sampled_from([None, 2.0]),
)
def test_it_is_the_sum_of_cross_entropies_in_any_chunks(
    tokens: int, vocabulary: int, chunk: int, seed: int, bias: bool, weighed: bool, scale: float, softcap: float | None
) -> None:
    """Against float64, written out."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 6, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, 6, generator=generator).requires_grad_()
    shift = torch.randn(vocabulary, generator=generator).requires_grad_() if bias else None
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    targets[torch.rand(tokens, generator=generator) < 0.3] = -100
    weights = torch.rand(tokens, generator=generator) if weighed else None
    ours = chunked_cross_entropy(hidden, weight, shift, targets, weights, Shaping(scale, softcap), chunk=chunk)
    inputs = [one for one in (hidden, weight, shift) if one is not None]
    found = torch.autograd.grad(3 * ours, inputs)

    exact = [one.detach().double().requires_grad_() for one in inputs]
    logits = Shaping(scale, softcap)(exact[0] @ exact[1].T + (exact[2] if bias else 0))
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    reference = (losses * (1 if weights is None else weights.double())).sum()
    assert ours.item() == pytest.approx(reference.item(), rel=1e-5, abs=1e-5)
    for one, other in zip(found, torch.autograd.grad(3 * reference, exact, allow_unused=True), strict=True):
        assert other is not None
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-5)


def gradients(model: Any, **inputs: Any) -> tuple[float, dict[str, Any]]:
    """The loss, and the gradient of every parameter."""
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


ARCHITECTURES = ["Llama", "Gemma2", "Granite", "Cohere", "Mixtral", "Phi", "GPT2"]


@pytest.mark.parametrize("kind", ["chunked", "torch"])
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("items", [None, 37])
def test_a_model_has_the_same_loss_and_gradients(name: str, kind: str, items: int | None) -> None:
    """Plain heads, softcaps, scales, biases, tied embeddings and auxiliary losses."""
    if kind == "torch" and name in ("Gemma2", "Granite", "Cohere"):
        with pytest.raises(ConfigError, match="take chunked"):
            use_fused_loss(make(name), kind)
        return
    model = make(name)
    inputs = batch() | ({} if items is None else {"num_items_in_batch": torch.tensor(items)})
    expected_loss, expected = gradients(model, **inputs)
    logits = model(input_ids=inputs["input_ids"]).logits
    kernel = use_fused_loss(model, kind)
    assert kernel.name == kind
    for _ in range(2):  # the first call compares logits, later ones do not
        loss, found = gradients(model, **inputs)
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        assert found.keys() == expected.keys()
        for key, gradient in expected.items():
            error = float((found[key] - gradient).norm() / gradient.norm().clamp_min(1e-12))
            assert error < 1e-6 or float(gradient.norm()) < 1e-9, f"{key}: {error}"
    assert model(**inputs).logits is None
    assert torch.equal(model(input_ids=inputs["input_ids"]).logits, logits)
    kernel.undo()
    assert gradients(model, **inputs)[0] == expected_loss
    assert model(**inputs).logits.shape[-1] == 97


def test_only_trained_positions_reach_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(hidden: Any, *rest: Any) -> Any:
        seen.append(len(hidden))
        return chunked_cross_entropy(hidden, *rest)

    monkeypatch.setattr(heads, "chunked_cross_entropy", counting)
    model, inputs = make("Llama"), batch(trained=0.25)
    trained = int((inputs["labels"] != -100).sum())
    kernel = use_fused_loss(model, "chunked")
    loss = model(**inputs).loss.item()
    kernel.undo()
    use_fused_loss(model, "chunked", skip_untrained=False)
    assert model(**inputs).loss.item() == pytest.approx(loss, rel=1e-6)
    assert seen == [trained, inputs["labels"].numel()]
    assert trained < 20


def test_weights_of_tokens() -> None:
    """`loss: document`: two documents of 3 and 1 trained tokens count alike."""
    model, inputs = make("Llama"), batch(12)
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[0, [2, 3, 4, 9]] = inputs["input_ids"][0, [2, 3, 4, 9]]
    weights = torch.zeros(1, 12)
    weights[0, [2, 3, 4]], weights[0, 9] = 1 / 3, 1.0
    losses = [
        torch.nn.functional.cross_entropy(model(input_ids=inputs["input_ids"]).logits[0, t - 1], labels[0, t]).item()
        for t in (2, 3, 4, 9)
    ]
    expected = (sum(losses[:3]) / 3 + losses[3]) / 2
    for kind in ("chunked", "torch"):
        kernel = use_fused_loss(model, kind)
        found = model(**inputs | {"labels": labels}, loss_weights=weights, num_items_in_batch=2).loss.item()
        assert found == pytest.approx(expected, rel=1e-6)
        kernel.undo()


def test_nothing_trained_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    """Where the plain loss is not a number. All ranks must have all gradients, or DDP would wait for them."""
    inputs = batch(trained=0.0)
    for kind in ("chunked", "torch"):
        model = make("Llama")
        names = set(gradients(model, **batch())[1])
        use_fused_loss(model, kind)
        loss, found = gradients(model, **inputs)
        assert loss == 0
        assert found.keys() == names
        assert all(not gradient.any() for gradient in found.values())


def test_a_frozen_head_gets_no_gradient_and_costs_none() -> None:
    model = make("Llama", tie_word_embeddings=False)
    model.lm_head.weight.requires_grad_(False)
    use_fused_loss(model, "chunked")
    _, found = gradients(model, **batch())
    assert "lm_head.weight" not in found
    assert "model.embed_tokens.weight" in found


@pytest.mark.parametrize("autocast", [False, True])
def test_in_bfloat16_it_is_no_further_from_the_truth_than_the_plain_loss(autocast: bool) -> None:
    inputs = batch(64)
    truth = make("Llama", dtype=torch.float32).to(torch.bfloat16).to(torch.float32)
    _, exact = gradients(truth, **inputs)
    model = make("Llama", dtype=torch.float32).to(torch.bfloat16)
    if autocast:
        model = model.to(torch.float32)

    def error() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            _, found = gradients(model, **inputs)
        name = "lm_head.weight"
        return float((found[name].float() - exact[name]).norm() / exact[name].norm())

    plain = error()
    use_fused_loss(model, "chunked")
    assert 0 < error() < 1.05 * plain


def test_asking_twice_for_the_gradient_is_refused() -> None:
    model, inputs = make("Llama"), batch()
    use_fused_loss(model, "chunked")
    loss = model(**inputs).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="asked for twice"):
        loss.backward()


def test_what_cannot_be_taken_over_is_said() -> None:
    from peft import LoraConfig, get_peft_model

    with pytest.raises(ConfigError, match="choose one of auto, none, chunked, liger, torch"):
        use_fused_loss(make("Llama"), "fast")
    adapted = get_peft_model(make("Llama"), LoraConfig(r=2, target_modules=["lm_head"]))
    kernel = use_fused_loss(adapted, "auto")
    assert kernel.name == "none"
    assert "not a plain nn.Linear" in kernel.reason
    with pytest.raises(ConfigError, match="take none or auto"):
        use_fused_loss(adapted, "chunked")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="liger needs a CUDA device"):
            use_fused_loss(make("Llama"), "liger")


def test_a_change_of_logits_that_nobody_declared_is_found() -> None:
    """A model whose head is followed by something that its configuration does not say."""
    model = make("Cohere")
    model.config.logit_scale = None
    model.logit_scale = 0.5
    use_fused_loss(model, "chunked")
    with pytest.raises(ConfigError, match="changes its logits between head and loss"):
        model(**batch())


def test_through_peft() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(make("Llama"), LoraConfig(r=2, target_modules=["q_proj"]))
    expected, gradient = gradients(model, **batch())
    assert use_fused_loss(model, "auto").name == "chunked"
    loss, found = gradients(model, **batch())
    assert loss == pytest.approx(expected, rel=1e-6)
    assert len(found) == len(gradient) > 0


SHARDED = """
import sys
import torch
from torch.distributed.fsdp import fully_shard
sys.path.append(sys.argv[3])
from tiny_models import batch, make
from packtrain.training.trainer.heads import use_fused_loss

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
found = []
for kind in ("none", "chunked"):
    model = make("Llama", tie_word_embeddings=False)
    use_fused_loss(model, kind)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    loss = model(**batch(seed=torch.distributed.get_rank()), num_items_in_batch=11).loss
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
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
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


def test_the_logits_are_never_held_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of a step, measured by torch's allocator: vocabulary 16,000, 1,024 tokens, a quarter of them trained."""
    monkeypatch.setattr(cross_entropy, "BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(cross_entropy, "LEAST_TOKENS", 64)
    model = make("Llama", vocab_size=16_000, max_position_embeddings=1024, attention="sdpa")
    one_copy = 1024 * 16_000 * 4

    def step(trained: float) -> Callable[[], None]:
        inputs = batch(1024, 16_000, trained=trained)
        return lambda: model(**inputs).loss.backward()

    step(1.0)()  # so that the gradients exist
    plain = peak(step(1.0))
    use_fused_loss(model, "chunked")
    step(1.0)()
    all_trained, some_trained = peak(step(1.0)), peak(step(0.25))
    print(f"peak bytes: plain {plain:,}, chunked {all_trained:,}, a quarter trained {some_trained:,}")
    assert plain > 2 * one_copy
    assert all_trained < one_copy / 2
    assert some_trained <= all_trained
