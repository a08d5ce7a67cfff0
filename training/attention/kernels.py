"""What computes attention within documents: torch's variable-length FlashAttention, or a loop over the documents.

`flash` is for CUDA devices from Ampere on, in bf16 or fp16. `per_document` is the reference: exact on any device and in
any dtype. Documents share nothing in it, not even a matrix multiplication, so the gradient of one with respect to
another is exactly zero. Its price is a loop in Python.

`flash` calls `varlen_attn` of torch 2.11 or newer. Read in the wheels: 2.10's takes neither `scale` nor `window_size`.
2.11's takes both but no `enable_gqa`, and passes any number of key heads on to `aten::_flash_attention_forward`, which
repeats them itself; a check of `enable_gqa` came later.

Legend: T tokens, D documents, H query heads, G key heads (H a multiple of G), E head dimension, V value dimension, L
tokens of a document. Bounds are D + 1 numbers from 0 to T that never decrease; empty documents cost nothing.
"""

import inspect
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from ...schemas.errors import AttentionError

MOST_HEAD_DIM = 256
HALF = (torch.bfloat16, torch.float16)
FLASH, LOOP = "torch's varlen FlashAttention", "a loop over documents"
"""Names of what computes attention."""
_WHY_NOT: dict[tuple[str, int | None], str] = {}


def why_not_flash(device: torch.device) -> str:
    """Why `flash` does not run on a device; empty if it does. Compiled code may call it, once it has been asked."""
    key = (device.type, device.index)
    if key in _WHY_NOT:
        return _WHY_NOT[key]
    why = ""
    if device.type != "cuda":
        why = f"the batch is on {device.type}" if torch.cuda.is_available() else "no CUDA device"
    if not why and torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        why = f"{torch.cuda.get_device_name(device)} is older than Ampere (sm80), which FlashAttention needs"
    if not why:
        why = why_no_varlen()
    return _WHY_NOT.setdefault(key, why)


def why_no_varlen() -> str:
    """What this torch's variable-length attention lacks; empty if nothing."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no variable-length attention; torch 2.11 has"
    lacking = sorted({"scale", "window_size"} - _options(varlen_attn))
    if not lacking:
        return ""
    return (
        f"the variable-length attention of torch {torch.__version__} takes no {' or '.join(lacking)}; torch 2.11's does"
    )


@cache
def _options(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_told_of_groups() -> bool:
    """Whether `varlen_attn` must be told that there are fewer key heads than query heads."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in _options(varlen_attn)


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu: torch.Tensor,
    longest: int,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention within each document, by torch's kernel.

    Args:
        query, key, value: (T, H, E), (T, G, E), (T, G, V) in bf16 or fp16; E and V at most `MOST_HEAD_DIM`.
        cu: int32 (D + 1,), the bounds, on the device.
        longest: tokens of the longest document, or more.
        window: the number of tokens that each token sees, including itself; None for all earlier ones.

    Returns:
        (T, H, V).
    """
    from torch.nn.attention.varlen import varlen_attn

    head, carried = query.shape[-1], value.shape[-1]
    # The kernel takes one width for all, a multiple of 8. Zeros change no score, and are cut off the result.
    width = -(-max(head, carried) // 8) * 8
    query, key = functional.pad(query, (0, width - head)), functional.pad(key, (0, width - head))
    grouped = {"enable_gqa": query.shape[1] != key.shape[1]} if _is_told_of_groups() else {}
    out: torch.Tensor = varlen_attn(
        query,
        key,
        functional.pad(value, (0, width - carried)),
        cu,
        cu,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **grouped,
    )
    return out[..., :carried]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def per_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention within each document, one after another. Outside torch.compile, because the loop depends on the
    number of documents.

    Args:
        query, key, value: (T, H, E), (T, G, E), (T, G, V).
        cu: int32 (D + 1,), the bounds.
        window: the number of tokens that each token sees, including itself.
        softcap: c; scores s become c·tanh(s/c).
        sinks: (H,), scores that take part in the softmax but carry no value.

    Returns:
        (T, H, V).

    Raises:
        AttentionError: the bounds are those of another number of tokens.
    """
    bounds = cu.tolist()
    if bounds[0] != 0 or bounds[-1] != len(query):
        raise AttentionError(
            f"cu_seq_lens_q goes from {bounds[0]:,} to {bounds[-1]:,}, but there are {len(query):,} tokens"
        )
    lengths = [end - begin for begin, end in pairwise(bounds)]
    # Each tensor is split once, so that the backward pass joins gradients once.
    parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
    pieces = [
        _attend(*part, scale=scale, window=window, softcap=softcap, sinks=sinks) for part in parts if len(part[0])
    ]
    return torch.cat(pieces) if pieces else query.new_zeros(0, query.shape[1], value.shape[2])


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One document: (L, H, E), (L, G, E), (L, G, V) → (L, H, V)."""
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # (1, H, L, E)
    grouped = q.shape[1] != k.shape[1]
    mask: Any = None  # (L, L), true where a token may look
    if softcap is not None or sinks is not None or (window is not None and window < len(query)):
        here = torch.arange(len(query), device=query.device)
        back = here[:, None] - here[None, :]
        mask = (back >= 0) & (back < (len(query) if window is None else window))
    if softcap is None and sinks is None:
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    else:  # written out, in float32 or better, because torch has no fused kernel with softcap or sinks
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        scores = (q @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32)) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            column = sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(-1, -1, scores.shape[2], 1)
            scores = torch.cat((scores, column), dim=-1)
        out = torch.softmax(scores, dim=-1)[..., : len(query)].to(v.dtype) @ v
    return out.squeeze(0).transpose(0, 1)
