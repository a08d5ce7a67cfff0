"""`packed_block_mask`: attention over the whole row with a mask that ends at document bounds. Exact, and slow.

It computes and stores T² scores where `packed_varlen` computes Σℓ², so use it only where `packed_varlen` cannot work:
models that build their own masks (which are cut at the bounds here), soft-capped scores, sinks, float32 on CUDA, head
dimensions above 256, and GPUs before Ampere. torch has no fused kernel for softcap and sinks, so they are computed one
document after another.
"""

import weakref
from typing import Any

import torch
from torch.nn import functional

from ...schemas.errors import AttentionError
from . import BLOCK_NAME
from .bounds import Bounds, find_bounds, in_chunks
from .calls import count
from .layer import chunk_of, refuse, refuse_mask, who, window_of
from .per_document import per_document, restricted


def packed_block_mask(
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
    """Like `varlen.packed_varlen`, but accepts an `attention_mask` of shape (1, 1 or H, T, T), and cuts it at document
    bounds.

    Raises:
        AttentionError: dropout, a cache, attention that looks ahead, or no bounds.
    """
    count(module, value.dtype)
    refuse(module, query, key, dropout, is_causal, kwargs, known=("indices",))
    rows, _, length, _ = query.shape
    if attention_mask is not None and (rows != 1 or attention_mask.shape[-2:] != (length, length)):
        raise AttentionError(
            f"{who(module)}: a mask of shape {tuple(attention_mask.shape)} for {rows} rows of {length:,} tokens; "
            "packed batches have one row"
        )
    if (chosen := kwargs.get("indices")) is not None:
        attention_mask = _only(attention_mask, chosen, length)
    bounds = find_bounds(kwargs, rows, length, who(module))
    chunk = chunk_of(module)
    if chunk is not None:
        bounds = in_chunks(bounds, rows * length, chunk)
    window = window_of(module, sliding_window)
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))  # (B·T, H, E)
    if softcap is not None or s_aux is not None:
        own = None if attention_mask is None else attention_mask[0]
        out = _written_out(q, k, v, bounds.cu, scale=scaling, window=window, softcap=softcap, sinks=s_aux, mask=own)
    else:
        seen = _block(bounds, rows * length, window)
        mask = seen[None, None]
        if attention_mask is not None:
            mask = restricted(attention_mask, mask, q.dtype)
        heads = [tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v)]  # (1, H, B·T, E)
        out = functional.scaled_dot_product_attention(
            heads[0],
            heads[1],
            heads[2],
            attn_mask=mask,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        out = out.squeeze(0).transpose(0, 1)
    return out.unflatten(0, (rows, length)), None


def _only(mask: torch.Tensor | None, chosen: torch.Tensor, length: int) -> torch.Tensor:
    """Return the mask of sparse attention (DeepSeek V3.2): `indices`, (1, T, k), lists the tokens that each token
    attends to.

    If a token may see fewer than k others, `indices` also lists forbidden ones; the mask removes them.
    """
    picked = torch.zeros(*chosen.shape[:2], length, dtype=torch.bool, device=chosen.device)
    picked = picked.scatter(-1, chosen.long(), True).unsqueeze(1)  # (1, 1, T, T)
    if mask is None:
        return picked
    return restricted(mask, picked, mask.dtype)


def block_mask(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
    """Called by transformers to build the model's mask: bool (1, 1, T, T), causal, with windows and chunks.

    Raises:
        AttentionError: the batch has a mask.
    """
    from transformers.masking_utils import sdpa_mask

    refuse_mask(attention_mask, BLOCK_NAME)
    kwargs["allow_is_causal_skip"] = False
    mask: torch.Tensor = sdpa_mask(*args, attention_mask=None, **kwargs)
    return mask


def _block(bounds: Bounds, tokens: int, window: int | None) -> torch.Tensor:
    """Return (T, T), true where a token may attend. Cached, because every layer asks for the same mask."""
    if torch.compiler.is_compiling():
        return _build(bounds.cu, tokens, window)
    held = _LAST.get("cu")
    if held is None or held() is not bounds.cu or _LAST["version"] != bounds.cu._version:
        _LAST.update(cu=weakref.ref(bounds.cu), version=bounds.cu._version, masks={})
    masks: dict[tuple[int, int | None], torch.Tensor] = _LAST["masks"]
    if (tokens, window) not in masks:
        masks[tokens, window] = _build(bounds.cu, tokens, window)
    return masks[tokens, window]


_LAST: dict[str, Any] = {}


def _build(cu: torch.Tensor, tokens: int, window: int | None) -> torch.Tensor:
    here = torch.arange(tokens, device=cu.device, dtype=torch.int32)
    document = torch.searchsorted(cu, here, right=True)
    seen = (document[:, None] == document[None, :]) & (here[:, None] >= here[None, :])
    return seen if window is None else seen & (here[:, None] - here[None, :] < window)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Outside torch.compile, because the loop depends on the number of documents."""
    return per_document(query, key, value, cu.tolist(), **options)
