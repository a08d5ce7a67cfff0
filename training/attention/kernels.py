"""Chooses what computes packed attention on this machine, and says why.

The signatures of the kernels have changed over time. Only this module decides how to call them, from the signature and
not from the version:

- torch 2.10: `varlen_attn(..., is_causal)`, without scale and window.
- torch 2.11: `scale`, `window_size`; causal is (-1, 0), a causal window of W is (W - 1, 0).
- torch 2.12 and later: also `enable_gqa`, needed when there are fewer key heads than query heads.
- flash-attn 2: `causal`, `softmax_scale`, `window_size`, and `softcap` since 2.6.

All take (T, H, E) queries with (D + 1,) int32 bounds, bf16 or fp16, on Ampere or newer, head dimensions up to 256.
"""

import contextlib
import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from ...schemas.errors import AttentionError
from .per_document import per_document

PER_DOCUMENT = "per document"
MOST_HEAD_DIM = 256
HALF = (torch.bfloat16, torch.float16)
VARIABLE = "PACKTRAIN_ATTENTION_KERNEL"
"""Environment variable that chooses the kernel: `torch`, `flash_attn`, or `auto`."""


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a kernel besides the tensors."""

    cu: torch.Tensor
    longest: int
    scale: float
    window: int | None
    """Number of tokens that each token sees, including itself."""
    softcap: float | None = None


Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Call], torch.Tensor]
"""A function of queries (T, H, E), keys (T, G, E), values (T, G, V) and the other arguments that returns (T, H, V)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to compute packed attention."""

    name: str
    """Name of the kernel, such as `torch varlen (FA2)`, `flash-attn 2`, `per document`."""
    usable: bool
    reason: str
    """Why the kernel is chosen, or cannot be used."""
    run: Run | None = None
    softcap: bool = False
    """Whether the kernel can soft-cap scores, as Gemma 2 does."""


def choose(device: torch.device | str) -> Kernel:
    """Return the kernel that `packed_varlen` uses on a device.

    Raises:
        AttentionError: no kernel works on this CUDA device, or the environment variable names one that is missing.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return _PER_DOCUMENT
    found = survey(device)
    wanted = os.environ.get(VARIABLE, "auto")
    names = {"torch": "torch varlen", "flash_attn": "flash-attn"}
    if wanted != "auto":
        if wanted not in names:
            raise AttentionError(f"{VARIABLE}={wanted}: choose torch, flash_attn or auto")
        found = [kernel for kernel in found if kernel.name.startswith(names[wanted])]
    for kernel in found:
        if kernel.usable:
            return kernel
    reasons = "; ".join(f"{kernel.name}: {kernel.reason}" for kernel in found)
    raise AttentionError(
        f"no variable-length attention on {device}: {reasons}. Set attention: packed_block_mask, which is exact "
        "and slow"
    )


_CHOSEN: dict[tuple[str, int | None], Kernel] = {}


def chosen(device: torch.device) -> Kernel:
    """Like `choose`, but cached, so that compiled code can call it."""
    key = (device.type, device.index)
    if key not in _CHOSEN:
        _CHOSEN[key] = choose(device)
    return _CHOSEN[key]


def choose_ahead() -> None:
    """Fill the cache of `chosen` for all devices of this machine before torch.compile traces attention."""
    chosen(torch.device("cpu"))
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            with contextlib.suppress(AttentionError):
                chosen(torch.device("cuda", index))


def survey(device: torch.device | str) -> list[Kernel]:
    """Return all kernels for a device, usable or not, with the reasons; best first."""
    device = torch.device(device)
    return [_PER_DOCUMENT] if device.type != "cuda" else _on_cuda(device.index)


@cache
def _on_cuda(index: int | None) -> list[Kernel]:
    major, minor = torch.cuda.get_device_capability(index)
    if major < 8 and torch.version.hip is None:
        name = torch.cuda.get_device_name(index)
        reason = f"{name} is sm{major}{minor}; FlashAttention needs sm80 (Ampere) or newer"
        return [Kernel("flash-attn", False, reason), Kernel("torch varlen", False, reason)]
    return [_flash_attn_kernel(), _torch_kernel()]


