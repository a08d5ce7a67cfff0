"""Settings that do not go together, refused before anything is computed, each with its reason and its fix.

A rule stands here because the combination fails late, trains wrongly, or silently does nothing. What is refused where
it is read is not repeated: keys of TrainingArguments that packtrain decides (`owned`), kernels that a machine lacks
(`fused_loss`), and parallelism that would cut rows (`parallel`). torch.compile goes with per-document attention on a
CPU, with the chunked loss and with offloading: that was tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import ConfigError
from .adapters import is_adapted, is_quantised

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")
"""Names of the attention-dropout key in transformers' configurations."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the rules check, as plain values."""

    device: str = "cpu"
    attention: str = "auto"
    static_shapes: bool = False
    graphs: bool = False
    """Whether torch.compile records CUDA graphs."""
    liger: bool = False
    offloads: bool = False
    checkpointing: bool = False
    mixed: str | None = None
    """`bf16`, `fp16` or None."""
    weights: str | None = "float32"
    """Dtype of the trained weights; None if no weights are trained."""
    dropout: bool = False
    """Whether the model's configuration has attention dropout."""
    quantised: bool = False
    adapted: bool = False
    merge: bool = False
    """Whether the export merges the adapters."""
    sharded: str | None = None
    """`FSDP`, `DeepSpeed` or None."""

    @classmethod
    def of(cls, config: Any, model: Any, arguments: Any) -> "Settings":
        """Read from a TrainConfig, the loaded model and transformers.TrainingArguments."""
        options = config.compile if isinstance(config.compile, dict) else {}
        trained = [weight.dtype for weight in model.parameters() if weight.requires_grad]
        text = model.config.get_text_config()
        kinds = ("gradient_checkpointing", "activation_checkpointing")
        return cls(
            device=torch.device(arguments.device).type,
            attention=config.attention,
            static_shapes=config.loader.static_shapes is not False,
            graphs=options.get("mode") in GRAPH_MODES,
            liger=config.loss_kernel == "liger",
            offloads=config.offload_activations,
            checkpointing=any(getattr(arguments, kind, False) for kind in kinds),
            mixed="bf16" if arguments.bf16 else "fp16" if arguments.fp16 else None,
            weights=str(trained[0]).removeprefix("torch.") if trained else None,
            dropout=any(isinstance(found := getattr(text, key, 0), int | float) and found > 0 for key in DROPOUTS),
            quantised=is_quantised(model),
            adapted=is_adapted(model),
            merge=config.export is not None and config.export.merge,
            sharded=_sharded(arguments),
        )


def faults(s: Settings) -> Iterator[str]:
    """`keys: reason. Fix` of each forbidden combination."""
    if s.liger and s.offloads:
        yield (
            "loss_kernel: liger with offload_activations: Liger's cross-entropy writes gradients over its inputs, of "
            "which offloading holds copies. Take loss_kernel: chunked, or leave offloading out"
        )
    if s.offloads and s.checkpointing:
        yield (
            "offload_activations with trainer.gradient_checkpointing: a checkpointed layer keeps its input where "
            "offloading does not reach it; less than a sixth was left to offload, at the cost of both. Take one of "
            "the two: checkpointing computes layers twice, offloading copies activations to the host"
        )
    if s.graphs and not s.static_shapes:
        yield (
            "compile: {mode: …} with loader.static_shapes: false: a CUDA graph is recorded for one shape, and packed "
            "rows differ in length and number of documents. Set loader: {static_shapes: true}, or compile: true"
        )
    if s.graphs and s.offloads:
        yield (
            "compile: {mode: …} with offload_activations: a CUDA graph writes its activations to the same memory at "
            "every replay, while they are still copied to the host. Set compile: true, or leave offloading out"
        )
    if s.mixed == "fp16" and s.device == "cpu":
        yield "trainer.fp16 on a CPU: it has no loss scaler there. Take trainer: {bf16: true}, or neither"
    if s.weights == "float16":
        yield (
            "model.dtype: float16: small updates of float16 weights are lost, and the loss scaler refuses float16 "
            "gradients. Take model: {dtype: float32} with trainer: {fp16: true}, or model: {dtype: bfloat16}"
        )
    if s.weights == "bfloat16" and s.mixed == "fp16":
        yield (
            "model.dtype: bfloat16 with trainer.fp16: float16's range does not hold such weights. "
            "Take trainer: {bf16: true}"
        )
    if s.dropout and s.attention not in ("sdpa", "eager"):
        yield (
            "attention dropout: kernels over packed documents do not drop attention weights, and the model's "
            "configuration asks for it. Set it to 0, under model: {overrides: {attention_dropout: 0.0}} or the name "
            "that the model has for it"
        )
    if s.quantised and not s.adapted:
        yield (
            "model.quantization without lora: quantised weights take no gradients. Add lora: {r: 16}, or load the "
            "model without quantization"
        )
    if s.quantised and s.sharded == "DeepSpeed":
        yield "model.quantization with DeepSpeed: ZeRO cannot cut quantised weights. Take DDP or FSDP2"
    if s.merge and not s.adapted:
        yield "export.merge without lora: there are no adapters to merge. Leave merge out, or add lora"
    if s.merge and s.quantised:
        yield (
            "export.merge with model.quantization: merging would round away what the adapters learned. Leave merge "
            "out, and merge the adapters into the model loaded without quantization"
        )
    if s.merge and s.sharded:
        yield (
            "export.merge with sharded weights: no rank holds whole weights. Leave merge out, and merge the exported "
            "adapters in a process of its own"
        )
    if s.weights is None:
        yield "nothing to train: no weight of the model takes a gradient. Add lora, or leave weights trainable"


def check_combinations(config: Any, model: Any, arguments: Any) -> None:
    """Refuse what does not go together.

    Args:
        config: a TrainConfig.
        model: loaded, with its adapters, not wrapped.
        arguments: transformers.TrainingArguments.

    Raises:
        ConfigError: names all combinations at fault, each with the reason and what to do.
    """
    if found := list(faults(Settings.of(config, model, arguments))):
        raise ConfigError("\n".join(found))


def _sharded(arguments: Any) -> str | None:
    kind = str(getattr(getattr(arguments, "distributed_state", None), "distributed_type", "")).rpartition(".")[2]
    if getattr(arguments, "deepspeed_plugin", None) or getattr(arguments, "deepspeed", None) or kind == "DEEPSPEED":
        return "DeepSpeed"
    return "FSDP" if kind == "FSDP" or getattr(arguments, "fsdp", None) else None
