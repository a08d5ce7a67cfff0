"""Attention that ends at document bounds: `packed_varlen`, set on a model by `use_packed`.

transformers calls `packed_varlen` in every layer. It finds the bounds of the documents in the arguments of the layer, a
window in the layer's configuration, and computes attention by `kernels`. Where its result would be wrong it raises.

It is registered with transformers by its name. Where a model cannot change its attention, transformers only warns and
keeps the old one, so the setting is read back from all configurations of the model.

Legend: B rows (1 in a packed batch), T tokens, D documents, H query heads, G key heads, E head dimension, V value
dimension. Bounds are int32 (D + 1,), from 0 to T; empty documents, as in batches of a fixed shape, have equal ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ...schemas.errors import AttentionError
from .kernels import FLASH, HALF, LOOP, MOST_HEAD_DIM, KeyBounds, along, flash, per_document, why_not_flash

NAME = "packed_varlen"
IMPLEMENTATIONS = ("auto", NAME, "flash_attention_2", "sdpa", "eager")
UNPACKED = "take another model, or pad its documents with PackedLoader(unpacked=True)"
"""What to do with a model that cannot keep documents apart."""
_UNKNOWN = ("position_bias", "head_mask", "indices", "cache", "block_table", "alibi")
"""Arguments that change scores in ways that are not supported here."""
_WITHOUT_WINDOWS = ("moshi",)
"""Types of models with a window in their configuration that their code ignores."""
_MASKS = "does not support FlashAttention, usually because its code changes the attention mask"


# Setting it on a model


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

    Returns:
        What computes attention where the model's weights are now; `applied_on` says it for another device.

    Raises:
        AttentionError: the model does not support this attention, or cannot change its attention; says which and why.
    """
    if implementation not in IMPLEMENTATIONS:
        raise AttentionError(f"attention: {implementation}: choose one of {', '.join(IMPLEMENTATIONS)}")
    # Asked here, because compiled code can only read what is known already.
    for device in ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
        why_not_flash(torch.device(device))
    AttentionInterface.register(NAME, packed_varlen)
    AttentionMaskInterface.register(NAME, no_mask)
    bare = unwrap(model)
    if not hasattr(bare, "set_attn_implementation"):
        raise AttentionError(
            f"{type(bare).__name__} is not a model of transformers: it has no set_attn_implementation; "
            "load it with AutoModelForCausalLM"
        )
    own = "sdpa" if getattr(bare, "_supports_sdpa", False) else "eager"
    masks = "" if getattr(bare, "_supports_flash_attn", True) else _MASKS
    if implementation == NAME and masks:
        raise AttentionError(f"{type(bare).__name__} {masks}, and {NAME} does not use masks; set attention: {own}")
    name = implementation if implementation != "auto" else own if masks else NAME
    _set(bare, name)
    return applied_on(bare, next((weight.device for weight in bare.parameters()), torch.device("cpu")))


def applied_on(model: Any, device: torch.device) -> Applied:
    """The attention that a model has, and what computes it for batches on a device. The kernel is chosen again in every
    call, by the device of the queries: a model may be moved after `use_packed`.
    """
    bare = unwrap(model)
    name = str(bare.config._attn_implementation)
    if name != NAME:
        masks = "" if getattr(bare, "_supports_flash_attn", True) else f"it {_MASKS}"
        return Applied(name, "the model's own", masks or "asked for")
    reason = why_not_flash(device) or _why_loop(bare)
    return Applied(NAME, LOOP if reason else FLASH, reason or f"torch {torch.__version__}")


def attention_layers(model: torch.nn.Module) -> list[Any]:
    """The modules of self-attention that call transformers' attention interface, judged by their attributes."""
    names = {"is_causal", "layer_idx", "config"}
    return [one for one in model.modules() if names <= vars(one).keys() and vars(one)["is_causal"]]


def unwrap(model: Any) -> Any:
    """The model of transformers inside PEFT, DDP, FSDP or torch.compile."""
    return wrappers_of(model)[-1]


def wrappers_of(model: Any) -> list[Any]:
    """The model itself, then what it wraps, and so on; the last one is the model of transformers."""
    chain = [model]
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
            return chain
        chain.append(model)


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


# The function


