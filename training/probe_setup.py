"""What a probe works on: documents of random tokens, single documents of a batch, a model without randomness, and tiny
configurations of architectures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..schemas.rows import IGNORE_INDEX
from .attention import configs_of, unwrap
from .batch import flatten
from .packed_rows import Row

WIDTH, HEAD, HEADS, LAYERS, VOCABULARY, WINDOW = 64, 16, 4, 2, 512, 8
"""Sizes of a tiny model."""
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_SMALL = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "embedding_size", "embed_dim", "word_embed_proj_dim", "model_dim",
         "attention_hidden_size", "lru_width"), WIDTH),
    **dict.fromkeys(_HEADS, HEADS),
    **dict.fromkeys(
        ("head_dim", "kv_channels", "qk_head_dim", "global_head_dim", "attention_head_dim", "d_head", "q_lora_rank",
         "kv_lora_rank", "o_lora_rank", "index_head_dim", "mamba_d_head", "mamba_head_dim", "state_size",
         "mamba_d_state", "ssm_state_size", "linear_key_head_dim", "linear_value_head_dim",
         "hidden_size_per_layer_input"), HEAD),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size",
         "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "intermediate_size_mlp",
         "shared_intermediate_size", "block_ff_dim", "ffn_hidden_size", "block_dim", "dense_intermediate_size",
         "mamba_d_ssm", "expert_ffn_hidden_size"), 2 * WIDTH),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_target_positions"), 512),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "num_key_value_groups", "n_group", "topk_group"), 1),
    **dict.fromkeys(("index_n_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(
        ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "linear_num_value_heads",
         "time_step_rank", "mamba_dt_rank"), 4),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "mamba_n_heads", "mamba_num_heads", "rotary_dim"), 8),
    "v_head_dim": 12, "index_topk": 64,
}  # fmt: skip
"""Key of a configuration → its value in a tiny model."""
_HEADS_OF_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_global_key_value_heads")
_LAYER_COUNTS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
_PER_TOKEN = ("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk", "top_k_experts")
_WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "sliding_window_size", "window_size")

_CHANCE = ("dropout", "dropout_p", "jitter", "pdrop", "drop_rate", "layerdrop", "router_jitter_noise")
Batch = dict[str, Any]
Span = tuple[int, int]
"""Where a document begins and ends in its row."""


def random_documents(
    config: Any, lengths: Sequence[int], seed: int, device: torch.device, *, seq_idx: bool = False
) -> Batch:
    """Documents of random tokens, packed into one row by the loader's own code.

    Args:
        config: the model's configuration, for its vocabulary.
        lengths: of the documents, in tokens.
        seq_idx: add the number of each token's document.
    """
    known = _ordinary(config)
    ids = known[np.random.default_rng(seed).integers(len(known), size=sum(lengths))]
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    labels = np.where(positions == 0, IGNORE_INDEX, ids).astype(np.int32)
    return to_device(flatten([Row(ids, labels, positions, np.array(lengths, np.int32))], seq_idx=seq_idx), device)


def spans_of(batch: Mapping[str, Any]) -> list[Span]:
    """Its documents."""
    return list(pairwise(batch["cu_seq_lens_q"].tolist()))


def to_device(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """Move a batch's tensors to a device."""
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}


def cut_out(batch: Batch, begin: int, end: int) -> Batch:
    """One document of a batch, in a batch of its own."""
    cut = {name: one[:, begin:end] for name, one in batch.items() if isinstance(one, torch.Tensor) and one.ndim == 2}
    if "seq_idx" in cut:
        cut["seq_idx"] = torch.zeros_like(cut["seq_idx"])
    bounds = torch.tensor([0, end - begin], dtype=torch.int32, device=batch["input_ids"].device)
    sizes = {"max_length_q": end - begin, "max_length_k": end - begin}
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
        configs = [one for one in configs_of(bare.config) if getattr(one, "output_router_logits", False)]
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


def shrink(config: Any) -> Any:
    """A tiny configuration of the same architecture; configurations within it shrink too. Widths shrink, heads stay
    grouped, and some layers of every kind remain. Windows and chunks shrink as well, so that documents of a probe are
    longer.

    Raises:
        ValueError, TypeError: the architecture's own checks refuse these sizes.
    """
    data = config.to_dict()
    stretches = "'dynamic'" in str(data.get("rope_parameters"))
    kept = (
        {"max_position_embeddings": data["max_position_embeddings"]} if stretches else {}
    )  # it decides when they stretch
    _shrink(data)
    data |= kept
    for name in getattr(config, "sub_configs", {}):
        if isinstance(data.get(name), dict):
            _shrink(data[name])
    return type(config).from_dict(data)


