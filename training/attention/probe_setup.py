"""What a probe works on: documents of random tokens, single documents of a batch, a model without randomness, and tiny
configurations of architectures.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.checkpoint import checkpoint

from ...schemas.dataset.row_batch import Row
from ...schemas.ragged import ranges, starts_of
from ...schemas.rows import IGNORE_INDEX
from ..batch import flatten
from ..branches import piece_bounds
from ..models.model import EXPERTS
from ..models.model_parts import configs_of, unwrap

_SMALL = {
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 8, "sliding_window": 8, "attention_chunk_size": 8,
    **dict.fromkeys(EXPERTS, 16),  # the names that configurations have for the number of experts
}  # fmt: skip
"""Key of a configuration, by transformers' standard name → its largest value in a tiny model. Models with several kinds
of layers have all of them among the first 8; 16 experts can be divided into the groups in which some routers choose;
and the probe's documents are longer than a window of 8.
"""
_CHANCES = ("dropout", "dropout_p", "jitter", "pdrop", "drop_rate", "layerdrop", "router_jitter_noise")
"""How attributes end that hold the chance, 0 to 1, by which a layer changes values at random."""
_CHECKPOINTS = "_gradient_checkpointing_func"
"""Attribute of transformers' layers: what computes a layer again in the backward pass."""
Batch = dict[str, Any]


class PackedDocument(NamedTuple):
    """A document of a packed row."""

    begin: int
    """Where its piece begins in the row."""
    end: int
    path: torch.Tensor
    """int64 (n,) the places of all its tokens in the row, in order; at the end the tokens of its own piece."""

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
        shares: each piece but the first continues the piece before it, from the middle of that piece on.
    """
    # Pieces of 4 and 3 tokens that share: positions are 0 1 2 3 and 2 3 4, and the second piece repeats token 2 of the
    # first. Without sharing, positions are 0 1 2 3 and 0 1 2.
    ordinary = _ordinary_ids(config)
    ids = ordinary[np.random.default_rng(0).integers(len(ordinary), size=sum(lengths))]
    counts = np.array(lengths)  # 4 3
    first_positions = starts_of(counts // 2) if shares else 0  # 0 2: the halves of all pieces before, summed
    positions = ranges(first_positions, counts).astype(np.int32)
    begins = starts_of(counts)  # 0 4
    if shares:
        # The first token of a branch, at 4, repeats the last one that it shares, at 2: the middle of the piece before.
        ids[begins[1:]] = ids[begins[:-1] + counts[:-1] // 2]
    labels = ids.astype(np.int32)
    labels[begins] = IGNORE_INDEX
    row = Row(input_ids=ids, labels=labels, position_ids=positions, seq_lengths=counts.astype(np.int32))
    if shares:
        row.parents = (begins > 0).astype(np.int32)  # 0 1: the second continues the piece right before it
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
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def cut_out(batch: Batch, document: PackedDocument) -> Batch:
    """One document of a batch, whole, in a batch of its own: with the tokens that it shares with other pieces."""
    device = batch["input_ids"].device
    path = document.path.to(device)
    columns = {
        name: value[:, path]
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.ndim == 2  # a value for each token: (1, T)
    }
    if "seq_idx" in columns:
        columns["seq_idx"] = torch.zeros_like(columns["seq_idx"])
    bounds = torch.tensor([0, len(path)], dtype=torch.int32, device=device)
    return {
        **columns,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": len(path),
        "max_length_k": len(path),
        "use_cache": False,
    }


def _ordinary_ids(config: Any) -> NDArray[np.int32]:
    """Token ids without a special meaning to the model: no padding, image or end tokens."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    special_ids: set[int] = set()
    for name, value in [*vars(config).items(), *vars(text_config).items()]:
        if name.endswith(("_token_id", "_token_index")):
            ids = value if isinstance(value, list | tuple) else [value]
            special_ids |= {token_id for token_id in ids if isinstance(token_id, int)}
    # Some thousands are enough. In a tiny model's vocabulary, nearly all ids may be special: then all are taken.
    count = min(int(text_config.vocab_size), 4096)
    ordinary = np.array([token_id for token_id in range(count) if token_id not in special_ids], np.int32)
    return ordinary if len(ordinary) > 3 else np.arange(int(text_config.vocab_size), dtype=np.int32)


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """The model in train mode, because gradient checkpointing happens only there. At the end its modes, gradients and
    buffers and all random generators are as they were.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    # Dynamic rotary embeddings replace their buffers, and remember for which length. Of each: the module, its
    # attributes and its buffers.
    rotary = [
        (module, vars(module).copy(), module._buffers.copy())
        for module in modules
        if hasattr(module, "max_seq_len_cached")
    ]
    gradients = [(weight, weight.grad) for weight in model.parameters()]
    gpus = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    # Otherwise DDP waits for gradients of all parameters.
    no_sync = model.no_sync() if type(model).__name__ == "DistributedDataParallel" else nullcontext()
    with torch.random.fork_rng(devices=list(gpus)), no_sync:
        try:
            model.train()
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            for module, attributes, own_buffers in rotary:
                vars(module).update(attributes)
                module._buffers.update(own_buffers)
            for buffer, copy in buffers:
                if buffer.shape == copy.shape:  # one of another size belongs to a rotary embedding, restored above
                    buffer.data.copy_(copy)
            for weight, gradient in gradients:
                weight.grad = gradient


@contextmanager
def comparable_gradients(model: Any) -> Iterator[None]:
    """The model with changes that make gradients of two documents comparable, undone at the end.

    Dropout and jitter are off, because they differ from pass to pass. The auxiliary losses of routers are off, because
    they take all tokens of a row together, and so mix documents that attention keeps apart. Gradient checkpoints are
    not re-entrant, because re-entrant ones give no gradients of chosen tensors.
    """
    modules = list(model.modules())
    changes: list[tuple[Any, str, Any]] = [(module, name, 0.0) for module, name, _ in chances(modules)]
    """Object, attribute, and its value meanwhile."""
    for config in configs_of(getattr(unwrap(model), "config", None)):
        if getattr(config, "output_router_logits", False):
            changes.append((config, "output_router_logits", False))
    for module in modules:
        if _CHECKPOINTS in vars(module):
            changes.append((module, _CHECKPOINTS, partial(checkpoint, use_reentrant=False)))
    originals = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), original in zip(changes, originals, strict=True):
            setattr(owner, name, original)


def chances(modules: Sequence[torch.nn.Module]) -> Iterator[tuple[Any, str, Any]]:
    """Module, attribute and value of every chance by which a layer changes values at random, such as dropout's."""
    for module in modules:
        is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
        for name, value in list(vars(module).items()):  # a copy, because callers may set what they get
            # torch's dropout layers call their chance `p`; layers of models have longer names for theirs.
            is_chance = (name == "p") if is_dropout else name.endswith(_CHANCES)
            if is_chance and isinstance(value, float) and 0 < value <= 1:
                yield module, name, value


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model or a part of it is compiled."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def shrink(config: Any) -> Any:
    """A tiny configuration of the same architecture. Configurations within it, as of a vision tower, are tiny, too.

    Raises:
        Exception: of any kind, where the architecture's own checks refuse it: it has sizes of other names.
    """
    settings = config.to_dict()
    _shrink_settings(config, settings)
    for name in getattr(config, "sub_configs", {}):
        if isinstance(settings[name], dict):
            _shrink_settings(getattr(config, name), settings[name])
    return type(config).from_dict(settings)


