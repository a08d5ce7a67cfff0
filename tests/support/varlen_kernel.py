"""A reference for torch's variable-length FlashAttention on a CPU, forward and backward: everything above it is then
the code that a GPU runs. In the dtypes and widths that the real kernel takes, and with its other conditions checked.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as varlen
from packtrain.training.attention import kernels

CALLS = {"forward": 0, "backward": 0}
"""How often the kernel was called."""


def _visible(length: int, keys: int, window: Any) -> torch.Tensor:
    """(L, K), whether a token sees another; `window` are the numbers of tokens before and after, -1 for all. The last
    query stands at the last key.
    """
    position = torch.arange(keys)
    back = position[keys - length :, None] - position[None]
    before, after = (-1, -1) if window is None else window
    visible = torch.ones_like(back, dtype=torch.bool)
    if before >= 0:
        visible &= back <= before
    if after >= 0:
        visible &= back >= -after
    return visible


def _pieces(cu: torch.Tensor, cu_keys: torch.Tensor) -> list[tuple[slice, slice]]:
    """The queries and the keys of each document that is not empty."""
    both = zip(pairwise(cu.tolist()), pairwise(cu_keys.tolist()), strict=True)
    return [(slice(*queries), slice(*keys)) for queries, keys in both if queries[0] < queries[1]]


def _check(query: Any, key: Any, value: Any, cu: Any, longest: int, cu_keys: Any, longest_keys: int) -> None:
    assert query.dtype == key.dtype == value.dtype
    assert query.dtype in kernels.HALF
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert query.shape[-1] % 8 == 0
    assert query.shape[-1] <= kernels.MAX_HEAD_DIM
    assert query.shape[1] % key.shape[1] == 0
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert cu.dtype == torch.int32
    assert int(cu[-1]) == len(query)
    assert longest >= int((cu[1:] - cu[:-1]).max())
    assert cu_keys.dtype == torch.int32
    assert int(cu_keys[-1]) == len(key) == len(value)
    assert longest_keys >= int((cu_keys[1:] - cu_keys[:-1]).max())


def _forward(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
    is_causal: bool = False, scale: float | None = None, window_size: Any = None, enable_gqa: bool = False,
    seqused_k: Any = None, block_table: Any = None, num_splits: int | None = None,
) -> Any:  # fmt: skip
    CALLS["forward"] += 1
    _check(query, key, value, cu_seq_q, max_q, cu_seq_k, max_k)
    out = torch.empty(query.shape)
    sums = torch.empty(query.shape[1], len(query))
    groups = query.shape[1] // key.shape[1]
    for queries, keys in _pieces(cu_seq_q, cu_seq_k):
        q = query[queries].float().transpose(0, 1)
        k, v = (tensor[keys].float().transpose(0, 1).repeat_interleave(groups, 0) for tensor in (key, value))
        visible = _visible(q.shape[1], k.shape[1], window_size)
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~visible, float("-inf"))
        sums[:, queries] = scores.logsumexp(-1)
        out[queries] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out.to(query.dtype), sums, torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, cu_seq_q: Any, cu_seq_k: Any,
    max_q: int, max_k: int, is_causal: bool, rng_state: Any, scale: float | None = None, window_size: Any = None,
) -> Any:  # fmt: skip
    CALLS["backward"] += 1
    _check(query, key, value, cu_seq_q, max_q, cu_seq_k, max_k)
    gradients = [torch.zeros(tensor.shape) for tensor in (query, key, value)]
    groups = query.shape[1] // key.shape[1]
    for queries, keys in _pieces(cu_seq_q, cu_seq_k):
        q, d, o = (tensor[queries].float().transpose(0, 1) for tensor in (query, grad_out, out))
        k, v = (tensor[keys].float().transpose(0, 1).repeat_interleave(groups, 0) for tensor in (key, value))
        visible = _visible(q.shape[1], k.shape[1], window_size)
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~visible, float("-inf"))
        p = (scores - lse[:, queries, None]).exp()
        ds = p * (d @ v.transpose(1, 2) - (d * o).sum(-1, keepdim=True)) * scale
        shape = (key.shape[1], groups, k.shape[1], -1)
        gradients[0][queries] = (ds @ k).transpose(0, 1)
        gradients[1][keys] = (ds.transpose(1, 2) @ q).view(shape).sum(1).transpose(0, 1)
        gradients[2][keys] = (p.transpose(1, 2) @ d).view(shape).sum(1).transpose(0, 1)
    return tuple(gradient.to(query.dtype) for gradient in gradients)


varlen._varlen_attn.register_kernel("cpu", _forward)
varlen._varlen_attn_backward.register_kernel("cpu", _backward)


@pytest.fixture
def flash_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed attention takes the kernel on the CPU, as it does on CUDA."""
    monkeypatch.setitem(kernels._WHY_NOT, ("cpu", None), "")
    CALLS.update(forward=0, backward=0)
