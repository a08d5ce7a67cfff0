"""Timing one way to train: a model of random weights, batches, and steps for a given time."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from packtrain.training.attention import use_packed
from packtrain.training.trainer.fused_loss import FusedLoss, fuse_loss
from packtrain.training.trainer.loss import targets
from packtrain.training.trainer.meter import ModelFlops, peak_flops

if TYPE_CHECKING:
    from tests.bench.gpu_batches import Counts, counts, endless, on_device
else:
    from gpu_batches import Counts, counts, endless, on_device


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train."""

    name: str
    batching: str
    attention: str
    loss: str = "none"
    """As `loss_kernel` of a training: `none` makes all logits, as transformers does by itself."""
    compile: bool = False
    checkpointing: bool = False
    trainer: str = ""
    """`packtrain` or `trl`: through that trainer; else a bare loop."""


@dataclass(slots=True)
class Measured:
    """What was measured, per second and over the measured steps alone."""

    name: str
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    """Real ones: padding does not count."""
    computed: int = 0
    trained: int = 0
    flops: float = 0.0
    waited: float = 0.0
    """Seconds that the loop spent in the loader's next()."""
    peak_bytes: int = 0
    prepared: float = 0.0
    """Seconds before the first measured step: building, warming up, compiling."""
    kernel: str = ""
    losses: list[float] = field(default_factory=list)
    """Of the first and the last step."""
    failed: str = ""

    def add(self, made: Counts, flops: float) -> None:
        """One step more."""
        self.steps += 1
        self.tokens += int(made.lengths.sum())
        self.computed += made.computed
        self.trained += made.trained
        self.flops += flops

    def to_json(self, peak: float | None) -> dict[str, Any]:
        """The numbers and what follows from them; `utilisation` is null where the device's peak is not known."""
        rate = 1 / self.seconds if self.seconds else 0.0
        return {
            "name": self.name,
            "tokens_per_second": self.tokens * rate,
            "trained_per_second": self.trained * rate,
            "utilisation": self.flops * rate / peak if peak else None,
            "fill": self.tokens / self.computed if self.computed else 0.0,
            "wait": self.waited * rate,
            "peak_bytes": self.peak_bytes,
            "steps": self.steps,
            "seconds": self.seconds,
            "prepared": self.prepared,
            "kernel": self.kernel,
            "losses": self.losses,
            "failed": self.failed,
        }


@dataclass(frozen=True, slots=True)
class Bench:
    """What all variants share."""

    folder: Path
    model: dict[str, Any]
    """What LlamaConfig takes."""
    rows: int
    device: torch.device
    dtype: torch.dtype
    seconds: float
    warmup: int
    backend: str
    """Of torch.compile."""

    @property
    def peak(self) -> float | None:
        return peak_flops(self.device, self.dtype)

    def build(self, attention: str) -> Any:
        """A model of random weights on the device, with its attention set, and what computes that."""
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        with self.device, _default(self.dtype):
            model = LlamaForCausalLM(LlamaConfig(**self.model))
        model.train()
        return model, use_packed(model, attention).kernel

    def run(self, variant: Variant) -> Measured:
        """Measure. An error is noted in `failed`, and the memory is freed for the next variant."""
        out = Measured(variant.name)
        try:
            if variant.trainer:
                if TYPE_CHECKING:
                    from tests.bench.gpu_trainers import TRAINERS
                else:
                    from gpu_trainers import TRAINERS

                TRAINERS[variant.trainer](self, variant, out)
            else:
                self._loop(variant, out)
        except Exception as error:  # out of memory, a compiler's error, a missing package: the others still run
            out.failed = f"{error.__class__.__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
        finally:
            torch._dynamo.reset()
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
        return out

    def _loop(self, variant: Variant, out: Measured) -> None:
        began = time.perf_counter()
        model, out.kernel = self.build(variant.attention)
        flops = ModelFlops.of(model)
        if variant.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        fused = fuse_loss(model, variant.loss)
        cuda = self.device.type == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=cuda)
        forward: Callable[..., Any] = torch.compile(model, backend=self.backend) if variant.compile else model
        batches, _ = endless(variant.batching, self.folder, self.rows, fixed=variant.compile, pin=cuda)
        for _ in range(self.warmup):
            loss, _ = self._step(forward, fused, optimizer, next(batches))
        out.losses.append(float(loss))
        self._settle()
        out.prepared = time.perf_counter() - began
        begin = time.perf_counter()
        while time.perf_counter() - begin < self.seconds or out.steps < 3:
            asked = time.perf_counter()
            batch = next(batches)
            out.waited += time.perf_counter() - asked
            loss, made = self._step(forward, fused, optimizer, batch)
            out.add(made, flops.of_lengths(made.lengths))
            if out.steps % 4 == 0:
                self._settle()  # the host runs ahead of the device; not so far that the time is no longer kept
        self._settle()
        out.seconds = time.perf_counter() - begin
        out.losses.append(float(loss))
        out.peak_bytes = torch.cuda.max_memory_allocated() if cuda else 0

    def _step(
        self, forward: Callable[..., Any], fused: FusedLoss | None, optimizer: Any, batch: dict[str, Any]
    ) -> tuple[torch.Tensor, Counts]:
        made = counts(batch)
        # A tensor: a compiled model would be compiled again for every new number.
        items = torch.tensor(made.trained).to(self.device, non_blocking=True)
        targeted = None if fused is None else fused.of(targets(batch).to(self.device), items)
        with targeted or nullcontext():
            loss = forward(**on_device(batch, self.device), num_items_in_batch=items).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), made

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
