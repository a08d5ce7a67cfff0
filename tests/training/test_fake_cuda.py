"""CUDA as far as a CPU shows it: which kernel, in which dtype and on which device, and where the host would wait."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.kernels import FLASH, HALF, LOOP
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.targets import Targets, find_targets
from packtrain.training.trainer.heads import fuse_loss
from packtrain.training.trainer.loss import Forward
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from tests.support.fake_cuda import DEVICE, OperatorCalls, bf16_autocast, fake_cuda, put_on_device
from tests.training.probe.architectures import batch, build
from tests.training.trainer.tiny_models import needs_fused_loss

__all__ = ["fake_cuda"]  # a fixture
VARLEN = "torch_attn::_varlen_attn"
LENGTHS = (17, 40, 9)
BATCH = batch(*LENGTHS)
"""Made before there is a mode, in which it would have no values."""
TARGETS = find_targets(BATCH)
FLASH_MODELS = {"llama": -1, "mistral": 7, "qwen3": -1}
"""Models whose attention the kernel computes, and the tokens that each token sees before itself; -1 for all."""
WAITING_MODELS = {"gemma2": LOOP, "gpt_oss": LOOP, "stablelm": FLASH, "nemotron": FLASH}
"""Models in which the host waits for the device in every layer: bounds are read for the loop over documents, or found
in `position_ids`, because the model does not pass them on. docs/training.md says so.
"""


def model_and_batch(mode: Any, kind: str, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    with DEVICE:
        model = build(kind, dtype=dtype).train()
    inputs = {name: put_on_device(mode, value) for name, value in BATCH.items()}
    return model, inputs


def forward(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
    return logits


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("kind", FLASH_MODELS)
def test_the_kernel_gets_half_precision_and_bounds_without_waiting(fake_cuda: Any, kind: str, dtype: Any) -> None:
    """The forward pass reads no value on the host. A model in float32 is trained with autocast."""
    model, inputs = model_and_batch(fake_cuda, kind, dtype)
    assert use_packed(model).kernel == FLASH
    with bf16_autocast() if dtype == torch.float32 else nullcontext(), OperatorCalls(VARLEN) as kernel:
        logits = forward(model, inputs)
    assert logits.device == DEVICE
    assert len(kernel.arguments) == model.config.num_hidden_layers
    for query, key, value, bounds, _, longest, *_ in kernel.arguments:
        assert {tensor.device for tensor in (query, key, value, bounds)} == {DEVICE}
        expected = torch.bfloat16 if dtype == torch.float32 else dtype
        assert {tensor.dtype for tensor in (query, key, value)} == {expected}
        assert bounds.dtype == torch.int32
        assert query.shape[:2] == (sum(LENGTHS), model.config.num_attention_heads)
        assert key.shape[1] == model.config.num_key_value_heads
        assert longest == max(LENGTHS)
    windows = {tuple(arguments[9]) for arguments in kernel.arguments}
    assert windows == {(FLASH_MODELS[kind], 0)}


def test_float32_without_autocast_is_refused(fake_cuda: Any) -> None:
    model, inputs = model_and_batch(fake_cuda, "llama", torch.float32)
    use_packed(model)
    with pytest.raises(AttentionError, match="set bf16: true"):
        forward(model, inputs)


def test_a_card_before_ampere_takes_the_loop(fake_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *args: (7, 5))
    model, _ = model_and_batch(fake_cuda, "llama", torch.bfloat16)
    applied = use_packed(model)
    assert applied.kernel == LOOP
    assert "older than Ampere" in applied.reason


@pytest.mark.parametrize("kind", WAITING_MODELS)
def test_which_models_wait_for_the_device(fake_cuda: Any, kind: str) -> None:
    model, inputs = model_and_batch(fake_cuda, kind, torch.bfloat16)
    assert use_packed(model).kernel == WAITING_MODELS[kind]
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        forward(model, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param("auto", "chunked", marks=needs_fused_loss),
        pytest.param("chunked", "chunked", marks=needs_fused_loss),
        ("none", None),
    ],
)
def test_the_loss_stays_on_the_device(fake_cuda: Any, dtype: Any, kind: str, name: str | None) -> None:
    """Fused or not, with its gradient, in float32; the host does not wait for it."""
    model, inputs = model_and_batch(fake_cuda, "llama", dtype)
    use_packed(model)
    fused = fuse_loss(model, kind, cuda=True)
    assert (None if fused is None else fused.name) == name
    loss_of = Forward(model, fused=fused)
    loss_of._is_compared = True  # the comparison before the first step reads both losses
    on_device = Targets(put_on_device(fake_cuda, TARGETS.index), put_on_device(fake_cuda, TARGETS.tokens))
    units = torch.tensor(5.0, device=DEVICE)
    with bf16_autocast() if dtype == torch.float32 else nullcontext():
        loss = loss_of.loss(model, inputs, on_device, units, share=1.0)
    assert (loss.device, loss.dtype, loss.shape) == (DEVICE, torch.float32, ())
    assert loss.requires_grad
