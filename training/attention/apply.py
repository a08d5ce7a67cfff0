"""Sets attention that ends at document bounds on a model, and makes sure that it is set.

`packed_varlen` is registered with transformers by that name. Where a model cannot change its attention, transformers
only warns and keeps the old one, so the setting is read back from all configurations of the model.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import AttentionError, ConfigError
from .kernels import FLASH, LOOP, MOST_HEAD_DIM, why_not_flash
from .varlen import NAME, UNPACKED, no_mask, packed_varlen

IMPLEMENTATIONS = ("auto", NAME, "flash_attention_2", "sdpa", "eager")


@dataclass(frozen=True, slots=True)
class Applied:
    """The attention that a model uses now."""

    name: str
    """Name of the attention in transformers."""
    kernel: str
    """What computes it."""
    reason: str
    """Why."""


def use_packed(model: Any, implementation: str = "auto") -> Applied:
    """Set a model's attention to one that keeps packed documents apart.

    Args:
        model: a model of transformers, possibly wrapped by PEFT, DDP or torch.compile.
        implementation: `packed_varlen`, or `auto`, which leaves models that need masks of their own with their own
            attention. `flash_attention_2` (transformers' own, with the package flash-attn), `sdpa` and `eager` are set
            as given; the probe shows whether they keep documents apart.

    Raises:
        AttentionError: the model does not support this attention, or cannot change its attention; says which and why.
    """
    if implementation not in IMPLEMENTATIONS:
        raise AttentionError(f"attention: {implementation}: choose one of {', '.join(IMPLEMENTATIONS)}")
    register()
    bare = unwrap(model)
    if not hasattr(bare, "set_attn_implementation"):
        raise AttentionError(
            f"{type(bare).__name__} is not a model of transformers: it has no set_attn_implementation; "
            "load it with AutoModelForCausalLM"
        )
    own = "sdpa" if getattr(bare, "_supports_sdpa", False) else "eager"
    masks = _needs_masks(bare)
    if implementation == NAME and masks:
        raise AttentionError(f"{type(bare).__name__} {masks}, and {NAME} does not use masks; set attention: {own}")
    name = implementation if implementation != "auto" else own if masks else NAME
    _set(bare, name)
    if name == NAME:
        device = next((weight.device for weight in bare.parameters()), torch.device("cpu"))
        reason = why_not_flash(device) or _why_loop(bare)
        return Applied(NAME, LOOP if reason else FLASH, reason or f"torch {torch.__version__}")
    return Applied(name, "the model's own", f"it {masks}" if masks else "asked for")


def register() -> None:
    """Register the function with transformers. Calling it again changes nothing.

    Raises:
        ConfigError: transformers is not installed, or too old.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ConfigError(f"packed attention needs transformers: {error}; pip install -U transformers") from None
    # Asked here, because compiled code can only read what is known already.
    for device in ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
        why_not_flash(torch.device(device))
    AttentionInterface.register(NAME, packed_varlen)
    AttentionMaskInterface.register(NAME, no_mask)


def attention_layers(model: torch.nn.Module) -> list[Any]:
    """The modules of self-attention that call transformers' attention interface, judged by their attributes."""
    names = {"is_causal", "layer_idx", "config"}
    return [one for one in model.modules() if names <= vars(one).keys() and vars(one)["is_causal"]]


def unwrap(model: Any) -> Any:
    """The model of transformers inside PEFT, DDP, FSDP or torch.compile."""
    while True:
        inner = vars(model).get("_modules", {})
        if hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):  # PEFT
            model = model.get_base_model()
        elif isinstance(inner.get("module"), torch.nn.Module):  # DDP, DeepSpeed
            model = model.module
        elif isinstance(inner.get("_fsdp_wrapped_module"), torch.nn.Module):  # FSDP 1
            model = model._fsdp_wrapped_module
        else:
            return model


def configs_of(config: Any) -> list[Any]:
    """A configuration and all configurations within it."""
    found: list[Any] = []
    waiting = [config]
    while waiting:
        one = waiting.pop()
        if one is None or any(one is other for other in found):
            continue
        found.append(one)
        waiting += [getattr(one, name, None) for name in getattr(one, "sub_configs", {})]
    return found


def refuse_foreign_attention(config: Any, where: object) -> None:
    """Refuse a configuration that names attention of a hub, which transformers would fetch and run.

    Args:
        where: the file, for the message.

    Raises:
        ConfigError: as said.
    """
    for one in configs_of(config):
        if "/" in (name := str(getattr(one, "_attn_implementation", None))):
            raise ConfigError(
                f"{where} wants attention from elsewhere, {name!r}; code that a model's folder names is not run: "
                "remove the key attn_implementation"
            )


def _needs_masks(model: Any) -> str:
    """Why a model must build its own masks; empty if `packed_varlen` can serve it."""
    if getattr(model, "_supports_flash_attn", True):
        return ""
    return "does not support FlashAttention, usually because its code changes the attention mask"


def _why_loop(model: Any) -> str:
    """Why the loop must compute a model's attention where `flash` runs; empty if it need not."""
    for layer in attention_layers(model):
        if (cap := getattr(layer, "attn_logit_softcapping", None)) is not None:
            return f"its scores are soft-capped (attn_logit_softcapping={cap:g})"
        # Of the layer, because layers of a model may differ (Gemma 4).
        if isinstance(size := getattr(layer, "head_dim", None), int) and size > MOST_HEAD_DIM:
            return f"its heads have {size} dimensions, and FlashAttention takes at most {MOST_HEAD_DIM}"
    sinks = ("sinks", "sink", "attention_sink_bias")
    found = any(name.rsplit(".", 1)[-1] in sinks for name, _ in model.named_parameters())
    return "it has attention sinks" if found else ""


def _set(model: Any, name: str) -> None:
    """Call `set_attn_implementation`, and read the result back from every part that attends."""
    who = type(model).__name__
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError) as error:
        raise AttentionError(f"{who} does not take attention: {name}: {error}") from error
    parts = {type(layer).__name__: layer.config for layer in attention_layers(model)}
    for part, config in ({who: model.config} | parts).items():
        found = getattr(config, "_attn_implementation", None)
        if found != name:
            raise AttentionError(
                f"{who}: attention: {name} could not be set; {part} still has {found!r}. It computes attention in its "
                f"own code, which ignores document bounds; {UNPACKED}"
            )
