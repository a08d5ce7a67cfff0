"""Settings that are known not to go together, refused before anything is computed, each with its reason and its mend.

Each rule is a row: what it is called, when it applies, why, and what to do. A rule stands here because the combination
fails late, trains wrongly, or silently does nothing. What is refused where it is read is not repeated: keys of
TrainingArguments that packtrain decides (`owned`), attention that a batch does not fit (`config`), and parallelism that
would cut rows (`trainer`).

Found by trying, and therefore no rule: torch.compile goes with per-document attention on a CPU (the graph breaks in
every layer, the result is the same), with the chunked loss, and with offloading.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import ConfigError
from .adapters import is_adapted, is_quantised

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")
"""How configurations of transformers call dropout of attention weights."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the rules look at, as plain values."""

    device: str = "cpu"
    batching: str = "packed"
    attention: str = "auto"
    static_shapes: bool = False
    compile_mode: str | None = None
    """None where nothing is compiled; `default`, or torch.compile's own mode."""
    loss: str = "token"
    loss_kernel: str = "auto"
    offload_activations: bool = False
    checkpointing: bool = False
    mixed: str | None = None
    """`bf16`, `fp16` or None."""
    weights: str = "float32"
    """Dtype of the weights that are trained."""
    dropout: tuple[str, float] | None = None
    """Key and value in the model's configuration, where attention weights are dropped."""
    quantised: bool = False
    adapted: bool = False
    merge: bool = False
    """Export with the adapters merged."""
    sharded: str | None = None
    """`FSDP`, `DeepSpeed` or None."""

    @classmethod
    def of(cls, config: Any, model: Any, arguments: Any) -> "Settings":
        """Read from a TrainConfig, the loaded model and transformers.TrainingArguments."""
        options = config.compile if isinstance(config.compile, dict) else {}
        trained = [weight.dtype for weight in model.parameters() if weight.requires_grad]
        return cls(
            device=torch.device(arguments.device).type,
            batching=config.batching,
            attention=config.attention,
            static_shapes=config.loader.static_shapes is not False,
            compile_mode=(options.get("mode") or "default") if config.compile else None,
            loss=config.loss,
            loss_kernel=config.loss_kernel,
            offload_activations=config.offload_activations,
            checkpointing=_checkpointing(arguments),
            mixed="bf16" if arguments.bf16 else "fp16" if arguments.fp16 else None,
            weights=_name(trained[0]) if trained else "none",
            dropout=_dropout(model),
            quantised=is_quantised(model),
            adapted=is_adapted(model),
            merge=config.export is not None and config.export.merge,
            sharded=_sharded(arguments),
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One combination that is refused."""

    keys: str
    """The keys at fault, as they stand in the configuration."""
    applies: Callable[[Settings], bool]
    reason: str
    mend: str

    def __str__(self) -> str:
        return f"{self.keys}: {self.reason}. {self.mend}"


def _packs(s: Settings) -> bool:
    return s.batching != "padded" and s.attention not in ("sdpa", "eager")


RULES = (
    Rule(
        "loss_kernel: liger with offload_activations",
        lambda s: s.loss_kernel == "liger" and s.offload_activations,
        "Liger's cross-entropy writes gradients over its inputs, of which offloading may hold a copy that it takes for "
        "still valid",
        "Take loss_kernel: chunked, which writes over nothing, or leave offloading out",
    ),
    Rule(
        "loss_kernel: liger with loss: document",
        lambda s: s.loss_kernel == "liger" and s.loss == "document",
        "Liger's cross-entropy cannot weigh tokens",
        "Take loss_kernel: chunked",
    ),
    Rule(
        "offload_activations with trainer.gradient_checkpointing",
        lambda s: s.offload_activations and s.checkpointing,
        "a checkpointed layer keeps its input where offloading does not reach; beside it less than a sixth was left to "
        "move in our measurement, at the full price of both",
        "Take one of the two: checkpointing computes layers twice, offloading copies activations to the host",
    ),
    Rule(
        "compile: {mode: …} with loader.static_shapes: false",
        lambda s: s.compile_mode in GRAPH_MODES and not s.static_shapes,
        "a CUDA graph is recorded for one shape, and packed rows differ in length and in their number of documents, so "
        "nearly every step would record another",
        "Set loader: {static_shapes: true}, or compile: true",
    ),
    Rule(
        "compile: {mode: …} with offload_activations",
        lambda s: s.compile_mode in GRAPH_MODES and s.offload_activations,
        "a CUDA graph writes its activations to the same memory at every replay, and a copy to the host that is still "
        "under way would be of the wrong step",
        "Set compile: true, or leave offloading out",
    ),
    Rule(
        "trainer.fp16 on a CPU",
        lambda s: s.mixed == "fp16" and s.device == "cpu",
        "float16 needs a loss scaler, which CPUs have none for, and is slower there than float32",
        "Take trainer: {bf16: true}, or neither",
    ),
    Rule(
        "model.dtype: float16",
        lambda s: s.weights == "float16",
        "updates of float16 weights are lost below a two-thousandth of the weight, and the loss scaler refuses float16 "
        "gradients",
        "Take model: {dtype: float32} with trainer: {fp16: true}, or model: {dtype: bfloat16}",
    ),
    Rule(
        "model.dtype: bfloat16 with trainer.fp16",
        lambda s: s.weights == "bfloat16" and s.mixed == "fp16",
        "weights in bfloat16 would be computed with in float16, whose range does not hold them",
        "Take trainer: {bf16: true}",
    ),
    Rule(
        "attention dropout",
        lambda s: s.dropout is not None and _packs(s),
        "kernels over packed documents have no dropout of attention weights, and the model's configuration asks for it",
        "Set it to 0, under model: {overrides: {attention_dropout: 0.0}} or the name that the model has for it",
    ),
    Rule(
        "model.quantization without lora",
        lambda s: s.quantised and not s.adapted,
        "quantised weights take no gradients, so nothing would be trained, or only norms and embeddings",
        "Add lora: {r: 16}, or load the model without quantization",
    ),
    Rule(
        "export.merge with model.quantization",
        lambda s: s.merge and s.quantised,
        "merging into quantised weights would round away what the adapters learned",
        "Leave merge out, and merge the adapters into the model loaded without quantization",
    ),
    Rule(
        "export.merge without lora",
        lambda s: s.merge and not s.adapted,
        "there are no adapters to merge",
        "Leave merge out, or add lora",
    ),
    Rule(
        "export.merge with sharded weights",
        lambda s: s.merge and s.sharded is not None,
        "no rank holds whole weights to merge into",
        "Leave merge out, and merge the exported adapters in a process of its own",
    ),
    Rule(
        "model.quantization with DeepSpeed",
        lambda s: s.quantised and s.sharded == "DeepSpeed",
        "ZeRO cuts weights into pieces without knowing how quantised ones are stored",
        "Take DDP or FSDP2",
    ),
    Rule(
        "loss_kernel: liger on a CPU",
        lambda s: s.loss_kernel == "liger" and s.device == "cpu",
        "Liger's kernels are written in Triton, for GPUs",
        "Take loss_kernel: chunked, which saves the same memory",
    ),
    Rule(
        "nothing to train",
        lambda s: s.weights == "none",
        "no weight of the model takes a gradient",
        "Add lora, or leave the model's weights trainable (requires_grad)",
    ),
)


def check_combinations(config: Any, model: Any, arguments: Any) -> None:
    """Refuse what does not go together.

    Args:
        config: a TrainConfig.
        model: loaded, with its adapters, not wrapped.
        arguments: transformers.TrainingArguments.

    Raises:
        ConfigError: names all combinations at fault, each with the reason and what to do.
    """
    refuse(Settings.of(config, model, arguments))


def refuse(settings: Settings) -> None:
    """The rules alone. Raises ConfigError."""
    found = [str(rule) for rule in RULES if rule.applies(settings)]
    if found:
        raise ConfigError("\n".join(found))


def _checkpointing(arguments: Any) -> bool:
    return any(bool(getattr(arguments, f"{kind}_checkpointing", False)) for kind in ("gradient", "activation"))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sharded(arguments: Any) -> str | None:
    if getattr(arguments, "deepspeed_plugin", None) is not None or getattr(arguments, "deepspeed", None):
        return "DeepSpeed"
    kind = str(getattr(getattr(arguments, "distributed_state", None), "distributed_type", "")).rpartition(".")[2]
    if kind == "DEEPSPEED":
        return "DeepSpeed"
    return "FSDP" if kind == "FSDP" or getattr(arguments, "fsdp", None) else None


def _dropout(model: Any) -> tuple[str, float] | None:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    for key in DROPOUTS:
        value = getattr(config, key, None)
        if isinstance(value, int | float) and value > 0:
            return key, float(value)
    return None
