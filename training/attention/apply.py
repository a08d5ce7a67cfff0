"""Sets packed attention on a model, and makes sure that it is set.

If a model cannot change its attention, transformers only warns and keeps the old one. So the setting is read back from
the configuration and all configurations within it.
"""

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import AttentionError, ConfigError
from . import BLOCK_NAME, NAME
from .calls import attention_layers
from .kernels import MOST_HEAD_DIM, PER_DOCUMENT, Kernel, choose, choose_ahead

IMPLEMENTATIONS = ("auto", NAME, BLOCK_NAME, "sdpa", "eager")
_SLOW = "it computes all T² scores of a row of T tokens, also between documents, and stores a mask of the same size"


@dataclass(frozen=True, slots=True)
class Applied:
    """The attention that a model uses now."""

    name: str
    """Name of the attention in transformers."""
    kernel: str
    """The kernel that computes the attention."""
    reason: str
    """Why this kernel or implementation was chosen."""
    cost: str
    """The cost beyond attention within documents, in words; empty if there is none."""


def register() -> None:
    """Register both functions with transformers. Calling it again changes nothing.

    Raises:
        ConfigError: transformers is not installed, or too old.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ConfigError(
            f"packed attention needs transformers 4.53 or newer: {error}; pip install -U transformers"
        ) from None
    from .block_mask import block_mask, packed_block_mask
    from .varlen import no_mask, packed_varlen

    choose_ahead()
    AttentionInterface.register(NAME, packed_varlen)
    AttentionInterface.register(BLOCK_NAME, packed_block_mask)
    AttentionMaskInterface.register(NAME, no_mask)
    AttentionMaskInterface.register(BLOCK_NAME, block_mask)


def use_packed(model: Any, implementation: str = "auto") -> Applied:
    """Set a model's attention to one that keeps packed documents apart.

    Args:
        model: a model of transformers, possibly wrapped by PEFT, DDP or torch.compile.
        implementation: `packed_varlen`, `packed_block_mask`, or `auto`, which takes the first if the model and the
            device allow it. `sdpa` and `eager` are set as given; run the probe to see whether they keep documents
            apart.

    Raises:
        AttentionError: the model does not support this attention, or cannot change its attention; the message says
        which and why.
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
    device = next((weight.device for weight in bare.parameters()), torch.device("cpu"))
    why = ""
    if implementation == "auto":
        implementation, why = _choose(bare, device)
    elif implementation == NAME and (needs := what_varlen_cannot(bare, device)):
        raise AttentionError(
            f"{type(bare).__name__}: {needs}, so attention: {NAME} cannot be used; set attention: {BLOCK_NAME}, or auto"
        )
    _set(bare, implementation)
    if implementation == NAME:
        kernel = choose(device)
        cost = "a loop over documents" if kernel.name == PER_DOCUMENT else ""
        return Applied(NAME, kernel.name, why or kernel.reason, cost)
    if implementation == BLOCK_NAME:
        return Applied(BLOCK_NAME, "SDPA, block mask", why or "asked for", _SLOW)
    return Applied(implementation, implementation, "asked for", _SLOW)


def unwrap(model: Any) -> Any:
    """Return the model of transformers inside PEFT, DDP, FSDP or torch.compile."""
    while True:
        if hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):  # PEFT
            model = model.get_base_model()
        elif isinstance(vars(model).get("_modules", {}).get("module"), torch.nn.Module):  # DDP, DeepSpeed
            model = model.module
        elif isinstance(vars(model).get("_modules", {}).get("_fsdp_wrapped_module"), torch.nn.Module):  # FSDP 1
            model = model._fsdp_wrapped_module
        else:
            return model


def what_varlen_cannot(model: Any, device: torch.device) -> str:
    """Say why variable-length kernels cannot compute a model's attention; empty if no reason is known."""
    kernel = _kernel(device)
    for layer in attention_layers(model):
        cap = getattr(layer, "attn_logit_softcapping", None)
        if cap is not None and not (kernel is not None and kernel.softcap):
            return f"its scores are soft-capped (attn_logit_softcapping={cap:g})"
        size = getattr(layer, "head_dim", None)  # of the layer, because layers of a model may differ (Gemma 4)
        if device.type == "cuda" and isinstance(size, int) and size > MOST_HEAD_DIM:
            return f"its heads have {size} dimensions, and FlashAttention takes at most {MOST_HEAD_DIM}"
    kinds = {kind for config in configs_of(model.config) for kind in getattr(config, "layer_types", None) or ()}
    if not getattr(model, "_supports_flash_attn", True) and "chunked_attention" not in kinds:
        return "it does not support FlashAttention, usually because its code changes the attention mask"
    if any(name.rsplit(".", 1)[-1] in ("sinks", "sink", "attention_sink_bias") for name, _ in model.named_parameters()):
        return "it has attention sinks"
    return ""


def configs_of(config: Any) -> list[Any]:
    """Yield a configuration and all configurations within it."""
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
        name = str(getattr(one, "_attn_implementation", None))
        if "/" in name:
            raise ConfigError(
                f"{where} wants attention from elsewhere, {name!r}; code that a model's folder names is not run: "
                "remove the key attn_implementation"
            )


def _choose(model: Any, device: torch.device) -> tuple[str, str]:
    if needs := what_varlen_cannot(model, device):
        return BLOCK_NAME, needs
    try:
        choose(device)
    except AttentionError as error:
        return BLOCK_NAME, str(error)
    return NAME, ""


def _kernel(device: torch.device) -> Kernel | None:
    try:
        return choose(device)
    except AttentionError:
        return None


def _set(model: Any, name: str) -> None:
    """Call `set_attn_implementation` and check the result."""
    who = type(model).__name__
    with _messages() as said:
        try:
            model.set_attn_implementation(name)
        except (ValueError, ImportError) as error:
            raise AttentionError(f"{who} does not take attention: {name}: {error}") from error
    parts = {type(module).__name__: module.config for module in model.modules() if _decodes(module)}
    for part, config in ({who: model.config} | parts).items():
        found = getattr(config, "_attn_implementation", None)
        if found != name:
            raise AttentionError(
                f"{who}: attention: {name} could not be set; {part} still has {found!r}. It computes attention in its "
                "own code, which ignores document bounds"
                + (
                    f" (transformers says: {said.getvalue().strip().splitlines()[0]})"
                    if said.getvalue().strip()
                    else ""
                )
                + ". Take another model, or pad its documents with PackedLoader(unpacked=True)"
            )


def _decodes(module: Any) -> bool:
    """Whether a module is itself a causal attention layer."""
    return hasattr(module, "config") and hasattr(module, "layer_idx") and getattr(module, "is_causal", False) is True


@contextlib.contextmanager
def _messages() -> Iterator[io.StringIO]:
    """Capture the messages that transformers logs instead of printing them; our error is clearer."""
    logger, text = logging.getLogger("transformers"), io.StringIO()
    handler = logging.StreamHandler(text)
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield text
    finally:
        logger.handlers = before
