"""What a probe works on: documents of random tokens, single documents of a batch, a model without randomness, and tiny
configurations of architectures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from ...schemas.dataset.row_batch import Row
from ...schemas.ragged import ranges, starts_of
from ...schemas.rows import IGNORE_INDEX
from ..batch import flatten
from ..branches import piece_bounds
from ..model import EXPERTS
from .model_parts import configs_of, unwrap

_SMALL = {
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 8, "sliding_window": 8, "attention_chunk_size": 8,
    **dict.fromkeys(EXPERTS, 16),
}  # fmt: skip
"""Key of a configuration, by transformers' standard name → its largest value in a tiny model. Layers of all kinds are
among the first 8, tokens are routed in groups of a divisor of 16, and the probe's documents are longer than a window.
"""
_CHANCE = ("dropout", "dropout_p", "jitter", "pdrop", "drop_rate", "layerdrop", "router_jitter_noise")
Batch = dict[str, Any]


class PackedDocument(NamedTuple):
    """A document of a packed row."""

    begin: int
    """Where its piece begins in the row."""
    end: int
    path: torch.Tensor
    """int64 (n,) the places of all its tokens, in order; the last ones are those of its piece."""

    @property
    def shared(self) -> int:
        """How many of its tokens stand in other pieces."""
        return len(self.path) - (self.end - self.begin)


def random_documents(
    config: Any, lengths: Sequence[int], device: torch.device, *, seq_idx: bool = False, shares: bool = False
) -> Batch:
    """Documents of random tokens, the same every time, packed into one row by the loader's own code.

    Args:
        config: the model's configuration, for its vocabulary.
        lengths: of the pieces, in tokens.
        seq_idx: add the number of each token's document.
        shares: each piece but the first continues the one before it, from the middle of its piece on.
    """
    known = _ordinary(config)
    ids = known[np.random.default_rng(0).integers(len(known), size=sum(lengths))]
    counts = np.array(lengths)
    first_positions = starts_of(counts // 2) if shares else 0
    positions = ranges(first_positions, counts).astype(np.int32)
    labels = ids.astype(np.int32)
    begins = starts_of(counts)
    labels[begins] = IGNORE_INDEX
    row = Row(ids, labels, positions, counts.astype(np.int32))
    if shares:
        # The first token of a branch repeats the last one that it shares, here the middle of the piece before.
        ids[begins[1:]] = ids[begins[:-1] + counts[:-1] // 2]
        row.parents = (begins > 0).astype(np.int32)
    return to_device(flatten([row], seq_idx=seq_idx), device)


def documents_of(batch: Mapping[str, Any]) -> list[PackedDocument]:
    """The documents of a batch, in their order."""
    pieces = pairwise(piece_bounds(batch).tolist())
    if "paths" not in batch:
        return [PackedDocument(begin, end, torch.arange(begin, end)) for begin, end in pieces]
    paths = batch["paths"].cpu().split(batch["cu_paths"].diff().tolist())
    return [PackedDocument(begin, end, path) for (begin, end), path in zip(pieces, paths, strict=True)]


def to_device(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """Move a batch's tensors to a device."""
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}


def cut_out(batch: Batch, document: PackedDocument) -> Batch:
    """One document of a batch, whole, in a batch of its own."""
    device = batch["input_ids"].device
    path = document.path.to(device)
    cut = {name: one[:, path] for name, one in batch.items() if isinstance(one, torch.Tensor) and one.ndim == 2}
    if "seq_idx" in cut:
        cut["seq_idx"] = torch.zeros_like(cut["seq_idx"])
    bounds = torch.tensor([0, len(path)], dtype=torch.int32, device=device)
    sizes = {"max_length_q": len(path), "max_length_k": len(path)}
    return {**cut, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, **sizes, "use_cache": False}


def _ordinary(config: Any) -> Any:
    """Token ids without a special meaning to the model: no padding, image or end tokens."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    special: set[int] = set()
    for name, value in [*vars(config).items(), *vars(text).items()]:
        if name.endswith(("_token_id", "_token_index")):
            special |= {one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, int)}
    ids = np.array([one for one in range(min(int(text.vocab_size), 4096)) if one not in special], np.int32)
    return ids if len(ids) > 3 else np.arange(int(text.vocab_size), dtype=np.int32)


@contextmanager
def undisturbed(model: Any) -> Iterator[Callable[[], None]]:
    """The model in train mode, because gradient checkpointing happens only there. At the end its modes, gradients and
    buffers and all random generators are as they were.

    The value switches off dropout, jitter and auxiliary losses of routers, which take all tokens of a row together.
    """
    bare, modules = unwrap(model), list(model.modules())
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    # Dynamic rotary embeddings replace their buffers, and remember for which length.
    stretched = [(one, vars(one).copy(), one._buffers.copy()) for one in modules if hasattr(one, "max_seq_len_cached")]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    changed: list[tuple[Any, str, Any]] = []

    def calm() -> None:
        for module in modules:
            dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
            for name, value in list(vars(module).items()):
                if (name == "p" if dropout else name.endswith(_CHANCE)) and isinstance(value, float) and 0 < value <= 1:
                    changed.append((module, name, value))
        configs = [
            one for one in configs_of(getattr(bare, "config", None)) if getattr(one, "output_router_logits", False)
        ]
        changed.extend((config, "output_router_logits", True) for config in configs)
        for what, name, value in changed:
            setattr(what, name, type(value)(0))

    on_gpus = {weight.device for weight in bare.parameters() if weight.device.type == "cuda"}
    # Otherwise DDP waits for gradients of all parameters.
    alone = model.no_sync() if type(model).__name__ == "DistributedDataParallel" else nullcontext()
    with torch.random.fork_rng(devices=list(on_gpus)), alone:
        try:
            model.train()
            yield calm
        finally:
            for what, name, value in changed:
                setattr(what, name, value)
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            for module, values, held in stretched:
                vars(module).update(values)
                module._buffers.update(held)
            for buffer, before in buffers:
                if buffer.shape == before.shape:
                    buffer.data.copy_(before)
            for weight, grad in grads:
                weight.grad = grad


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model or a part of it is compiled."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def shrink(config: Any) -> Any:
    """A tiny configuration of the same architecture, and of those within it.

    Raises:
        Exception: of any kind, where the architecture's own checks refuse it: it has sizes of other names.
    """
    data = config.to_dict()
    for name in ("", *getattr(config, "sub_configs", {})):
        part, keys = (getattr(config, name), data[name]) if name else (config, data)
        if isinstance(keys, dict):
            _shrink(part, keys)
    return type(config).from_dict(data)


def _shrink(config: Any, keys: dict[str, Any]) -> None:
    own = {name: config.attribute_map.get(name, name) for name in (*_SMALL, "num_key_value_heads")}
    heads, groups, layers = (
        keys.get(own[name]) for name in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    )
    most = {own[name]: size for name, size in _SMALL.items()}
    most[own["num_key_value_heads"]] = 4 if groups == heads else 2
    for key, value in keys.items():
        if key.endswith(("intermediate_size", "ffn_dim")):
            most[key] = 128
        if isinstance(value, int) and not isinstance(value, bool) and key in most:
            keys[key] = min(value, most[key])
        elif isinstance(value, list) and len(value) == layers:  # something of each layer
            keys[key] = value[: _SMALL["num_hidden_layers"]]
