"""`packtrain probe MODEL`: finds out whether an architecture keeps packed documents apart, before a run is planned.

Needs no tokenizer, data, GPU or weights, because only code decides what leaks. Without weights it is probed as a tiny
model of the same architecture: widths shrink, heads stay grouped, and some layers of every kind remain. Lengths in the
configuration (sliding windows, chunks) shrink as well, so that documents of a probe are longer than a window.
"""

from pathlib import Path
from typing import Any

import torch

from ..schemas.errors import ConfigError
from .attention.apply import Applied, use_packed
from .model import default_device, draw_weights, load_weights, message_of, read_config
from .probe import ProbeReport, probe

WIDTH, HEAD, HEADS, LAYERS, VOCABULARY, WINDOW = 64, 16, 4, 2, 512, 8

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
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def probe_model(where: Path, *, attention: str = "auto", dtype: str | None = None) -> tuple[ProbeReport, Applied, str]:
    """Build the model and probe it as the trainer would.

    Args:
        where: a folder with config.json and weights; or a config.json, or a folder without weights, for a tiny model of
            this architecture with random weights.
        attention: as in the trainer's configuration.
        dtype: dtype of the weights; by default bfloat16 on CUDA, float32 elsewhere.

    Returns:
        The report, the attention that was applied, and a description of how the model was made.

    Raises:
        ConfigError: there is no model, or transformers does not know it as a causal language model.
        AttentionError: the attention cannot be applied.
    """
    try:
        from transformers import logging
    except ImportError:
        raise ConfigError("the probe needs transformers; pip install 'packtrain[train]'") from None
    folder = where.parent if where.name == "config.json" else where
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{where}: there is no config.json; give the folder of a model, as save_pretrained writes it")
    place = default_device()
    dtype = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    logging.set_verbosity_error()  # this process does nothing else, and the table shows what matters
    logging.disable_progress_bar()
    kind = getattr(torch, dtype)
    if folder == where and any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        made, model = "its own weights", load_weights(folder, dtype=kind)
    else:
        config = read_config(folder)
        try:
            small = shrink(config)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"{config.model_type} cannot be shrunk ({message_of(error)})"
            raise ConfigError(f"{where}: {said}; give a folder with weights") from error
        made, model = "tiny, weights at random", draw_weights(small, 0, dtype=kind)
    model.to(place)
    applied = use_packed(model, attention)
    return probe(model), applied, f"{made}, {dtype} on {place.type}"


def shrink(config: Any) -> Any:
    """Return a tiny configuration of the same architecture; configurations within it shrink too.

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
