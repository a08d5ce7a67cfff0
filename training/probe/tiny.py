"""Makes a tiny model of the same architecture, because what leaks between documents depends on code, not on sizes.

Widths shrink, heads stay grouped, and some layers of every kind remain. Lengths in the configuration (sliding windows,
chunks) shrink as well, so that documents of a probe are longer than a window.
"""

from typing import Any

WIDTH, HEAD, HEADS, LAYERS, VOCABULARY, WINDOW = 64, 16, 4, 2, 512, 8

_WIDTHS = ("hidden_size", "n_embd", "d_model", "embedding_size", "embed_dim", "word_embed_proj_dim", "model_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_HEADS_OF_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_global_key_value_heads")
_DIMS = ("head_dim", "kv_channels", "qk_head_dim", "v_head_dim", "global_head_dim", "attention_head_dim", "d_head")
_WIDE = (
    "intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size",
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "intermediate_size_mlp",
    "shared_intermediate_size", "block_ff_dim", "ffn_hidden_size", "block_dim", "dense_intermediate_size",
)  # fmt: skip
_LAYER_COUNTS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk", "top_k_experts")
_WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "sliding_window_size", "window_size")
_RANKS = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "o_lora_rank": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 64,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "mamba_n_groups": 1, "n_groups": 1, "state_size": 16, "mamba_d_state": 16, "ssm_state_size": 16,
    "lru_width": WIDTH, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "time_step_rank": 4, "mamba_dt_rank": 4, "attention_hidden_size": WIDTH,
    "num_key_value_groups": 1, "rotary_dim": 8,
    "expert_ffn_hidden_size": 128, "n_group": 1, "topk_group": 1, "hidden_size_per_layer_input": 16,
    "max_position_embeddings": 512, "n_positions": 512, "max_target_positions": 512,
}  # fmt: skip


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
    for names, size in ((_WIDTHS, WIDTH), (_HEADS, HEADS), (_DIMS, HEAD), (_WIDE, 2 * WIDTH), (_EXPERTS, 4)):
        for name in names:
            if isinstance(data.get(name), int):
                data[name] = size
            elif isinstance(data.get(name), list):
                data[name] = [size for _ in data[name]]
    left_open = {"head_dim": HEAD, "num_key_value_heads": heads, "n_routed_experts": 4, _PER_TOKEN[0]: 2}
    for name, missing in left_open.items():
        if data.get(name, 0) is None:  # the architecture's defaults leave it open; checkpoints set it
            data[name] = missing
    if isinstance(data.get("qk_rope_head_dim"), int) and isinstance(data.get("head_dim"), int):
        data["head_dim"] = _RANKS["qk_rope_head_dim"]  # DeepSeek reads this as the rotary dimension
    for name in _HEADS_OF_KEYS:
        if isinstance(data.get(name), int):
            data[name] = HEADS if data[name] == heads else 1 if data[name] == 1 else 2
    for name in _PER_TOKEN:
        if isinstance(data.get(name), int):
            data[name] = min(2, data[name])
    for name in _WINDOWS:
        if isinstance(data.get(name), int) and data[name] > 0:
            data[name] = WINDOW
    for name, size in _RANKS.items():
        if isinstance(data.get(name), int) and not isinstance(data[name], bool):
            data[name] = size
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
