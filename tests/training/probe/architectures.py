"""Tiny random models of transformers' architectures, and what becomes of packed documents in them."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from packtrain.schemas.errors import AttentionError
from packtrain.training import collate
from packtrain.training.attention import NAME, use_packed
from packtrain.training.attention.apply import configs_of
from packtrain.training.probe import ProbeReport, probe
from packtrain.training.probe_command import WINDOW, shrink
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, logging

torch.set_num_threads(1)
logging.set_verbosity_error()
warnings.filterwarnings("ignore", module="transformers")

_FROM_5_24 = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
_LAYERS = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}


@dataclass(frozen=True)
class Architecture:
    """One, and what is expected of it."""

    kind: str
    """transformers' model_type."""
    own: str
    """With the model's own attention, positions, no mask and no cache."""
    packed: str
    """With `attention: auto`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of its configuration, before it is shrunk."""


I, L, R, P = "isolated", "leaks", "refused", "wrong positions"  # noqa: E741

ARCHITECTURES = [
    Architecture("llama", I, I),
    Architecture("mistral", I, I),
    Architecture("mixtral", I, I),
    Architecture("qwen2", I, I, {"use_sliding_window": True, "max_window_layers": 1}),
    Architecture("qwen2_moe", I, I, {"use_sliding_window": True, "max_window_layers": 1}),
    Architecture("qwen3", I, I),
    Architecture("qwen3_moe", I, I),
    Architecture("gemma", I, I),
    Architecture("gemma2", I, I),
    Architecture("gemma3_text", I, I),
    Architecture("phi3", I, I),
    Architecture("gpt2", I, I),
    Architecture("gpt_neox", I, I),
    Architecture("olmo2", I, I),
    Architecture("olmo3", I, I),
    Architecture("granite", I, I),
    Architecture("glm4", I, I),
    Architecture("deepseek_v2", I, I),
    Architecture("deepseek_v3", I, I),
    Architecture("llama4_text", I, I),
    Architecture("phimoe", I, I, {"sliding_window": 100}),
    Architecture("moshi", I, I),
    Architecture("smollm3", I, I),
    Architecture("gpt_oss", L, I),
    Architecture("afmoe", L, I),
    Architecture("opt", L, I),
    Architecture("biogpt", L, I),
    Architecture("stablelm", I, I),
    Architecture("nemotron", I, I),
    Architecture("deepseek_v32", I, I),
    Architecture("glm_moe_dsa", I, I),
    Architecture("doge", I, I),
    Architecture("falcon", I if _FROM_5_24 else L, R),
    Architecture("bloom", L, L),
    Architecture("mpt", L, L),
    Architecture("gpt_neo", I, R),
    Architecture("xglm", L, L),
    Architecture("bamba", L, L),
    Architecture("falcon_h1", L, L),
    Architecture("lfm2", L, L, _LAYERS),
    Architecture("nemotron_h", L, L),
    Architecture("mamba", L, L),
    Architecture("mamba2", L, L),
    Architecture("falcon_mamba", L, L),
    Architecture("jamba", L, L),
    Architecture("recurrent_gemma", L, L),
    Architecture("qwen3_next", R, R),
    Architecture("bart", L, P),
    Architecture("pegasus", L, P),
]


NO_DROPOUT = ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob")


def build(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A tiny model with weights at random, the same ones every time, and no dropout of attention weights."""
    config = shrink(CONFIG_MAPPING[kind](**settings))
    for name in NO_DROPOUT:
        for one in configs_of(config):
            if getattr(one, name, None) and name not in settings:
                setattr(one, name, 0.0)
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
    """Logits of one document that is longer than the tiny models' windows and chunks."""
    given = batch(3 * WINDOW + 1)
    if model.config._attn_implementation != NAME:
        given = {name: given[name] for name in ("input_ids", "position_ids", "use_cache")}
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(**given).logits
    return logits


def unlike(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, over the spread."""
    return float((one - other).abs().max() / other.std())