def _loop(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call) -> torch.Tensor:
    bounds = call.cu.tolist()
    if bounds[0] != 0 or bounds[-1] != len(query):
        raise AttentionError(
            f"cu_seq_lens_q goes from {bounds[0]:,} to {bounds[-1]:,}, but there are {len(query):,} tokens"
        )
    return per_document(query, key, value, bounds, scale=call.scale, window=call.window, softcap=call.softcap)


_PER_DOCUMENT = Kernel(PER_DOCUMENT, True, "no CUDA device: a loop over documents, exact in any dtype", _loop)


def _torch_kernel() -> Kernel:
    try:
        function = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError) as error:
        return Kernel(
            "torch varlen", False, f"torch {torch.__version__} does not have it ({error}); install torch 2.10 or newer"
        )
    active = getattr(importlib.import_module("torch.nn.attention"), "current_flash_attention_impl", lambda: None)()
    name = f"torch varlen ({active or 'FA2'})"
    return Kernel(name, True, f"comes with torch {torch.__version__}", bind_torch(function))


def _flash_attn_kernel() -> Kernel:
    try:
        package = importlib.import_module("flash_attn")
        function = package.flash_attn_varlen_func
    except (ImportError, AttributeError, OSError) as error:  # OSError if it was built for another torch
        return Kernel("flash-attn", False, f"not importable: {error}")
    softcap = "softcap" in inspect.signature(function).parameters
    version = getattr(package, "__version__", "2")
    return Kernel(f"flash-attn {version}", True, "the package is installed", bind_flash_attn(function), softcap)


def bind_torch(function: Callable[..., Any]) -> Run:
    """Return torch's varlen_attn, of any version, as a `Run`."""
    names = inspect.signature(function).parameters
    windows, scales, groups = (name in names for name in ("window_size", "scale", "enable_gqa"))

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call) -> torch.Tensor:
        options: dict[str, Any] = {}
        if windows:
            options["window_size"] = (-1 if call.window is None else call.window - 1, 0)
        elif call.window is not None and call.window < call.longest:
            raise AttentionError(
                f"sliding windows need torch 2.11 or newer, and this is {torch.__version__}; upgrade torch, or set "
                "attention: packed_block_mask"
            )
        else:
            options["is_causal"] = True
        if scales:
            options["scale"] = call.scale
        else:  # the kernel divides by the root of the head dimension
            query = query * (call.scale * query.shape[-1] ** 0.5)
        if groups:
            options["enable_gqa"] = query.shape[1] != key.shape[1]
        out: torch.Tensor = function(query, key, value, call.cu, call.cu, call.longest, call.longest, **options)
        return out

    return _padded(run)


def bind_flash_attn(function: Callable[..., Any]) -> Run:
    """Return flash-attn's flash_attn_varlen_func, of any version 2, as a `Run`."""
    names = inspect.signature(function).parameters

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call) -> torch.Tensor:
        options: dict[str, Any] = {"softmax_scale": call.scale, "causal": True}
        if call.window is not None:
            if "window_size" not in names:
                raise AttentionError("sliding windows need flash-attn 2.3 or newer; upgrade it, or remove it")
            options["window_size"] = (call.window - 1, 0)
        if call.softcap is not None:
            options["softcap"] = call.softcap
        out: torch.Tensor = function(query, key, value, call.cu, call.cu, call.longest, call.longest, **options)
        return out

    return _padded(run)


def _padded(run: Run) -> Run:
    """Pad heads with zeros to a common multiple of 8, as kernels require; the zeros do not change the result."""

    def padded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call) -> torch.Tensor:
        head, carried = query.shape[-1], value.shape[-1]
        whole = -(-max(head, carried) // 8) * 8
        if whole > MOST_HEAD_DIM:
            raise AttentionError(
                f"head dimension {whole}: FlashAttention takes at most {MOST_HEAD_DIM}; set attention: "
                "packed_block_mask, which is exact and slow"
            )
        if whole == head == carried:
            return run(query, key, value, call)
        if whole != head:
            # torch 2.10 divides by the root of the padded head dimension; `run` corrects for it.
            query, key = (functional.pad(tensor, (0, whole - head)) for tensor in (query, key))
        out = run(query, key, functional.pad(value, (0, whole - carried)), call)
        return out[..., :carried]

    return padded
