"""How many floating-point operations a model needs, and how many a GPU can make: their quotient is the utilisation.

1. **Matrices.** A token costs two operations for each weight that it is multiplied with: all matrices but the
   embedding table, which is looked up; of a mixture of experts only the experts that a token goes to.
2. **Attention.** A document of ℓ tokens has ℓ²/2 pairs of a token and one that it sees; each costs two operations per
   dimension of a head for its score, and two for its value. A window of w tokens leaves w·ℓ − w²/2 of them.
3. **Backward.** Twice the forward pass; a matrix that is not trained takes only the half of that which goes on to the
   layers before.

These are the *model's* operations: what checkpointing does again, and what is done for padding, is not counted.
Recurrent layers' scans are not counted either; they are small beside their matrices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Layers that attend alike."""

    layers: int
    dims: int
    """Over all query heads: dimensions of scores and of values together."""
    window: int | None = None
    """Tokens seen, itself included."""
    chunk: int | None = None
    """Documents are cut into chunks of so many tokens, which do not see each other (Llama 4)."""

    def pairs(self, lengths: NDArray[np.integer]) -> float:
        """Pairs of a token and one that it sees, in one layer, a pair of a token and itself counting half."""
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
    """What one token, and one pair of tokens, costs a model."""

    trained: float
    """Weights that a token is multiplied with and that are trained; without the head."""
    frozen: float
    """The same of those that are not."""
    head: float
    """Weights of the head."""
    head_trained: bool
    attention: tuple[AttentionKind, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "ModelFlops":
        """Read from the model's modules and configuration; in whatever it is wrapped.

        Call it before the model is sharded: FSDP and ZeRO leave each rank a part of the weights.
        """
        head = _head(model)
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
        """Weights that a token is multiplied with."""
        return self.trained + self.frozen + self.head

    def matrices(self, tokens: float, headed: float | None = None) -> float:
        """Forward and backward, without attention.

        Args:
            headed: tokens that go through the head, where untrained positions are left out; None for all.
        """
        body = tokens * (6 * self.trained + 4 * self.frozen)
        return body + (tokens if headed is None else headed) * self.head * (6 if self.head_trained else 4)

    def of_lengths(self, lengths: NDArray[np.integer], headed: float | None = None) -> float:
        """Forward and backward over documents of these lengths, (D,)."""
        pairs = sum(kind.layers * kind.dims * kind.pairs(lengths) for kind in self.attention)
        return self.matrices(float(lengths.sum()), headed) + 3 * 2 * pairs

    def step(self, tokens: float, squares: float) -> float:
        """Forward and backward over documents of so many tokens, with this sum of the squares of their lengths.

        Windows are not known to squares; a layer with one counts at most a window for every token.
        """
        total = self.matrices(tokens)
        for kind in self.attention:
            limit = kind.window or kind.chunk
            pairs = squares / 2 if limit is None else min(squares / 2, tokens * limit)
            total += 3 * 2 * kind.layers * kind.dims * pairs
        return total


PEAKS = {
    # Name within torch.cuda.get_device_name, the more particular before the less: TFLOP/s dense, bf16 or fp16 with
    # float32 sums. From the makers' data sheets, halved where those count sparse matrices.
    "GB200": 2500.0,
    "B200": 2250.0,
    "B100": 1750.0,
    "GH200": 989.4,
    "H200 NVL": 835.5,
    "H200": 989.4,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.5,
    "H100": 989.4,
    "H800": 989.4,
    "H20": 148.0,
    "A100": 311.9,
    "A800": 311.9,
    "A40": 149.7,
    "A30": 165.0,
    "A10G": 70.0,
    "A10": 125.0,
    "L40S": 362.1,
    "L40": 181.1,
    "L4": 121.0,
    "RTX PRO 6000 Blackwell": 503.8,
    "RTX 6000 Ada": 364.2,
    "RTX A6000": 154.8,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.2,
    "MI325X": 1307.4,
    "MI300X": 1307.4,
    "MI250X": 383.0,
}
HALF = (torch.bfloat16, torch.float16)


def peak_flops(device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> float | None:
    """Operations a second that a device can make in bf16 or fp16, dense; None where that is not known.

    Nothing is made up for CPUs, for other dtypes or for GPUs that the table lacks.
    """
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
    while not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _head(model: Any) -> Any:
    while not hasattr(model, "get_output_embeddings") and hasattr(model, "module"):
        model = model.module
    return model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None


def _matrices(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter, float]]:
    """(module, its full name, weight, numbers in it) of everything that tokens are multiplied with."""
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
    """Share of a weight that a token meets: of experts, those that it is sent to."""
    if "experts" not in name.split("."):
        return 1.0
    config = _config(model)
    for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        if isinstance(number := getattr(config, key, None), int) and number > 0:
            chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_top_k", None) or 1
            return float(chosen) / number
    return 1.0


def _attention(config: Any) -> tuple[AttentionKind, ...]:
    """The layers that attend, by what they see. Layers of other kinds (linear attention, state spaces) have none."""
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
    known = {
        "full_attention": AttentionKind(0, heads * dims),
        "attention": AttentionKind(0, heads * dims),
        "sliding_attention": AttentionKind(0, heads * dims, window),
        "chunked_attention": AttentionKind(0, heads * dims, None, chunk),
    }
    found = []
    for kind in dict.fromkeys(kinds):
        if kind in known:
            like = known[kind]
            found.append(AttentionKind(list(kinds).count(kind), like.dims, like.window, like.chunk))
    return tuple(found)
