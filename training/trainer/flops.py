"""How many floating-point operations a model needs, and how many a GPU can make: their quotient is the utilisation.

`schemas.flops` has the cost of a token and of a pair of tokens; this module reads a model's matrices (of a mixture of
experts only the experts that a token goes to) and what its layers see.

These are the *model's* operations: what checkpointing repeats, and padding, do not count. Neither do recurrent layers'
scans, which are small beside their matrices.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...schemas.flops import attention_flops, matrix_flops
from ..attention.apply import unwrap


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Layers with the same pattern of attention."""

    layers: int
    dims: int
    """Dimensions of scores and values, summed over all query heads."""
    window: int | None = None
    """Number of tokens that each token sees, including itself."""
    chunk: int | None = None
    """Documents are cut into chunks of so many tokens, which do not see each other (Llama 4)."""

    def pairs(self, lengths: NDArray[np.integer]) -> float:
        """Number of (token, seen token) pairs in one layer; a token's pair with itself counts half."""
        wide = lengths.astype(np.float64)
        if self.chunk is not None:
            whole, rest = np.floor(wide / self.chunk), np.mod(wide, self.chunk)
            return float((whole * self.chunk**2 / 2 + rest**2 / 2).sum())
        if self.window is None:
            return float((wide**2 / 2).sum())
        seen = np.minimum(wide, self.window)
        return float((wide * seen - seen**2 / 2).sum())


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """FLOPs of a model per token, and per pair of tokens."""

    trained: float
    """Number of trained weights that each token is multiplied with, without the head."""
    frozen: float
    """Number of frozen weights that each token is multiplied with, without the head."""
    head: float
    """Number of weights of the head."""
    head_trained: bool
    attention: tuple[AttentionKind, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "ModelFlops":
        """Read the numbers from the model's modules and configuration; the model may be wrapped.

        Call this before sharding: FSDP and ZeRO leave each rank only a part of the weights.
        """
        head = unwrap(model).get_output_embeddings()
        trained = frozen = heads = 0.0
        for module, name, weight, size in _matrices(model):
            share = size * _active(model, module, name)
            if module is head:
                heads = share
            elif weight.requires_grad:
                trained += share
            else:
                frozen += share
        learns = head is not None and bool(head.weight.requires_grad)
        return cls(trained, frozen, heads, learns, _attention(_config(model)))

    @property
    def parameters(self) -> float:
        """Number of weights that each token is multiplied with."""
        return self.trained + self.frozen + self.head

    def matrices(self, tokens: float, headed: float | None = None) -> float:
        """FLOPs of forward and backward, without attention.

        Args:
            headed: number of tokens that go through the head, if untrained positions skip it; None for all.
        """
        body = matrix_flops(self.trained, tokens) + matrix_flops(self.frozen, tokens, trained=False)
        return body + matrix_flops(self.head, tokens if headed is None else headed, trained=self.head_trained)

    def of_lengths(self, lengths: NDArray[np.integer], headed: float | None = None) -> float:
        """FLOPs of a forward and backward pass over documents with these lengths, (D,)."""
        seen = sum(attention_flops(kind.pairs(lengths), kind.dims, kind.layers) for kind in self.attention)
        return self.matrices(float(lengths.sum()), headed) + seen


PEAKS = {
    "GB200": 2500.0, "B200": 2250.0, "B100": 1750.0, "GH200": 989.4, "H200 NVL": 835.5, "H200": 989.4,
    "H100 PCIe": 756.0, "H100 NVL": 835.5, "H100": 989.4, "H800": 989.4, "H20": 148.0, "A100": 311.9, "A800": 311.9,
    "A40": 149.7, "A30": 165.0, "A10G": 70.0, "A10": 125.0, "L40S": 362.1, "L40": 181.1, "L4": 121.0,
    "RTX PRO 6000 Blackwell": 503.8, "RTX 6000 Ada": 364.2, "RTX A6000": 154.8, "RTX 5090": 209.5, "RTX 4090": 165.2,
    "RTX 3090": 71.2, "MI325X": 1307.4, "MI300X": 1307.4, "MI250X": 383.0,
}  # fmt: skip
"""Name within torch.cuda.get_device_name, the more particular first → dense TFLOP/s in bf16 or fp16 with float32 sums.
From the makers' data sheets, halved where those count sparse matrices."""
HALF = (torch.bfloat16, torch.float16)


def peak_flops(device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> float | None:
    """Operations a second of a device in bf16 or fp16, dense; None for CPUs, other dtypes and unknown GPUs."""
    device = torch.device(device)
    if device.type != "cuda" or dtype not in HALF or not torch.cuda.is_available():
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """The table's number for a device of this name, in operations a second."""
    words = f" {name.replace('-', ' ')} "
    for known, teraflops in PEAKS.items():
        if f" {known} " in words or (known == "RTX PRO 6000 Blackwell" and known in words):
            return teraflops * 1e12
    return None


def _config(model: Any) -> Any:
    return unwrap(model).config.get_text_config()


def _matrices(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter, float]]:
    """(module, full name, weight, number of elements) of every weight that tokens are multiplied with."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        if hasattr(module, "in_features") and hasattr(module, "out_features") and hasattr(module, "weight"):
            # By its sizes: quantised weights are stored in fewer numbers, and adapters hold the true layer within.
            if isinstance(module.weight, nn.Parameter) and not hasattr(module, "base_layer"):
                yield module, name, module.weight, float(module.in_features * module.out_features)
            continue
        for own, weight in module.named_parameters(recurse=False):
            if weight.ndim >= 2:
                # DeepSpeed keeps the true number aside where it has cut the weights when the model was made.
                yield module, f"{name}.{own}", weight, float(getattr(weight, "ds_numel", weight.numel()))


def _active(model: Any, module: nn.Module, name: str) -> float:
    """Share of a weight that each token is multiplied with; below 1 for experts, which get only some tokens."""
    if "experts" not in name.split("."):
        return 1.0
    config = _config(model)
    for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        if isinstance(number := getattr(config, key, None), int) and number > 0:
            chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_top_k", None) or 1
            return float(chosen) / number
    return 1.0


def _attention(config: Any) -> tuple[AttentionKind, ...]:
    """The attention layers, grouped by what they see. Linear attention and state spaces do not count."""
    layers = int(config.num_hidden_layers)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    if not heads:
        return ()
    if getattr(config, "v_head_dim", None) and getattr(config, "qk_rope_head_dim", None):  # DeepSeek
        dims = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    else:
        dims = 2 * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        used = window if isinstance(window, int) and getattr(config, "use_sliding_window", True) else None
        return (AttentionKind(layers, heads * dims, used),)
    sees = {
        "full_attention": (None, None),
        "attention": (None, None),
        "sliding_attention": (window, None),
        "chunked_attention": (None, chunk),
    }
    counts = Counter(kind for kind in kinds if kind in sees)
    return tuple(AttentionKind(number, heads * dims, *sees[kind]) for kind, number in counts.items())