def _shrink_settings(config: Any, settings: dict[str, Any]) -> None:
    """Make the sizes among a configuration's settings smaller, in place.

    Args:
        config: of the architecture, for the names that it has for sizes.
        settings: its values, as `to_dict` gives them.
    """
    # An architecture may call sizes otherwise: GPT-2's hidden_size is n_embd.
    keys = {name: config.attribute_map.get(name, name) for name in (*_SMALL, "num_key_value_heads")}
    heads = settings.get(keys["num_attention_heads"])
    key_heads = settings.get(keys["num_key_value_heads"])
    layers = settings.get(keys["num_hidden_layers"])
    # The configuration's own keys → their largest values.
    largest = {keys[name]: size for name, size in _SMALL.items()}
    # Grouped heads stay grouped: two heads of keys for four of queries.
    largest[keys["num_key_value_heads"]] = 4 if key_heads == heads else 2
    # Inner layers have many names, such as moe_intermediate_size and encoder_ffn_dim.
    for key in settings:
        if key.endswith(("intermediate_size", "ffn_dim")):
            largest[key] = 128
    for key, value in settings.items():
        if type(value) is int and key in largest:  # a boolean is an int, too
            settings[key] = min(value, largest[key])
        elif isinstance(value, list) and len(value) == layers:
            # An entry for each layer, such as `layer_types`: of 32, the first 8.
            settings[key] = value[: _SMALL["num_hidden_layers"]]
