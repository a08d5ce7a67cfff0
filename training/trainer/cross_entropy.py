"""Cross-entropy of a linear head that never holds all logits: the loss is made a chunk of tokens at a time.

Logits are the largest thing of a training step: T × V numbers, several times over (raw, in float32, their gradient).
Here a chunk's logits live until its share of the loss and of the gradients is known:

    for each chunk:  logits = x Wᵀ  →  loss += Σ w·(logsumexp − logit of the target)
                     g = w·(softmax − one-hot)  →  dx = g W,  dW += gᵀ x

So the backward pass only multiplies what the forward pass has kept by the incoming number. The amount of arithmetic is
that of the plain loss. The idea is that of Liger (Hsu et al., 2024, arXiv:2410.10989) and of torch's
`linear_cross_entropy`; this one runs anywhere, sums weights' gradients in float32, and knows softcaps and scales.

Legend: `N` tokens, `H` hidden size, `V` vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.rows import IGNORE_INDEX

BUFFER_BYTES = 256 << 20
"""Of one chunk's logits in float32."""
LEAST_TOKENS = 256
"""Of a chunk: fewer would leave matrix units idle."""

Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None, "Shaping"], torch.Tensor
]
"""`kernel(hidden (N, H), weight (V, H), bias (V,) or None, targets (N,), weights (N,) or None, shaping)`: Σ w·loss."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a model does to its logits before the loss: first the scale, then the softcap."""

    scale: float = 1.0
    """Logits are multiplied by it (Granite, Cohere)."""
    softcap: float | None = None
    """Logits become cap · tanh(logits / cap) (Gemma 2)."""

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits that the loss sees."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def chunk_tokens(vocabulary: int) -> int:
    """Tokens of a chunk: as many as the buffer holds, a power of two."""
    fits = BUFFER_BYTES // (4 * max(1, vocabulary))
    return max(LEAST_TOKENS, 1 << max(0, fits.bit_length() - 1))


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor | None = None,
    shaping: Shaping = Shaping(),
    *,
    chunk: int | None = None,
) -> torch.Tensor:
    """Σ over tokens of weight · cross-entropy, as `F.cross_entropy(..., reduction="sum")` of all logits would be.

    Args:
        hidden: (N, H) floating.
        weight: (V, H).
        bias: (V,).
        targets: (N,) int64; `IGNORE_INDEX` counts for nothing.
        weights: (N,) float32 of the tokens; None for ones.
        chunk: tokens at a time; None chooses.

    Returns:
        A float32 number. Where the head learns, its gradient can be asked for once: that uses up the buffer, which is
        as large as the head. No second derivatives.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    else:
        dtype = weight.dtype
    size = chunk or chunk_tokens(weight.shape[0])
    with torch.autocast(hidden.device.type, enabled=False):
        loss: torch.Tensor = _Chunked.apply(
            hidden, weight, bias, targets, weights, shaping, size, dtype, torch.is_grad_enabled()
        )
    return loss


class _Chunked(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        weights: torch.Tensor | None,
        shaping: Shaping,
        chunk: int,
        dtype: torch.dtype,
        learning: bool,
    ) -> torch.Tensor:
        wants = [learning and bool(want) for want in ctx.needs_input_grad[:3]]
        matrix = weight.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if wants[0] else None
        d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wants[1] else None
        d_bias = torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device) if wants[2] else None
        for begin in range(0, len(hidden), chunk):
            part = slice(begin, begin + chunk)
            rows = hidden[part].to(dtype)
            factors = _factors(targets[part], None if weights is None else weights[part])
            loss, slope = _part(rows, matrix, bias, targets[part], factors, shaping, any(wants))
            total += loss
            if slope is None:
                continue
            narrow = slope.to(dtype)
            if d_hidden is not None:
                d_hidden[part] = narrow @ matrix
            if d_weight is not None:
                if dtype == torch.float32:
                    d_weight.addmm_(narrow.T, rows)
                else:
                    d_weight += narrow.T @ rows
            if d_bias is not None:
                d_bias += slope.sum(0)
        ctx.save_for_backward(d_hidden, d_bias)
        ctx.d_weight, ctx.kind = d_weight, weight.dtype
        ctx.bias_kind = None if bias is None else bias.dtype
        ctx.has_weight = d_weight is not None
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_hidden, d_bias = ctx.saved_tensors
        d_weight = None
        if ctx.has_weight and ctx.needs_input_grad[1]:
            if ctx.d_weight is None:
                raise RuntimeError(
                    "the gradient of the chunked loss was asked for twice, and its buffer is used up. Compute the loss "
                    "again, or take loss_kernel: none"
                )
            # In place: a second matrix as large as the head is what this saves.
            d_weight, ctx.d_weight = ctx.d_weight.mul_(slope).to(ctx.kind), None
        return (
            d_hidden * slope.to(d_hidden.dtype) if d_hidden is not None else None,
            d_weight,
            (d_bias * slope).to(ctx.bias_kind) if d_bias is not None else None,
            *[None] * 6,
        )


def _factors(targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """(N,) float32: what each token's loss counts."""
    counted = targets != IGNORE_INDEX
    return counted.float() if weights is None else torch.where(counted, weights.float(), 0.0)


def _part(
    rows: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    factors: torch.Tensor,
    shaping: Shaping,
    learning: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One chunk's loss and, where it is wanted, its derivative by the head's raw output: (N, V) float32."""
    logits = torch.nn.functional.linear(rows, matrix, None if bias is None else bias.to(matrix.dtype)).float()
    if shaping.scale != 1.0:
        logits *= shaping.scale
    bent = None
    if shaping.softcap is not None:
        bent = logits.div_(shaping.softcap).tanh_()
        logits = bent * shaping.softcap
    places = targets.clamp_min(0)[:, None]
    sums = logits.logsumexp(1)
    loss = ((sums - logits.gather(1, places)[:, 0]) * factors).sum()
    if not learning:
        return loss, None
    slope = logits.sub_(sums[:, None]).exp_()
    slope.scatter_add_(1, places, torch.full_like(places, -1, dtype=torch.float32))
    slope *= factors[:, None]
    if bent is not None:
        slope *= 1 - bent.square_()
    if shaping.scale != 1.0:
        slope *= shaping.scale
    return loss, slope
