"""Sets the attention that ends at document bounds, `packed_varlen`, on a model.

It is registered with transformers by its name. Where a model cannot change its attention, transformers only warns and
keeps the old one, so the setting is read back from all configurations of the model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ...schemas.errors import AttentionError
from ..models.model_parts import attention_layers, unwrap
from .kernels import FLASH, LOOP, MAX_HEAD_DIM, why_not_flash
from .varlen import ANOTHER_MODEL, NAME, no_mask, packed_varlen

IMPLEMENTATIONS = ("auto", NAME, "flash_attention_2", "sdpa", "eager")
"""What `attention` may be. `use_packed` says what each does."""
_NEEDS_MASKS = "does not support FlashAttention, usually because its code changes the attention mask"


@dataclass(frozen=True, slots=True)
class Applied:
    """The attention that a model uses now."""

    name: str
    """Name of the attention in transformers."""
    kernel: str
    """What computes it."""
    reason: str
    """Why this attention and this kernel, as a clause."""


def use_packed(model: Any, implementation: str = "auto") -> Applied:
    """Set a model's attention to one that keeps packed documents apart.

    Args:
        model: a model of transformers, possibly wrapped by PEFT, DDP or torch.compile.
        implementation: `packed_varlen`, or `auto`, which leaves models that need masks of their own with their own
            attention. `flash_attention_2` (transformers' own, with the package flash-attn), `sdpa` and `eager` are set
            as given; the probe shows whether they keep documents apart.

    Returns:
        What computes attention where the model's weights are now; `applied_on` says it for another device.

    Raises:
        AttentionError: the model does not support this attention, or cannot change its attention; says which and why.
    """
    if implementation not in IMPLEMENTATIONS:
        raise AttentionError(f"attention: {implementation}: choose one of {', '.join(IMPLEMENTATIONS)}")
    # Asked here for every device, because compiled code can only look up an answer that was found before.
    for device in ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
        why_not_flash(torch.device(device))
    # NAME is "packed_varlen", by which transformers finds both functions.
    AttentionInterface.register(NAME, packed_varlen)
    AttentionMaskInterface.register(NAME, no_mask)
    inner = unwrap(model)
    if not hasattr(inner, "set_attn_implementation"):
        raise AttentionError(
            f"{type(inner).__name__} is not a model of transformers: it has no set_attn_implementation; "
            "load it with AutoModelForCausalLM"
        )
    needs_masks = not getattr(inner, "_supports_flash_attn", True)
    models_own = "sdpa" if getattr(inner, "_supports_sdpa", False) else "eager"
    if implementation == NAME and needs_masks:
        raise AttentionError(
            f"{type(inner).__name__} {_NEEDS_MASKS}, and {NAME} does not use masks; set attention: {models_own}"
        )
    if implementation == "auto":
        implementation = models_own if needs_masks else NAME
    _set(inner, implementation)
    return applied_on(inner, next((weight.device for weight in inner.parameters()), torch.device("cpu")))


def applied_on(model: Any, device: torch.device) -> Applied:
    """The attention that a model has, and what computes it for batches on a device. The kernel is chosen again in every
    call, by the device of the queries: a model may be moved after `use_packed`.
    """
    inner = unwrap(model)
    name = str(inner.config._attn_implementation)
    if name != NAME:
        needs_masks = not getattr(inner, "_supports_flash_attn", True)
        return Applied(name, "the model's own", f"it {_NEEDS_MASKS}" if needs_masks else "asked for")
    why_loop = why_not_flash(device) or _why_loop(inner)
    if why_loop:
        return Applied(NAME, LOOP, why_loop)
    return Applied(NAME, FLASH, f"torch {torch.__version__}")


def _why_loop(model: Any) -> str:
    """Why the loop must compute a model's attention where `flash` runs; empty if it need not."""
    for layer in attention_layers(model):
        softcap = getattr(layer, "attn_logit_softcapping", None)
        if softcap is not None:
            return f"its scores are soft-capped (attn_logit_softcapping={softcap:g})"
        # The layer's own, not the configuration's, because layers of a model may differ (Gemma 4).
        head_dim = getattr(layer, "head_dim", None)
        if isinstance(head_dim, int) and head_dim > MAX_HEAD_DIM:
            return f"its heads have {head_dim} dimensions, and FlashAttention takes at most {MAX_HEAD_DIM}"
    sinks = ("sinks", "sink", "attention_sink_bias")
    has_sinks = any(name.rsplit(".", 1)[-1] in sinks for name, _ in model.named_parameters())
    return "it has attention sinks" if has_sinks else ""


def _set(model: Any, name: str) -> None:
    """Call `set_attn_implementation`, and read the result back from every part that attends."""
    model_name = type(model).__name__
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError) as error:
        raise AttentionError(f"{model_name} does not take attention: {name}: {error}") from error
    # One layer of each class: a model has few classes, each with the configuration of its part of the model.
    layers = {type(layer).__name__: layer.config for layer in attention_layers(model)}
    for part, config in ({model_name: model.config} | layers).items():
        actual = getattr(config, "_attn_implementation", None)
        if actual != name:
            raise AttentionError(
                f"{model_name}: attention: {name} could not be set; {part} still has {actual!r}. It computes attention "
                f"in its own code, which ignores document bounds; {ANOTHER_MODEL}"
            )