def _shrink(data: dict[str, Any]) -> None:
    heads = next((data[name] for name in _HEADS if isinstance(data.get(name), int)), None)
    rotary = isinstance(data.get("qk_rope_head_dim"), int)
    for name, small in _SMALL.items():
        if isinstance(data.get(name), list):
            data[name] = [small for _ in data[name]]
        elif isinstance(data.get(name), int) and not isinstance(data[name], bool):
            data[name] = small
    left_open = {"head_dim": HEAD, "num_key_value_heads": heads, "n_routed_experts": 4, _PER_TOKEN[0]: 2}
    for name, missing in left_open.items():
        if data.get(name, 0) is None:  # the architecture's defaults leave it open; checkpoints set it
            data[name] = missing
    if rotary and isinstance(data.get("head_dim"), int):
        data["head_dim"] = _SMALL["qk_rope_head_dim"]  # DeepSeek reads this as the rotary dimension
    for name in _HEADS_OF_KEYS:
        if isinstance(data.get(name), int):
            data[name] = HEADS if data[name] == heads else 1 if data[name] == 1 else 2
    for name in _PER_TOKEN:
        if isinstance(data.get(name), int):
            data[name] = min(2, data[name])
    for name in _WINDOWS:
        if isinstance(data.get(name), int) and data[name] > 0:
            data[name] = WINDOW
    if "expand" in data and isinstance(data.get("num_heads"), int):  # Mamba 2
        data["num_heads"] = int(data["expand"] * WIDTH) // HEAD
    _fewer_layers(data)
    if isinstance(data.get("vocab_size"), int) and data["vocab_size"] > VOCABULARY:
        data["vocab_size"] = VOCABULARY
        for name, value in list(data.items()):
            if name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
                data[name] = 0 if name == "pad_token_id" else VOCABULARY - 1
            elif name.endswith("_token_id") and isinstance(value, list):
                data[name] = [min(one, VOCABULARY - 1) for one in value]
    for name in ("vocab_size_per_layer_input",):
        if isinstance(data.get(name), int):
            data[name] = min(data[name], VOCABULARY)


def _fewer_layers(data: dict[str, Any]) -> None:
    """Keep only the first layers, up to the first of every kind."""
    count = next((data[name] for name in _LAYER_COUNTS if isinstance(data.get(name), int)), None)
    if count is None:
        return
    lists = [
        name
        for name, value in data.items()
        if isinstance(value, list) and len(value) == count and name not in ("architectures",)
    ]
    keep = min(count, LAYERS)
    for name in lists:
        kinds = [str(one) for one in data[name]]
        keep = max(keep, 1 + max(kinds.index(kind) for kind in set(kinds)))
    for name, period in data.items():
        if name.endswith(("_layer_period", "_every_n_layers", "_pattern", "_interval")) and isinstance(period, int):
            keep = max(keep, min(count, period + 1))
    for name in ("attn_layer_indices", "full_attn_idxs"):  # which layers, among recurrent ones, have attention
        if isinstance(data.get(name), list) and data[name]:
            data[name] = [min(min(data[name]), LAYERS - 1)]
    for name in ("block_types",):
        if isinstance(data.get(name), list):
            keep = max(keep, len(data[name]))
    keep = min(keep, 10, count)
    if isinstance(data.get("per_layer_config"), dict):
        data["per_layer_config"] = {key: one for key, one in data["per_layer_config"].items() if int(key) < keep}
    for name in lists:
        data[name] = data[name][:keep]
    for name in _LAYER_COUNTS:
        if isinstance(data.get(name), int):
            data[name] = keep
    for name in ("first_k_dense_replace", "num_kv_shared_layers", "moe_layer_start_index", "mlp_only_layers"):
        if isinstance(data.get(name), int):
            data[name] = min(data[name], 1 if name == "first_k_dense_replace" else 0)
    if isinstance(data.get("moe_layer_end_index"), int):
        data["moe_layer_end_index"] = keep - 1
