"""How fast a training is: tokens a second, and the share of the device's peak that the model's operations make use of.

The trainer reports every micro-batch as it is drawn, and how long it waited for it. When a line is logged, the figures
since the last one are gathered from all ranks. Rates are per device. With fixed shapes (`loader.static_shapes`) padding
counts as tokens.

The operations are the *model's*, by `schemas.flops`: its matrices (of a mixture of experts only those that a token goes
to) and its full attention. What checkpointing repeats does not count, nor do attention within a sliding window and
recurrent layers' scans, which are small beside the matrices.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...schemas.flops import ModelShape, matrix_flops
from ...schemas.rows import IGNORE_INDEX
from ..attention.apply import unwrap
from .model import EXPERTS


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """FLOPs of a model, forward and backward."""

    body: ModelShape
    """All matrices but the head; a frozen weight, which takes no gradient, counts as two thirds of a trained one."""
    head: float
    """Weights of the head, likewise."""

    @classmethod
    def of(cls, model: nn.Module) -> "ModelFlops":
        """Read the numbers from the model's modules and configuration; the model may be wrapped.

        Call this before sharding: FSDP and ZeRO leave each rank only a part of the weights.
        """
        bare = unwrap(model)
        config, output = bare.config.get_text_config(), bare.get_output_embeddings()
        body = head = 0.0
        for module, name, weight, size in _matrices(model):
            weights = size if weight.requires_grad else size * 2 / 3
            if module is output:
                head = weights
            else:
                body += weights * (_active(config) if "experts" in name.split(".") else 1.0)
        heads = int(getattr(config, "num_attention_heads", 0) or 0)
        if getattr(config, "v_head_dim", None) and getattr(config, "qk_rope_head_dim", None):  # DeepSeek
            dims = (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) / 2
        else:
            dims = getattr(config, "head_dim", None) or config.hidden_size // max(1, heads)
        return cls(ModelShape(body, _full_layers(config), round(heads * dims)), head)

    def of_lengths(self, lengths: NDArray[np.integer], predictions: float | None = None) -> float:
        """FLOPs of a forward and backward pass over documents with these lengths, (D,).

        Args:
            predictions: number of tokens that go through the head; None for all.
        """
        wide = lengths.astype(np.float64)
        tokens = float(wide.sum())
        headed = tokens if predictions is None else predictions
        return self.body.flops(tokens, float((wide**2).sum())) + matrix_flops(self.head, headed)


def _matrices(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter, float]]:
    """(module, its name, weight, number of elements) of every weight that tokens are multiplied with."""
    for name, module in model.named_modules():
        if hasattr(module, "in_features") and hasattr(module, "out_features") and hasattr(module, "weight"):
            # By its sizes: quantised weights are stored in fewer numbers, and adapters hold the true layer within.
            if isinstance(module.weight, nn.Parameter) and not hasattr(module, "base_layer"):
                yield module, name, module.weight, float(module.in_features * module.out_features)
        elif not isinstance(module, nn.Embedding):
            for weight in module.parameters(recurse=False):
                if weight.ndim >= 2:
                    # DeepSpeed keeps the true number aside where it has cut the weights when the model was made.
                    yield module, name, weight, float(getattr(weight, "ds_numel", weight.numel()))


def _active(config: Any) -> float:
    """Share of the experts that each token goes to."""
    number = next((found for key in EXPERTS if (found := getattr(config, key, None))), 1)
    chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_top_k", None) or 1
    return float(chosen) / number


def _full_layers(config: Any) -> int:
    """Layers in which a token attends to all before it."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return sum(kind in ("full_attention", "attention") for kind in kinds)
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return 0 if windowed else int(config.num_hidden_layers)


PEAKS = {
    "B200": 2250.0, "GH200": 989.4, "H200 NVL": 835.5, "H200": 989.4, "H100 PCIe": 756.0, "H100 NVL": 835.5,
    "H100": 989.4, "H20": 148.0, "A100": 311.9, "A10G": 70.0, "A10": 125.0, "L40S": 362.1, "L4": 121.0,
    "RTX 5090": 209.5, "RTX 4090": 165.2, "RTX 3090": 71.2, "MI300X": 1307.4,
}  # fmt: skip
"""Name within torch.cuda.get_device_name, the more particular first → dense TFLOP/s in bf16 or fp16 with float32 sums.
From the makers' data sheets, halved where those count sparse matrices."""


def peak_flops(device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> float | None:
    """Operations a second of a device in bf16 or fp16, dense; None for CPUs, other dtypes and unknown GPUs."""
    known = torch.device(device).type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    return peak_of(torch.cuda.get_device_name(device)) if known else None


def peak_of(name: str) -> float | None:
    """The table's number for a device of this name, in operations a second."""
    words = f" {name.replace('-', ' ')} "
    return next((teraflops * 1e12 for known, teraflops in PEAKS.items() if f" {known} " in words), None)


class Meter:
    """Sums of one rank since the last log line.

    Args:
        flops: of the model, made before it was sharded.
        peak: operations a second of the device; None where it is not known, and so no utilisation.
        clock: seconds.
    """

    def __init__(self, flops: ModelFlops, peak: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.flops, self.peak, self.clock = flops, peak, clock
        self._begun: float | None = None
        self._clear()

    def batch(self, batch: Mapping[str, Any], waited: float = 0.0) -> None:
        """Count a packed micro-batch that is still on the CPU, and the seconds that the trainer waited for it."""
        if self._begun is None:  # what came before the first batch is not training
            self._begun = self.clock() - waited
        lengths = np.diff(batch["cu_seq_lens_q"].numpy())
        predictions = int((batch["labels"][:, 1:] != IGNORE_INDEX).sum())
        self._waited += waited
        self._tokens += int(lengths.sum())
        self._flops += self.flops.of_lengths(lengths, predictions)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context for other work, such as an evaluation, whose time does not count."""
        began = self.clock()
        try:
            yield
        finally:
            self._paused += self.clock() - began

    def collect(self, tokens_before: int) -> dict[str, float]:
        """The figures since the last call, over all ranks; every rank must call it, after the same step.

        Args:
            tokens_before: `tokens_seen` of the last call.

        Returns:
            `tokens_per_second`, and `model_tflops` (10¹² operations a second), both per device; `mfu`, where the peak
            is known; `loader_wait` (share of the time that the rank which waited longest waited for batches);
            `tokens_seen` (over all ranks, since training began). Empty where nothing was done.
        """
        from accelerate.utils import gather_object

        now = self.clock()
        elapsed = 0.0 if self._begun is None else now - self._begun - self._paused
        ranks = np.array(gather_object([(elapsed, self._waited, self._tokens, self._flops)]))
        self._clear()
        self._begun = None if self._begun is None else now
        slowest, waited = ranks[:, :2].max(0)
        tokens, flops = ranks[:, 2:].sum(0)
        if slowest <= 0 or not tokens:
            return {}
        speed = flops / slowest / len(ranks)
        figures = {"tokens_per_second": tokens / slowest / len(ranks), "model_tflops": speed / 1e12}
        if self.peak is not None:
            figures["mfu"] = speed / self.peak
        return {**figures, "loader_wait": waited / slowest, "tokens_seen": tokens_before + int(tokens)}

    def _clear(self) -> None:
        self._waited = self._paused = self._flops = 0.0
        self._tokens = 0
