"""Tiny random models of transformers' architectures, and what becomes of packed documents in them.

Used by the tests beside it and by tests/bench/bench_isolation.py, which prints the whole table.
"""

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention import BLOCK_NAME, NAME, use_packed
from packtrain.training.batch import flatten
from packtrain.training.probe import ProbeReport, probe
from packtrain.training.probe.tiny import WINDOW, shrink
from packtrain.training.shard import Row
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
    Architecture("gpt2", I, I, {"attn_pdrop": 0.0}),
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
    Architecture("biogpt", L, I, {"attention_probs_dropout_prob": 0.0}),
    Architecture("stablelm", I, I),
    Architecture("nemotron", I, I),
    Architecture("deepseek_v32", I, I),
    Architecture("glm_moe_dsa", I, I),
    Architecture("doge", I, I),
    Architecture("falcon", I if _FROM_5_24 else L, R),
    Architecture("bloom", L, R),
    Architecture("mpt", L, R),
    Architecture("gpt_neo", I, R),
    Architecture("xglm", L, R),
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


def build(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A tiny model with weights at random, the same ones every time."""
    config = shrink(CONFIG_MAPPING[kind](**settings))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def strip(*documents: list[int]) -> Row:
    """A packed row of these documents, in which every label but a document's first counts."""
    import numpy as np

    return Row(
        input_ids=np.array([token for one in documents for token in one], dtype=np.int32),
        labels=np.array([token if i else -100 for one in documents for i, token in enumerate(one)], dtype=np.int32),
        position_ids=np.array([i for one in documents for i, _ in enumerate(one)], dtype=np.int32),
        seq_lengths=np.array([len(one) for one in documents], dtype=np.int32),
    )


def row(*lengths: int, seed: int = 0) -> Row:
    """Documents of random tokens."""
    random = torch.Generator().manual_seed(seed)
    return strip(*(torch.randint(5, 500, (length,), generator=random).tolist() for length in lengths))


def with_default_cache(rows: Any) -> dict[str, Any]:
    """The loader's batch, `use_cache` left to the model."""
    return {name: value for name, value in flatten(rows).items() if name != "use_cache"}


def with_ones(rows: Any) -> dict[str, Any]:
    """The loader's batch with the mask that collators like to add."""
    batch = flatten(rows)
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def verdict(report: ProbeReport) -> str:
    """In a word; static checks of the batch apart."""
    failed = {check.name for check in report.checks if not check.passed} - {"batch"}
    if "runs" in failed:
        return R
    if "isolation" in failed:
        return L
    if "equivalence" in failed:
        return P
    return I if not failed - {"layers", "dropout"} else ", ".join(sorted(failed))


def judge(model: Any, attention: str | None, make: Any = flatten) -> tuple[str, str]:
    """(verdict, attention) of a model with its own attention (None), or with one of packtrain's."""
    if attention is not None:
        try:
            use_packed(model, attention)
        except AttentionError:
            return R, "none"
    report = probe(model, make=make, explain=False)
    return verdict(report), report.attention


def alone(model: Any) -> torch.Tensor:
    """Logits of one document that is longer than the tiny models' windows and chunks."""
    batch = flatten([row(3 * WINDOW + 1)])
    if model.config._attn_implementation not in (NAME, BLOCK_NAME):
        batch = {name: batch[name] for name in ("input_ids", "position_ids", "use_cache")}
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(**batch).logits
    return logits


def unlike(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, over the spread."""
    return float((one - other).abs().max() / other.std())
