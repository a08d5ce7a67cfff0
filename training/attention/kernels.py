"""What computes attention within documents: torch's variable-length FlashAttention, or a loop over the documents.

`flash` is for CUDA devices from Ampere on, in bf16 or fp16. `per_document` is the reference: exact on any device and in
any dtype. Documents share nothing in it, not even a matrix multiplication, so the gradient of one with respect to
another is exactly zero. Its price is a loop in Python.

Legend: T tokens, D documents, H query heads, G key heads (H a multiple of G), E head dimension, V value dimension, L
tokens of a document. Bounds are D + 1 numbers from 0 to T that never decrease; empty documents cost nothing.
"""

import importlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

MOST_HEAD_DIM = 256
HALF = (torch.bfloat16, torch.float16)
LOOP = "a loop over documents"
_WHY_NOT: dict[tuple[str, int | None], str] = {}


def why_not_flash(device: torch.device) -> str:
    """Why `flash` does not run on a device; empty if it does. Compiled code may call it."""
    key = (device.type, device.index)
    if key not in _WHY_NOT:
        _WHY_NOT[key] = _look(device)
    return _WHY_NOT[key]


def flash_name() -> str:
    """The name of torch's kernel, with the implementation that is active in this process."""
    active = getattr(importlib.import_module("torch.nn.attention"), "current_flash_attention_impl", lambda: None)()
    return f"torch varlen ({active or 'FA2'})"


def _look(device: torch.device) -> str:
    if device.type != "cuda":
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8 and torch.version.hip is None:
        return f"{torch.cuda.get_device_name(device)} is sm{major}{minor}, and FlashAttention needs sm80 (Ampere)"
    try:
        importlib.import_module("torch.nn.attention.varlen")
    except ImportError as error:
        return f"torch {torch.__version__} has no variable-length attention ({error})"
    return ""


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
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[..., :carried]


def per_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: Sequence[int],
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention within each document, one after another.

    Args:
        query, key, value: (T, H, E), (T, G, E), (T, G, V).
        scale: scale of the scores; by default 1/√E.
        window: the number of tokens that each token sees, including itself.
        softcap: c; scores s become c·tanh(s/c).
        sinks: (H,), scores that take part in the softmax but carry no value.

    Returns:
        (T, H, V).
    """

    plain = softcap is None and sinks is None

    def one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # (1, H, L, E)
        whole = plain and (window is None or window >= len(query))
        seen = None if whole else _causal(len(query), window, query.device)
        if plain:
            grouped = q.shape[1] != k.shape[1]
            out: torch.Tensor = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, is_causal=whole, scale=scale, enable_gqa=grouped
            )
        else:
            out = _written_out(q, k, v, seen, q.shape[-1] ** -0.5 if scale is None else scale, softcap, sinks)
        return out.squeeze(0).transpose(0, 1)

    lengths = [end - begin for begin, end in pairwise(bounds)]
    # Each tensor is split once, so that the backward pass joins gradients once.
    parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
    pieces = [one(q, k, v) for q, k, v in parts if len(q)]
    return torch.cat(pieces) if pieces else query.new_zeros(0, query.shape[1], value.shape[2])


def _causal(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(L, L), true where a token may attend: itself and earlier tokens within the window."""
    here = torch.arange(length, device=device)
    back = here[:, None] - here[None, :]
    return (back >= 0) if window is None else (back >= 0) & (back < window)


def _written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: Any,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Plain operations, in float32 or better, because torch has no fused kernel with softcap or sinks."""
    groups = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.transpose(2, 3)).to(exact) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.to(exact).reshape(1, -1, 1, 1).expand(-1, -1, scores.shape[2], 1)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return weights.to(v.dtype) @ v
