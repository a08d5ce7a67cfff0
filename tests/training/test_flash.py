"""The code that a GPU runs around torch's FlashAttention, on a CPU: a reference stands in for the kernel alone."""

import importlib.util
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as varlen
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention import kernels
from packtrain.training.attention.isolation_probe import probe
from packtrain.training.attention.kernels import FLASH, HALF, LOOP, flash, per_document, why_no_varlen, why_not_flash
from packtrain.training.attention.packed_attention import applied_on, use_packed
from packtrain.training.attention.varlen import NAME, packed_varlen

from tests.support.varlen_kernel import CALLS, flash_on_cpu
from tests.training.probe.architectures import batch, build

__all__ = ["flash_on_cpu"]  # a fixture
torch.set_num_threads(1)
LENGTHS = {"odd": [1, 27, 3, 40], "one": [33], "empty ones": [0, 5, 0, 20, 0]}
SHAPES = {
    "heads": (4, 4, 16, 16),
    "groups": (4, 2, 24, 24),
    "odd widths": (4, 2, 20, 12),
    "one key head": (6, 1, 8, 8),
}


def bounds(lengths: list[int]) -> Any:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def off(actual: Any, expected: Any) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", HALF)
def test_forward_and_backward_equal_the_loop(dtype: Any) -> None:
    limit = 1e-2 if dtype == torch.bfloat16 else 2e-3
    for lengths, (heads, groups, size, carried), window in product(
        LENGTHS.values(), SHAPES.values(), [None, 1, 7, 1000]
    ):
        torch.manual_seed(0)
        widths = ((heads, size), (groups, size), (groups, carried))
        halves = [torch.randn(sum(lengths), number, width).to(dtype).requires_grad_() for number, width in widths]
        exact = [tensor.detach().float().requires_grad_() for tensor in halves]
        cu, scale = bounds(lengths), size**-0.5
        out = flash(halves[0], halves[1], halves[2], cu, max(lengths), scale=scale, window=window)
        expected = per_document(exact[0], exact[1], exact[2], cu, scale=scale, window=window)
        out.float().pow(2).sum().backward()
        expected.pow(2).sum().backward()
        case = f"{lengths} {widths} {window}"
        assert out.dtype == dtype
        assert off(out, expected) < limit, case
        for tensor, reference in zip(halves, exact, strict=True):
            if float(reference.grad.norm()) > 1e-3:  # a window of one has no gradient of queries and keys
                assert off(tensor.grad, reference.grad) < 2 * limit, case


# Which kernel


