"""Computes attention one document after another: exact on any device and in any dtype, and differentiable.

Documents share nothing here, not even a matrix multiplication, so the gradient of one with respect to another is
exactly zero. The price is a loop in Python: negligible on a CPU, too slow on a GPU.

Legend: T tokens, H query heads, G key heads (H a multiple of G), E head dimension, V value dimension, L tokens of a
document.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.nn import functional


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
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention within each document.

    Args:
        query, key, value: (T, H, E), (T, G, E), (T, G, V).
        bounds: 0, …, T, never decreasing. Empty documents cost nothing.
        scale: scale of the scores; by default 1/√E.
        window: the number of tokens that each token sees, including itself.
        softcap: c; scores s become c·tanh(s/c).
        sinks: (H,), scores that take part in the softmax but carry no value.
        mask: (1 or H, T, T), the model's own: bool, true where a token may attend, or a number added to the scores.

    Returns:
        (T, H, V).
    """
    lengths = [end - begin for begin, end in pairwise(bounds)]
    pieces, begin = [], 0
    for length, q, k, v in zip(
        lengths, query.split(lengths), key.split(lengths), value.split(lengths), strict=True
    ):  # split each tensor once, so that the backward pass joins gradients once
        if length:
            end = begin + length
            own = None if mask is None else mask[:, begin:end, begin:end]
            pieces.append(_one(q, k, v, scale, window, softcap, sinks, own))
            begin = end
    if not pieces:
        return query.new_zeros(0, query.shape[1], value.shape[2])
    return torch.cat(pieces)


def _one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # (1, H, L, E)
    length = q.shape[2]
    seen = None
    if mask is not None or softcap is not None or sinks is not None or (window is not None and window < length):
        seen = causal(length, window, q.device)
        if mask is not None:
            seen = restricted(mask.unsqueeze(0), seen, q.dtype)
    if softcap is None and sinks is None:
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    else:
        assert seen is not None
        out = _written_out(q, k, v, seen, scale, softcap, sinks)
    return out.squeeze(0).transpose(0, 1)


def restricted(mask: torch.Tensor, seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A model's own mask without the tokens that must not be seen: bool, or in `dtype` if it is added to the scores."""
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf")).to(dtype)


def causal(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return (L, L), true where a token may attend: itself and earlier tokens within the window."""
    here = torch.arange(length, device=device)
    back = here[:, None] - here[None, :]
    return (back >= 0) if window is None else (back >= 0) & (back < window)


def _written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor,
    scale: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Compute attention in plain operations, in float32 or better, because torch has no fused kernel with softcap or
    sinks.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.transpose(2, 3)).to(exact) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, float("-inf")) if seen.dtype == torch.bool else scores + seen
    if sinks is not None:
        column = sinks.to(exact).reshape(1, -1, 1, 1).expand(-1, -1, scores.shape[2], 1)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return weights.to(v.dtype) @ v