def packed_varlen(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each document.

    Args:
        query, key, value: (B, H, T, E), (B, G, T, E), (B, G, T, V).
        attention_mask: must be None.
        softcap: c; scores s become c·tanh(s/c).
        s_aux: (H,), attention sinks.
        kwargs: `cu_seq_lens_q`, `cu_seq_lens_k` (int32 (D + 1,)), `max_length_q` (int), `position_ids` (B, T); of rows
            with branches, those of `branches.paths_of`.

    Returns:
        (B, T, H, V), and None in the place of attention weights.

    Raises:
        AttentionError: the layer needs something that this function does not compute, or there are no bounds.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    _refuse(module, query, key, attention_mask, dropout, causal, kwargs)
    rows, _, length, size = query.shape
    bounds, longest = find_bounds(kwargs, rows, length, _who(module))
    scale, window = size**-0.5 if scaling is None else float(scaling), window_of(module, sliding_window)
    plain = softcap is None and s_aux is None and max(size, value.shape[-1]) <= MOST_HEAD_DIM
    fast = plain and not why_not_flash(query.device)
    if fast:
        query, key, value = _in_half(module, query, key, value)
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))  # (B·T, H, E)
    key_bounds = None
    if (paths := kwargs.get("paths")) is not None:
        k = along(k, paths)
        v = along(v, paths)
        key_bounds = KeyBounds(kwargs["cu_paths"], kwargs["max_path"])
    if fast:
        out = flash(q, k, v, bounds, longest, scale=scale, window=window, key_bounds=key_bounds)
    else:
        out = per_document(
            q, k, v, bounds, scale=scale, window=window, softcap=softcap, sinks=s_aux, key_bounds=key_bounds
        )
    return out.unflatten(0, (rows, length)), None


def no_mask(*args: Any, attention_mask: torch.Tensor | None = None, use_vmap: bool = False, **kwargs: Any) -> None:
    """Called by transformers to build the mask for `packed_varlen`, which needs none.

    Args:
        attention_mask: (B, T), false at padding. One of ones is accepted, because BART and BioGPT make it themselves.

    Raises:
        AttentionError: the batch masks tokens, or the model adds its own conditions to the mask, which would be lost.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        raise AttentionError(
            f"{NAME} got an attention_mask with zeros. A packed batch has no mask, and no padding between documents: "
            "take the batches of PackedLoader. To generate, model.set_attn_implementation('sdpa')"
        )
    if use_vmap:
        raise AttentionError(
            f"this model adds its own conditions to the attention mask, and {NAME} does not use masks; set attention: "
            "sdpa or eager"
        )


def _in_half(module: torch.nn.Module, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cast to bf16 or fp16. Norms that stay in float32 (with PEFT, or of queries and keys) make some tensors
    float32.
    """
    halves = [tensor.dtype for tensor in tensors if tensor.dtype in HALF]
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        target = torch.get_autocast_dtype(device)
    else:
        target = next(iter(halves or (weight.dtype for weight in module.parameters() if weight.dtype in HALF)), None)
    if target not in HALF:
        raise AttentionError(
            f"{_who(module)}: queries are {tensors[0].dtype}, and FlashAttention takes bf16 and fp16; set bf16: true, "
            "load the model in bf16, or set attention: sdpa"
        )
    return tuple(tensor.to(target) for tensor in tensors)


# What a layer needs, and what is refused


def _who(module: torch.nn.Module) -> str:
    index = getattr(module, "layer_idx", None)
    return type(module).__name__ if index is None else f"{type(module).__name__} of layer {index}"


def _refuse(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    kwargs: Mapping[str, Any],
) -> None:
    """Raise AttentionError if attention within documents would differ from this layer's own."""
    unknown = next((name for name in _UNKNOWN if kwargs.get(name) is not None), None)
    if query.shape[2] != key.shape[2]:
        what = (
            f"{query.shape[2]:,} queries and {key.shape[2]:,} keys. Packed attention is for training: pass "
            "use_cache=False; to generate, model.set_attn_implementation('sdpa')"
        )
    elif dropout > 0 and module.training:
        what = (
            f"attention dropout {dropout:g}, which packed attention does not compute; set it to 0 in the model's "
            "config.json (attention_dropout, attn_pdrop or the like)"
        )
    elif not causal:
        what = f"it looks ahead (is_causal is false), but packed attention is causal; {UNPACKED}"
    elif unknown is not None:
        what = f"its attention takes {unknown}, which packed attention does not support; {UNPACKED}"
    elif mask is not None:
        what = (
            f"it makes its own attention mask, or the batch has one; {NAME} does not use masks. Leave attention_mask "
            "out of the batch; if the model makes it, set attention: sdpa or eager"
        )
    else:
        return
    raise AttentionError(f"{_who(module)}: {what}")


