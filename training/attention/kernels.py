"""What computes attention within documents: torch's variable-length FlashAttention, or a loop over the documents.

`flash` is for CUDA devices from Ampere on, in bf16 or fp16. `per_document` is the reference: exact on any device and in
any dtype. Documents share nothing in it, not even a matrix multiplication, so the gradient of one with respect to
another is exactly zero. Its price is a loop in Python.

`flash` calls `varlen_attn` of torch 2.11 or newer. Read in the wheels: 2.10's takes neither `scale` nor `window_size`.
2.11's takes both but no `enable_gqa`, and passes any number of key heads on to `aten::_flash_attention_forward`, which
repeats them itself; a check of `enable_gqa` came later.

If documents share their first tokens, a piece of a row may continue another one (`branches`). Its queries are its own
tokens, and its keys are the tokens of its whole path: `gather_paths` gives them, and both kernels take other bounds for
keys than for queries. Queries are the last tokens of the keys:

    queries (own tokens)        q3 q4        query 3 sees keys 0 to 3, query 4 keys 0 to 4
    keys (tokens of the path)   k0 k1 k2 k3 k4

Legend: T tokens, K tokens of all paths (T without branches), D documents, H query heads, G key heads (H a multiple of
G), E head dimension, V value dimension, L tokens of a document. Bounds are D + 1 numbers from 0 to T that never
decrease; empty documents cost nothing.
"""

import inspect
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ...schemas.errors import AttentionError

MAX_HEAD_DIM = 256
"""Most dimensions of a head that FlashAttention takes."""
HALF = (torch.bfloat16, torch.float16)
"""The dtypes that FlashAttention takes."""
FLASH = "torch's varlen FlashAttention"
"""What messages call `flash`."""
LOOP = "a loop over documents"
"""What messages call `per_document`."""


class KeyBounds(NamedTuple):
    """Where the keys of each document begin and end, if that is not where its queries do."""

    cu: torch.Tensor
    """int32 (D + 1,), from 0 to K."""
    longest: int
    """Keys of the document that has most; a higher number is allowed."""


_WHY_NOT: dict[tuple[str, int | None], str] = {}
"""Type and index of a device → why `flash` does not run on it; empty text if it does."""


def why_not_flash(device: torch.device) -> str:
    """Why `flash` does not run on a device; empty if it does.

    Compiled code may call it for devices for which it was called before: then it only reads a dict.
    """
    key = (device.type, device.index)
    if key in _WHY_NOT:
        return _WHY_NOT[key]
    if device.type != "cuda":
        reason = f"the batch is on {device.type}" if torch.cuda.is_available() else "no CUDA device"
    elif torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        reason = f"{torch.cuda.get_device_name(device)} is older than Ampere (sm80), which FlashAttention needs"
    else:
        reason = why_no_varlen()
    return _WHY_NOT.setdefault(key, reason)


def why_no_varlen() -> str:
    """Why this torch's variable-length attention cannot be used, as a sentence; empty if it can."""
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
    """The names of a function's arguments."""
    return frozenset(inspect.signature(function).parameters)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # compiled code cannot read a signature