def test_the_kernel_is_that_of_the_device_where_the_batch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is set before it moves: what is said for a device is what runs there."""
    monkeypatch.setitem(kernels._WHY_NOT, ("cuda", 0), "")
    model = build("llama")
    assert use_packed(model).kernel == LOOP
    assert applied_on(model, torch.device("cuda", 0)).kernel == FLASH
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delitem(kernels._WHY_NOT, ("cpu", None), raising=False)
    assert applied_on(model, torch.device("cpu")).reason == "the batch is on cpu"
    monkeypatch.delitem(kernels._WHY_NOT, ("cpu", None))
    capped = build("gemma2")
    use_packed(capped)
    assert applied_on(capped, torch.device("cuda", 0)).kernel == LOOP


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3_moe", "gemma3_text", "gemma2", "gpt_oss"])
@pytest.mark.usefixtures("flash_on_cpu")
def test_the_probe_in_bf16_by_the_kernel_that_is_said(kind: str) -> None:
    model = build(kind, dtype=torch.bfloat16)
    applied = use_packed(model)
    assert applied.name == NAME
    report = probe(model, batch=batch(40, 5, 33)).require()
    assert report.isolated
    assert (CALLS["forward"] > 0, CALLS["backward"] > 0) == ((applied.kernel == FLASH,) * 2)


@pytest.mark.usefixtures("flash_on_cpu")
def test_float32_is_refused_and_autocast_is_not() -> None:
    layer: Any = torch.nn.Module()
    layer.config, layer.layer_idx, layer.is_causal = SimpleNamespace(), 0, True
    q, k, v = (torch.randn(1, heads, 9, 16) for heads in (4, 2, 2))
    given = {"cu_seq_lens_q": bounds([5, 4]), "cu_seq_lens_k": bounds([5, 4]), "max_length_q": 5}
    with pytest.raises(AttentionError, match=r"torch.float32, and FlashAttention takes bf16"):
        packed_varlen(layer, q, k, v, None, **given)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = packed_varlen(layer, q, k, v, None, **given)
    expected = per_document(*(one[0].transpose(0, 1) for one in (q, k, v)), bounds([5, 4]), scale=0.25)
    assert out.dtype == torch.bfloat16
    assert off(out[0], expected) < 1e-2


@pytest.mark.usefixtures("flash_on_cpu")
def test_compiled_in_one_graph_for_rows_of_any_length() -> None:
    model = build("llama", dtype=torch.bfloat16).train()
    use_packed(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for lengths in [(40, 9), (33, 7, 12), (20,), (5, 6, 7, 8, 25), (11, 3)]:
        given = batch(*lengths)
        assert float(compiled(**given).loss) == pytest.approx(float(model(**given).loss), abs=1e-2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3


@pytest.mark.parametrize("compilation", [(False,), pytest.param((True,), marks=pytest.mark.slow)])
def test_the_script_for_a_gpu_runs(compilation: tuple[bool, ...]) -> None:
    """As a dry run, so that it does not rot: every row has its figures, or says why not."""
    spec = importlib.util.spec_from_file_location("measure", Path(__file__).parents[1] / "gpu" / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    measure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measure)
    cpu = torch.device("cpu")
    speeds = measure.speed(measure.SMALL, 64, cpu, peak=1e12, times=1, compilation=compilation)
    assert [row["layout"] for row in speeds] == ["unpacked"] + ["packed"] * 3
    kernels_here = {"none", "chunked"} if hasattr(torch.nn.functional, "linear_cross_entropy") else {"none"}
    assert all(row["tokens_per_second"] > 0 for row in speeds if row["loss_kernel"] in kernels_here)
    assert all(row["worst"] < 0.1 for row in measure.gradients(cpu) if row["loss_kernel"] in kernels_here)
    assert all("not_measured" in row for row in speeds if row["loss_kernel"] not in kernels_here)
    assert all(row["not_measured"] == "no CUDA device" for row in measure.kernels(cpu))
    assert measure.isolation(cpu)[0]["isolated"]
    assert "tokens_per_second" in measure.table("Speed", speeds)


# Signatures of torch's releases, as they stand in its wheels


def torch_2_10(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
    is_causal: bool = False, return_aux: Any = None,
) -> Any:  # fmt: skip
    raise AssertionError("it is not to be called")


def torch_2_11(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
) -> Any:  # fmt: skip
    """It checks no numbers of heads: its kernel repeats key heads by itself."""
    is_causal = window_size == (-1, 0)
    return torch.ops.torch_attn._varlen_attn(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, scale, list(window_size)
    )[0]


@pytest.mark.usefixtures("flash_on_cpu")
def test_torch_2_11_is_not_told_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(9, heads, 16).bfloat16() for heads in (4, 2, 2))
    expected = flash(q, k, v, bounds([5, 4]), 5, scale=0.25, window=3)
    monkeypatch.setattr(varlen, "varlen_attn", torch_2_11)
    assert why_no_varlen() == ""
    assert torch.equal(flash(q, k, v, bounds([5, 4]), 5, scale=0.25, window=3), expected)
    assert CALLS["forward"] == 2


def test_torch_2_10_takes_the_loop_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain.training.launch.doctor import report

    monkeypatch.setattr(varlen, "varlen_attn", torch_2_10)
    monkeypatch.setattr(kernels, "_WHY_NOT", {})
    monkeypatch.setattr(torch.version, "hip", "made to skip asking the device")
    assert "takes no scale or window_size; torch 2.11's does" in why_not_flash(torch.device("cuda", 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    lines: list[str] = []
    report(lines.append)
    assert any("takes no scale or window_size" in line and "note" in line for line in lines)
    assert any("no linear_cross_entropy" in line and "note" in line for line in lines)