def window_of(module: torch.nn.Module, given: int | None) -> int | None:
    """The number of tokens that each token sees, including itself; None if it sees all earlier tokens.

    transformers expresses windows in the mask, and there is none here. Most layers also pass their window; for those
    that do not (Qwen2-MoE, PhiMoE) it is read from the configuration.

    Args:
        given: the window that the layer passes.
    """
    if given is not None:
        return int(given)
    config: Any = getattr(module, "config", None)
    own, common = getattr(module, "sliding_window", None), getattr(config, "sliding_window", None)
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is not None and index is not None and index < len(kinds):
        own = (common if own is None else own) if kinds[index] == "sliding_attention" else None
    else:
        own = common if own is None and getattr(config, "use_sliding_window", True) else own
        own = None if getattr(config, "model_type", None) in _WITHOUT_WINDOWS else own
    return int(own) if isinstance(own, int) and own > 0 else None


# Bounds


def find_bounds(kwargs: Mapping[str, Any], rows: int, length: int, who: str) -> tuple[torch.Tensor, int]:
    """The bounds in the arguments of a layer: `cu_seq_lens_q`, which most models pass to every layer; else derived from
    `position_ids` (StableLM and Nemotron drop the bounds).

    Args:
        kwargs: arguments of the attention function.
        rows, length: shape of the queries. Bounds of several rows are counted through all rows.
        who: the layer's name, for errors.

    Returns:
        int32 (D + 1,), where documents begin, then T, on the device of the queries; and the tokens of the longest
        document, or more: kernels cover so many tokens, and fewer would leave tokens out.

    Raises:
        AttentionError: there are neither bounds nor positions, or they do not match the number of tokens.
    """
    cu, cu_k, positions = (kwargs.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k", "position_ids"))
    if kwargs.get("paths") is not None:
        cu = kwargs["cu_pieces"]
        kwargs = {**kwargs, "max_length_q": kwargs["max_piece"]}
    if cu is not None:
        longest = kwargs.get("max_length_q")
        longest = int((cu[1:] - cu[:-1]).max()) if longest is None else longest
        if not isinstance(longest, int):  # reading a tensor waits; an int stays symbolic in compiled code
            longest = int(longest)
        wrong = rows != 1 or (cu_k is not None and cu_k is not cu and cu_k.shape != cu.shape)
        if not torch.compiler.is_compiling():  # as far as can be seen without waiting for a device
            wrong |= longest > length or (cu.device.type == "cpu" and int(cu[-1]) != length)
        if wrong:
            raise AttentionError(
                f"{who}: cu_seq_lens_q, cu_seq_lens_k and max_length_q are not those of this row of {length:,} tokens "
                f"({rows:,} rows came). Pass the batches of PackedLoader, or of collate, as they come; a device's part "
                "of a batch (context parallelism) needs attention that exchanges keys with the other devices"
            )
        return cu, longest
    if positions is None:
        raise AttentionError(
            f"{who}: attention got neither cu_seq_lens_q nor position_ids, so it cannot find where documents end. Pass "
            f"both to the model, as PackedLoader's batches do. If you did, this model drops them: {UNPACKED}"
        )
    positions = positions[0] if positions.ndim == 3 else positions  # several kinds, in image models: text is first
    if positions.shape[-1] != length:
        raise AttentionError(
            f"{who}: position_ids are for {positions.shape[-1]:,} tokens, but attention is over {length:,}; if there "
            "is a cache, pass use_cache=False"
        )
    # A document begins wherever positions do not increase by one; a row may begin within a document.
    positions = positions.expand(rows, -1)
    first = torch.ones_like(positions[:, :1], dtype=torch.bool)
    begins = torch.cat((first, positions[:, 1:] != positions[:, :-1] + 1), dim=1).reshape(-1)
    starts = begins.nonzero().reshape(-1)
    # A row may begin within a document. Within a row, only a branch begins above 0, and its batch has `paths`: a layer
    # without them belongs to a model that drops arguments.
    continues = (positions.reshape(-1)[starts] > 0) & (starts % length > 0)
    if bool(continues.any()):
        position = int(positions.reshape(-1)[starts[continues][0]])
        raise AttentionError(
            f"{who}: a piece begins at position {position:,}, but this layer got no `paths`: the model drops them, and "
            "would train without the shared tokens; pack with pack.share: none, or take PackedLoader(unpacked=True)"
        )
    cu = torch.cat((starts, torch.tensor([begins.numel()], device=starts.device))).to(torch.int32)
    return cu, int((cu[1:] - cu[:-1]).max())