def _takes_enable_gqa() -> bool:
    """Whether `varlen_attn` takes `enable_gqa`, without which it then refuses fewer key heads than query heads."""
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
    key_bounds: KeyBounds | None = None,
) -> torch.Tensor:
    """Causal attention within each document, by torch's kernel.

    Args:
        query, key, value: (T, H, E), (K, G, E), (K, G, V) in bf16 or fp16; E and V at most `MAX_HEAD_DIM`.
        cu: int32 (D + 1,), the bounds of the queries, on the device.
        longest: tokens of the longest document; a higher number is allowed.
        window: the number of tokens that each token sees, including itself; None for all earlier ones.
        key_bounds: the bounds of the keys, if documents share tokens; None: keys have the bounds of the queries. The
            kernel aligns the last query of a document with its last key (FlashAttention since 2.1), and counts windows
            from there.

    Returns:
        (T, H, V).
    """
    from torch.nn.attention.varlen import varlen_attn

    head_dim = query.shape[-1]
    value_dim = value.shape[-1]
    # The kernel takes one width for all, a multiple of 8: 192 for heads of 192 and values of 128, 104 for 100. Zeros
    # change no score, and are cut off the result.
    width = -(-max(head_dim, value_dim) // 8) * 8
    query = functional.pad(query, (0, width - head_dim))
    key = functional.pad(key, (0, width - head_dim))
    options: dict[str, Any] = {}
    if _takes_enable_gqa():
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    # The kernel counts the tokens before the query that it sees, without itself; -1 is all. None are seen after it.
    before = -1 if window is None else window - 1
    out: torch.Tensor = varlen_attn(
        query,
        key,
        functional.pad(value, (0, width - value_dim)),
        cu,
        cu if key_bounds is None else key_bounds.cu,
        longest,
        longest if key_bounds is None else key_bounds.longest,
        scale=scale,
        window_size=(before, 0),
        **options,
    )
    return out[..., :value_dim]


class _GatherPaths(torch.autograd.Function):  # type: ignore[misc]
    """`gather_paths`, whose gradients are added in float32: a token that hundreds of paths share would lose most of its
    gradient in bfloat16, where CUDA rounds at each addition.
    """

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(paths)
        ctx.length = len(tokens)
        return tokens.index_select(0, paths)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        (paths,) = ctx.saved_tensors
        precise = torch.promote_types(gradient.dtype, torch.float32)
        sums = gradient.new_zeros((ctx.length, *gradient.shape[1:]), dtype=precise)
        return sums.index_add_(0, paths, gradient.to(precise)).to(gradient.dtype), None


def gather_paths(tokens: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
    """The keys or values of all paths: (T, G, E) and int64 (K,) → (K, G, E). Costs the memory of its result."""
    out: torch.Tensor = _GatherPaths.apply(tokens, paths)
    return out


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
    key_bounds: KeyBounds | None = None,
) -> torch.Tensor:
    """Causal attention within each document, one after another. Outside torch.compile, because the loop depends on the
    number of documents.

    Args:
        query, key, value: (T, H, E), (K, G, E), (K, G, V); K = T unless documents share tokens.
        cu: int32 (D + 1,), the bounds of the queries.
        window: the number of tokens that each token sees, including itself; None for all earlier ones.
        softcap: c; scores s become c·tanh(s/c).
        sinks: (H,), scores that take part in the softmax but carry no value.
        key_bounds: the bounds of the keys, if documents share tokens; None: keys have the bounds of the queries.

    Returns:
        (T, H, V).

    Raises:
        AttentionError: the bounds do not go from 0 to T.
    """
    bounds = cu.tolist()
    if bounds[0] != 0 or bounds[-1] != len(query):
        raise AttentionError(
            f"cu_seq_lens_q goes from {bounds[0]:,} to {bounds[-1]:,}, but there are {len(query):,} tokens"
        )
    lengths = [end - begin for begin, end in pairwise(bounds)]
    key_lengths = lengths if key_bounds is None else key_bounds.cu.diff().tolist()
    # Each tensor is split once, so that the backward pass joins gradients once.
    documents = zip(query.split(lengths), key.split(key_lengths), value.split(key_lengths), strict=True)
    outputs = [value.new_zeros(0, query.shape[1], value.shape[2])]  # for a row without documents
    for queries, keys, values in documents:
        if len(queries):  # batches of a fixed shape have empty documents
            outputs.append(_attend(queries, keys, values, scale=scale, window=window, softcap=softcap, sinks=sinks))
    return torch.cat(outputs)


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
    """Causal attention within one document: (L, H, E), (P + L, G, E), (P + L, G, V) → (L, H, V).

    P is the number of tokens that a path has before the piece; 0 if documents share none. The other arguments mean what
    they mean in `per_document`.
    """
    # As torch takes them: (1, H, L, E), (1, G, P + L, E), (1, G, P + L, V).
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    before = len(key) - len(query)
    # Plainly causal attention needs no mask, and torch computes it by a faster kernel.
    is_plainly_causal = before == 0 and (window is None or window >= len(query))
    mask: Any = None  # bool (L, P + L), true where a token may look
    if softcap is not None or sinks is not None or not is_plainly_causal:
        positions = torch.arange(len(key), device=query.device)
        # How far back each key is of each query, which has position P + i; with P = 2 and L = 2:
        # [[2, 1, 0, -1], [3, 2, 1, 0]].
        distance = positions[before:, None] - positions[None, :]
        reach = len(key) if window is None else window  # how many keys a query sees, with its own
        mask = (distance >= 0) & (distance < reach)
    if softcap is None and sinks is None:
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    else:  # written out, in float32 or better, because torch has no fused kernel with softcap or sinks; there is a mask
        queries_per_key = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(queries_per_key, dim=1)
        v = v.repeat_interleave(queries_per_key, dim=1)
        scores = (q @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32)) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            # One more column, which takes its part of the softmax and is then left out: no value belongs to it.
            column = sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(-1, -1, scores.shape[2], 1)
            scores = torch.cat((scores, column), dim=-1)
        out = torch.softmax(scores, dim=-1)[..., : len(key)].to(v.dtype) @ v
    return out.squeeze(0).transpose(0, 1)
