"""Tiny random models of transformers' architectures, and what becomes of packed documents in them."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from packtrain.schemas.errors import AttentionError
from packtrain.training import collate
from packtrain.training.attention.isolation_probe import probe
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.probe_report import ProbeReport
from packtrain.training.attention.probe_setup import shrink
from packtrain.training.attention.varlen import NAME
from packtrain.training.models.model_parts import configs_of
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, logging

torch.set_num_threads(1)
logging.set_verbosity_error()
warnings.filterwarnings("ignore", module="transformers")

_FROM_5_24 = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)


I, L, R, P = "isolated", "leaks", "refused", "wrong positions"  # noqa: E741
VERDICTS: dict[tuple[str, str], str] = {
    (I, I): "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi3 gpt2 gpt_neox olmo2 "
    "olmo3 granite glm4 deepseek_v2 deepseek_v3 llama4_text phimoe moshi smollm3 stablelm nemotron deepseek_v32 "
    "glm_moe_dsa doge",
    (L, I): "gpt_oss afmoe opt biogpt",
    (I, R): "gpt_neo falcon" if _FROM_5_24 else "gpt_neo",
    (L, R): "" if _FROM_5_24 else "falcon",
    (L, L): "bloom mpt xglm bamba falcon_h1 lfm2 nemotron_h mamba mamba2 falcon_mamba jamba recurrent_gemma",
    (R, R): "qwen3_next",
    (L, P): "bart pegasus",
}
"""What is expected of model_types of transformers, with their own attention, positions, no mask and no cache; and with
`attention: auto`."""
SIZES = {"num_hidden_layers": 2, "vocab_size": 512, "pad_token_id": 0}
"""Of every model, by transformers' standard names, before its configuration is shrunk."""
_MAMBA = {"hidden_size": 64, "mamba_n_heads": 8, "mamba_d_state": 16}
_INDEXED = {"q_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 1},
    "phimoe": {"sliding_window": 100},
    **{kind: {"num_hidden_layers": 4} for kind in ("olmo3", "smollm3", "llama4_text", "afmoe")},
    "gemma3_text": {"num_hidden_layers": 6},
    "nemotron": {"num_key_value_heads": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v3": {"first_k_dense_replace": 1},
    "deepseek_v32": _INDEXED,
    "glm_moe_dsa": _INDEXED,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "bamba": {**_MAMBA, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA, "mamba_d_head": 8, "mamba_d_ssm": 64},
    "mamba2": {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 16},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "bart": {"decoder_layers": 2},
    "pegasus": {"decoder_layers": 2},
}
"""What else it needs: layers of every kind, and sizes of names that are its own."""
NO_DROPOUT = ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob")


def configure(kind: str, **settings: Any) -> Any:
    """A tiny configuration, without dropout of attention weights."""
    made = CONFIG_MAPPING[kind]
    sizes = {made.attribute_map.get(name, name): size for name, size in SIZES.items()}
    config = shrink(made(**{**sizes, **SETTINGS.get(kind, {}), **settings}))
    for one in configs_of(config):
        for name in NO_DROPOUT:
            if getattr(one, name, None) and name not in settings:
                setattr(one, name, 0.0)
    return config


def build(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A tiny model with weights at random, the same ones every time."""
    config = configure(kind, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def row(*documents: list[int]) -> dict[str, torch.Tensor]:
    """A packed row of these documents, in which every label but a document's first counts."""
    return {
        "input_ids": torch.tensor([token for one in documents for token in one]),
        "labels": torch.tensor([token if place else -100 for one in documents for place, token in enumerate(one)]),
        "position_ids": torch.tensor([place for one in documents for place, _ in enumerate(one)]),
        "seq_lengths": torch.tensor([len(one) for one in documents]),
    }


def tokens(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Documents of random tokens."""
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 500, (length,), generator=random).tolist() for length in lengths]


def packed(kind: str = "llama", **settings: Any) -> Any:
    """A tiny model with packed attention."""
    model = build(kind, **settings)
    use_packed(model)
    return model


def batch(*lengths: int, seed: int = 0) -> dict[str, Any]:
    """A batch of one row of random documents, as the loader makes it."""
    return collate([row(*tokens(*lengths, seed=seed))])


def with_default_cache(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with `use_cache` left to the model."""
    return {name: value for name, value in batch.items() if name != "use_cache"}


def with_ones(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with the mask that collators like to add."""
    return {**batch, "attention_mask": torch.ones(batch["labels"].shape, dtype=torch.int64)}


def verdict(report: ProbeReport) -> str:
    """In a word."""
    failed = {check.name for check in report.checks if not check.passed}
    if "runs" in failed:
        return R
    if "isolation" in failed:
        return L
    if "equivalence" in failed:
        return P
    return ", ".join(sorted(failed)) or I


def judge(model: Any, attention: str | None, change: Callable[[dict[str, Any]], Any] = dict) -> tuple[str, str]:
    """(verdict, attention) of a model with its own attention (None), or with one of packtrain's."""
    if attention is not None:
        try:
            use_packed(model, attention)
        except AttentionError:
            return R, "none"
    report = probe(model, call=lambda batch: model(**change(batch)))
    return verdict(report), report.attention


def alone(model: Any) -> torch.Tensor:
    """Logits of one document that is longer than three of the tiny models' windows and chunks."""
    given = batch(25)
    if model.config._attn_implementation != NAME:
        given = {name: given[name] for name in ("input_ids", "position_ids", "use_cache")}
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(**given).logits
    return logits


def unlike(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, over the spread."""
    return float((one - other).abs().max() / other.std())
