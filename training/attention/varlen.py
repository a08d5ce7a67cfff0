"""`packed_varlen`: the attention function that transformers calls in every layer, on variable-length FlashAttention.

Legend: B rows (1 in a packed batch), T tokens, H query heads, G key heads, E head dimension, V value dimension.
"""

from typing import Any

import torch

from ...schemas.errors import AttentionError
from . import NAME
from .bounds import find_bounds, in_chunks
from .calls import count
from .kernels import HALF, PER_DOCUMENT, Call, chosen
from .layer import chunk_of, refuse, refuse_mask, who, window_of


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
        kwargs: `cu_seq_lens_q`, `cu_seq_lens_k` (int32 (D + 1,)), `max_length_q` (int), `position_ids` (B, T).

    Returns:
        (B, T, H, V), and None in the place of attention weights.

    Raises:
        AttentionError: the layer needs something that this function does not compute.
    """
    count(module, value.dtype)
    refuse(module, query, key, dropout, is_causal, kwargs)
    if attention_mask is not None:
        raise AttentionError(
            f"{who(module)} makes its own attention mask, or the batch has one; {NAME} does not use masks. Leave "
            "attention_mask out of the batch; if the model makes it, set attention: packed_block_mask"
        )
    kernel = chosen(query.device)
    if s_aux is not None or (softcap is not None and not kernel.softcap):
        what = "attention sinks" if s_aux is not None else f"soft-capped scores ({softcap:g})"
        raise AttentionError(
            f"{who(module)} has {what}, which {kernel.name} does not compute; set attention: packed_block_mask (or "
            "auto), which is exact and slow"
        )
    rows, _, length, size = query.shape
    bounds = find_bounds(kwargs, rows, length, who(module))
    chunk = chunk_of(module)
    if chunk is not None:
        bounds = in_chunks(bounds, rows * length, chunk)
    call = Call(
        cu=bounds.cu,
        longest=bounds.longest,
        scale=size**-0.5 if scaling is None else float(scaling),
        window=window_of(module, sliding_window),
        softcap=softcap,
    )
    if query.device.type == "cuda":
        query, key, value = _in_half(module, query, key, value)
    # (B, H, T, E) → (B·T, H, E): of one row, a view
    flat = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)]
    assert kernel.run is not None
    run = _by_hand if kernel.name == PER_DOCUMENT else kernel.run
    out = run(flat[0], flat[1], flat[2], call)
    return out.unflatten(0, (rows, length)), None


def no_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *args: Any,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> None:
    """Called by transformers to build the mask for `packed_varlen`, which needs no mask.

    Raises:
        AttentionError: the batch has a mask, or the model adds its own conditions to it, which would be lost.
    """
    refuse_mask(attention_mask, NAME)
    if use_vmap:
        raise AttentionError(
            f"this model adds its own conditions to the attention mask, and {NAME} does not use masks; set attention: "
            "packed_block_mask, which is exact and slow"
        )


def _in_half(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cast to bf16 or fp16. Norms that stay in float32 (with PEFT, or of queries and keys) make some tensors
    float32.
    """
    kinds = {tensor.dtype for tensor in (query, key, value)}
    if len(kinds) == 1 and query.dtype in HALF:
        return query, key, value
    halves = [kind for kind in kinds if kind in HALF]
    if torch.is_autocast_enabled("cuda"):
        target = torch.get_autocast_dtype("cuda")
    elif halves:
        target = halves[0]
    else:
        target = next((weight.dtype for weight in module.parameters() if weight.dtype in HALF), query.dtype)
    if target not in HALF:
        raise AttentionError(
            f"{who(module)}: queries are {query.dtype}, and FlashAttention takes bf16 and fp16; set bf16: true, load "
            "the model in bf16, or set attention: packed_block_mask"
        )
    return query.to(target), key.to(target), value.to(target)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call) -> torch.Tensor:
    """Runs outside torch.compile, because the loop depends on the number of documents."""
    run = chosen(query.device).run
    assert run is not None
    return run(query, key, value, call)
