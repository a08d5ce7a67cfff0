"""Packed attention on CUDA: every kernel found there against float32, forward and backward; its name in a profile; the
probe in bf16; compiled without a break. Run with `python -m pytest tests/gpu` on a machine that has a GPU."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.isolation_probe import probe
from packtrain.training.attention.kernels import LOOP, flash, per_document, why_not_flash
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.probe_setup import to_device
from packtrain.training.attention.varlen import NAME, packed_varlen

from tests.training.probe.architectures import batch, build, with_default_cache

CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
pytestmark = pytest.mark.skipif(not CUDA, reason="needs a GPU, Ampere or newer")
DEVICE = torch.device("cuda", 0)

LENGTHS = {
    "odd": [1, 127, 3, 300, 129, 64],
    "one": [513],
    "empty ones": [0, 65, 0, 0, 200, 0],
    "many": [7] * 150,
}
SHAPES = {"heads": (8, 8, 64, 64), "groups": (8, 2, 128, 128), "one key head": (6, 1, 64, 64), "odd": (4, 2, 20, 12)}


def tensors(lengths: list[int], shape: tuple[int, int, int, int], dtype: Any) -> tuple[Any, Any, Any]:
    heads, groups, size, carried = shape
    generator = torch.Generator(DEVICE).manual_seed(sum(lengths))
    made = [
        torch.randn(sum(lengths), number, width, device=DEVICE, generator=generator).to(dtype).requires_grad_()
        for number, width in ((heads, size), (groups, size), (groups, carried))
    ]
    return made[0], made[1], made[2]


def bounds(lengths: list[int]) -> Any:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)


def off(found: Any, expected: Any) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def test_there_is_a_kernel() -> None:
    assert not why_not_flash(DEVICE)


@pytest.mark.parametrize(("lengths", "shape", "window"), list(product(LENGTHS, SHAPES, [None, 1, 33, 1000])))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_forward_and_backward(lengths: str, shape: str, window: int | None, dtype: Any) -> None:
    scale, cu = SHAPES[shape][2] ** -0.5, bounds(LENGTHS[lengths])
    q, k, v = tensors(LENGTHS[lengths], SHAPES[shape], dtype)
    found = flash(q, k, v, cu, max(LENGTHS[lengths]), scale=scale, window=window)
    exact = [tensor.detach().float().requires_grad_() for tensor in (q, k, v)]
    expected = per_document(exact[0], exact[1], exact[2], cu, scale=scale, window=window)
    weight = torch.randn_like(expected)
    (found.float() * weight).sum().backward()
    (expected * weight).sum().backward()
    limit = 8e-3 if dtype == torch.bfloat16 else 2e-3
    assert found.dtype == dtype
    assert off(found, expected) < limit
    for tensor, reference in zip((q, k, v), exact, strict=True):
        if float(reference.grad.norm()) > 1e-4:  # a window of one has no gradient of queries and keys
            assert off(tensor.grad, reference.grad) < 2 * limit


def test_other_documents_have_no_gradient_to_the_bit() -> None:
    lengths = [130, 70, 257]
    q, k, v = tensors(lengths, SHAPES["groups"], torch.bfloat16)
    flash(q, k, v, bounds(lengths), max(lengths), scale=0.1, window=128)[130:200].float().pow(2).sum().backward()
    for tensor in (q, k, v):
        assert not tensor.grad[:130].any()
        assert not tensor.grad[200:].any()
        assert tensor.grad[130:200].any()


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal = SimpleNamespace(), 0, True


def test_float32_is_refused_and_autocast_is_not() -> None:
    q, k, v = (tensor.detach().transpose(0, 1)[None] for tensor in tensors([5, 4], SHAPES["heads"], torch.float32))
    given = {"cu_seq_lens_q": bounds([5, 4]), "cu_seq_lens_k": bounds([5, 4]), "max_length_q": 5}
    with pytest.raises(AttentionError, match=r"torch.float32, and FlashAttention takes bf16"):
        packed_varlen(Layer(), q, k, v, None, **given)
    with torch.autocast("cuda", torch.bfloat16):
        found, _ = packed_varlen(Layer(), q, k, v, None, **given)
    q_flat, k_flat, v_flat = (one[0].transpose(0, 1) for one in (q, k, v))
    expected = per_document(q_flat, k_flat, v_flat, bounds([5, 4]), scale=q_flat.shape[-1] ** -0.5)
    assert found.dtype == torch.bfloat16
    assert off(found[0], expected) < 8e-3


def test_the_flash_kernel_is_in_the_profile() -> None:
    model = build("llama", dtype=torch.bfloat16).to(DEVICE)
    applied = use_packed(model)
    assert applied.name == NAME
    given = to_device(batch(200, 100, 77), DEVICE)
    model(**given).loss.backward()  # warm
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        model(**given).loss.backward()
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages() if str(event.device_type).endswith("CUDA")}
    flash = sorted(name for name in names if "flash" in name.lower() or "fmha" in name.lower())
    print("\n".join(flash))
    assert any("fwd" in name or "forward" in name for name in flash), sorted(names)
    assert any("bwd" in name or "backward" in name for name in flash), sorted(names)


@pytest.mark.parametrize(
    "kind",
    [
        "llama", "mistral", "qwen3", "qwen3_moe", "mixtral", "gemma3_text", "deepseek_v3", "stablelm", "gpt_oss",
        "gemma2",
    ],
)  # fmt: skip
def test_the_probe_in_bf16(kind: str) -> None:
    model = build(kind, dtype=torch.bfloat16).to(DEVICE)
    applied = use_packed(model)
    assert (applied.name, applied.kernel == LOOP) == (NAME, kind in ("gpt_oss", "gemma2"))
    report = probe(model, batch=batch(500, 40, 300))
    print(kind, applied.kernel, [(check.name, check.value, check.threshold) for check in report.checks])
    report.require()
    assert report.check("isolation").value == "0"  # type: ignore[union-attr]


def test_a_leak_in_bf16() -> None:
    model = build("llama", dtype=torch.bfloat16).to(DEVICE)
    report = probe(model, call=lambda batch: model(**with_default_cache(batch)))
    assert not report.check("isolation").passed  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_compiled_in_one_graph_for_any_length(kind: str) -> None:
    model = build(kind, dtype=torch.bfloat16).to(DEVICE)
    use_packed(model)
    batches = [
        to_device(batch(*lengths, seed=seed), DEVICE)
        for seed, lengths in enumerate([(40, 90), (33, 7, 120), (200,), (5, 6, 7, 8, 250)])
    ]
    expected = [model(**one).loss.item() for one in batches]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    for one, loss in zip(batches, expected, strict=True):
        found = compiled(**one).loss
        found.backward()
        assert found.item() == pytest.approx(loss, rel=1e-2)
    assert probe(compiled).require().isolated
    torch._dynamo.reset()
