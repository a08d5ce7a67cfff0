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
from packtrain.training.attention import BLOCK_NAME, NAME, survey, use_packed
from packtrain.training.attention.block_mask import packed_block_mask
from packtrain.training.attention.kernels import Call, Kernel
from packtrain.training.attention.per_document import per_document
from packtrain.training.attention.varlen import packed_varlen
from packtrain.training.batch import FixedShape, flatten
from packtrain.training.probe import StepGuard, compare_first_batch, probe
from packtrain.training.probe.documents import to_device

from tests.training.probe.architectures import build, row, with_default_cache

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


def kernels() -> list[Kernel]:
    return [kernel for kernel in survey(DEVICE) if kernel.usable] if CUDA else []


def tensors(lengths: list[int], shape: tuple[int, int, int, int], dtype: Any) -> tuple[Any, Any, Any]:
    heads, groups, size, carried = shape
    generator = torch.Generator(DEVICE).manual_seed(sum(lengths))
    made = [
        torch.randn(sum(lengths), number, width, device=DEVICE, generator=generator).to(dtype).requires_grad_()
        for number, width in ((heads, size), (groups, size), (groups, carried))
    ]
    return made[0], made[1], made[2]


def call_of(lengths: list[int], size: int, window: int | None) -> Call:
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
    return Call(cu, max(lengths), size**-0.5, window)


def off(found: Any, expected: Any) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def test_there_is_a_kernel() -> None:
    assert kernels(), [(kernel.name, kernel.reason) for kernel in survey(DEVICE)]


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("lengths", "shape", "window"), product(LENGTHS, SHAPES, [None, 1, 33, 1000]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_forward_and_backward(kernel: Kernel, lengths: str, shape: str, window: int | None, dtype: Any) -> None:
    size = SHAPES[shape][2]
    q, k, v = tensors(LENGTHS[lengths], SHAPES[shape], dtype)
    call = call_of(LENGTHS[lengths], size, window)
    assert kernel.run is not None
    try:
        found = kernel.run(q, k, v, call)
    except AttentionError as error:
        if "newer" not in str(error):
            raise
        pytest.skip(str(error))  # windows, of an old version
    exact = [tensor.detach().float().requires_grad_() for tensor in (q, k, v)]
    expected = per_document(exact[0], exact[1], exact[2], call.cu.tolist(), scale=call.scale, window=window)
    weight = torch.randn_like(expected)
    (found.float() * weight).sum().backward()
    (expected * weight).sum().backward()
    limit = 8e-3 if dtype == torch.bfloat16 else 2e-3
    assert found.dtype == dtype
    assert off(found, expected) < limit
    for tensor, reference in zip((q, k, v), exact, strict=True):
        if float(reference.grad.norm()) > 1e-4:  # a window of one has no gradient of queries and keys
            assert off(tensor.grad, reference.grad) < 2 * limit


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_other_documents_have_no_gradient_to_the_bit(kernel: Kernel) -> None:
    lengths = [130, 70, 257]
    q, k, v = tensors(lengths, SHAPES["groups"], torch.bfloat16)
    assert kernel.run is not None
    kernel.run(q, k, v, call_of(lengths, 128, None))[130:200].float().pow(2).sum().backward()
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
    call = call_of([5, 4], 64, None)
    given = {"cu_seq_lens_q": call.cu, "cu_seq_lens_k": call.cu, "max_length_q": 5}
    with pytest.raises(AttentionError, match=r"torch.float32, and FlashAttention takes bf16.*packed_block_mask"):
        packed_varlen(Layer(), q, k, v, None, **given)
    with torch.autocast("cuda", torch.bfloat16):
        found, _ = packed_varlen(Layer(), q, k, v, None, **given)
    expected, _ = packed_block_mask(Layer(), q, k, v, None, **given)
    assert found.dtype == torch.bfloat16
    assert off(found, expected) < 8e-3


def test_the_flash_kernel_is_in_the_profile() -> None:
    model = build("llama", dtype=torch.bfloat16).to(DEVICE)
    applied = use_packed(model)
    assert applied.name == NAME
    batch = to_device(flatten([row(200, 100, 77)]), DEVICE)
    model(**batch).loss.backward()  # warm
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        model(**batch).loss.backward()
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages() if str(event.device_type).endswith("CUDA")}
    flash = sorted(name for name in names if "flash" in name.lower() or "fmha" in name.lower())
    print("\n".join(flash))
    assert any("fwd" in name or "forward" in name for name in flash), sorted(names)
    assert any("bwd" in name or "backward" in name for name in flash), sorted(names)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", NAME), ("mistral", NAME), ("qwen3", NAME), ("qwen3_moe", NAME), ("mixtral", NAME),
        ("gemma3_text", NAME), ("deepseek_v3", NAME), ("llama4_text", NAME), ("stablelm", NAME),
        ("gpt_oss", BLOCK_NAME), ("gemma2", BLOCK_NAME),
    ],
)  # fmt: skip
@pytest.mark.parametrize("long", [False, True])
def test_the_probe_in_bf16(kind: str, name: str, long: bool) -> None:
    model = build(kind, dtype=torch.bfloat16).to(DEVICE)
    applied = use_packed(model)
    assert applied.name == name or (applied.name == BLOCK_NAME and "flash-attn" not in applied.kernel)
    report = probe(model, documents=(170, 230, 90) if long else (17, 23, 9))
    print(kind, applied.kernel, [(check.name, check.value, check.threshold) for check in report.checks])
    report.require()
    assert max(value for d, line in enumerate(report.influence) for e, value in enumerate(line) if d != e) == 0


def test_a_leak_in_bf16() -> None:
    model = build("llama", dtype=torch.bfloat16).to(DEVICE)
    report = probe(model, make=with_default_cache)
    assert not report.check("isolation").passed  # type: ignore[union-attr]
    assert "use_cache" in str(report.fault)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_compiled_in_one_graph_for_any_length(kind: str) -> None:
    model = build(kind, dtype=torch.bfloat16).to(DEVICE)
    use_packed(model)
    batches = [
        to_device(flatten([row(*lengths, seed=seed)]), DEVICE)
        for seed, lengths in enumerate([(40, 90), (33, 7, 120), (200,), (5, 6, 7, 8, 250)])
    ]
    expected = [model(**batch).loss.item() for batch in batches]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    for batch, loss in zip(batches, expected, strict=True):
        found = compiled(**batch).loss
        found.backward()
        assert found.item() == pytest.approx(loss, rel=1e-2)
    assert probe(compiled).require().isolated
    torch._dynamo.reset()


def test_steps_of_a_fixed_shape() -> None:
    model = build("llama", dtype=torch.bfloat16).to(DEVICE)
    use_packed(model)
    strips = [row(100, 31, 7), row(120, 1, 1)]
    fixed = flatten(strips, shape=FixedShape(length=256, docs=9))
    guard = StepGuard(model, probe(model).calls)
    with guard.step(fixed):
        loss = model(**to_device(fixed, DEVICE)).loss
    loss.backward()
    assert loss.item() == pytest.approx(model(**to_device(flatten(strips), DEVICE)).loss.item(), rel=1e-2)
    compare_first_batch(model, fixed).require()
