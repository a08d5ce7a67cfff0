"""How fast a training is, and what limits it: figures since the last logged line.

The trainer reports every micro-batch as it is drawn, and how long it waited for it. When a line is logged, all ranks
add up what they have (`collect`, which is collective), so between two lines the meter only adds numbers. Time spent on
evaluation and saving is left out.

Rates are per device and count real tokens, not padding.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainerCallback

from ...schemas.rows import IGNORE_INDEX
from ..loader.collate import FixedShape
from .flops import ModelFlops, peak_flops


@dataclass(slots=True)
class _Stretch:
    """Sums of one rank since the last log line."""

    begun: float | None = None
    left_out: float = 0.0
    waited: float = 0.0
    tokens: int = 0
    trained: int = 0
    room: int = 0
    costs: list[float] = field(default_factory=list)
    """FLOPs of each optimizer step."""

    def numbers(self, now: float) -> list[float]:
        """The sums as a list, in the order that `Meter.collect` expects."""
        elapsed = now - self.begun - self.left_out if self.begun is not None else 0.0
        return [elapsed, self.waited, float(self.tokens), float(self.trained), float(self.room), *self.costs]


class Meter(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Measures; give it to the trainer as a callback, and let the trainer's `log` add what `collect` returns.

    Args:
        flops: of the model, made before it was sharded.
        capacity: tokens that fit into a micro-batch.
        peak: operations a second of the device; None for a CPU or an unknown GPU, which has no utilisation.
        shape: of every row, where batches have fixed shapes (`loader: {static_shapes: true}`). The head then computes
            untrained positions too.
        clock: seconds.
    """

    def __init__(
        self,
        flops: ModelFlops,
        capacity: int,
        *,
        peak: float | None = None,
        shape: FixedShape | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.flops, self.capacity, self.peak, self.shape, self.clock = flops, capacity, peak, shape, clock
        self.tokens_seen = self.trained_tokens_seen = 0
        self._now = _Stretch()
        self._cost = 0.0
        self._idle_since: float | None = None
        self._other_work = False

    @classmethod
    def of(cls, trainer: Any) -> "Meter":
        """For a PackedTrainer whose model is not wrapped or sharded yet."""
        loader, args = trainer.loader, trainer.args
        dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else next(trainer.model.parameters()).dtype
        return cls(
            ModelFlops.of(trainer.model),
            args.per_device_train_batch_size * loader.corpus.max_length,
            peak=peak_flops(args.device, dtype),
            shape=loader.shape,
        )

    def batch(self, batch: Mapping[str, Any], waited_seconds: float = 0.0) -> None:
        """Count a micro-batch of the step that comes next."""
        lengths = document_lengths(batch, self.shape)
        tokens, trained = int(lengths.sum()), int((batch["labels"][:, 1:] != IGNORE_INDEX).sum())
        stretch = self._now
        stretch.waited += waited_seconds
        stretch.tokens += tokens
        stretch.trained += trained
        stretch.room += self.capacity
        if self._idle_since is not None:  # so that it is not left out with an evaluation
            self._idle_since += waited_seconds
        self._cost += self.flops.of_lengths(lengths, trained if self.shape is None else None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After resuming, continue the sums from the last log line before the checkpoint."""
        last: Mapping[str, Any] = next((line for line in reversed(state.log_history) if "tokens_seen" in line), {})
        self.tokens_seen = int(last.get("tokens_seen", 0))
        self.trained_tokens_seen = int(last.get("trained_tokens_seen", 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start of a step: all its micro-batches have been loaded."""
        now, stretch = self.clock(), self._now
        if stretch.begun is None:  # before the first step only waiting counts
            stretch.begun = now - stretch.waited
        elif self._other_work and self._idle_since is not None:
            stretch.left_out += max(0.0, now - self._idle_since)
        self._other_work, self._idle_since = False, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End of an optimizer step."""
        self._now.costs.append(self._cost)
        self._cost, self._idle_since = 0.0, self.clock()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the time of the evaluation from training time."""
        self._other_work = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the time of saving from training time."""
        self._other_work = True

    def collect(self) -> dict[str, float]:
        """The figures since the last call, over all ranks; every rank must call it, after the same step.

        Returns:
            `tokens_per_second`, `trained_tokens_per_second` (per device); `mfu` (share of the device's peak that the
            model's own operations on real tokens made use of), where that is known, and `model_tflops` (the same, per
            device and second); `fill`, `trained_share`; `balance` (the dearest rank of each step over the mean, with
            more than one rank); `loader_wait` (share of the time that the rank which waited longest spent waiting for
            batches); `tokens_seen`, `trained_tokens_seen` (over all ranks, since training began). Empty where
            nothing was done.
        """
        now = self.clock()
        ranks = _gathered(self._now.numbers(now))
        self._now = _Stretch(begun=now)
        if self._idle_since is not None:
            self._idle_since = now
        elapsed = float(ranks[:, 0].max())
        tokens, trained, room = (float(ranks[:, column].sum()) for column in (2, 3, 4))
        costs = ranks[:, 5:]
        self.tokens_seen += int(tokens)
        self.trained_tokens_seen += int(trained)
        if elapsed <= 0 or not tokens or not costs.numel():
            return {}
        devices = len(ranks)
        speed = float(costs.sum()) / elapsed / devices
        found = {
            "tokens_per_second": tokens / elapsed / devices,
            "trained_tokens_per_second": trained / elapsed / devices,
            "model_tflops": speed / 1e12,
        }
        if self.peak is not None:
            found["mfu"] = speed / self.peak
        found |= {"fill": tokens / room, "trained_share": trained / tokens}
        if devices > 1 and float(costs.sum()) > 0:
            found["balance"] = float(costs.max(0).values.sum() / costs.mean(0).sum())
        found["loader_wait"] = float(ranks[:, 1].max()) / elapsed
        return found | {"tokens_seen": self.tokens_seen, "trained_tokens_seen": self.trained_tokens_seen}


def document_lengths(batch: Mapping[str, Any], shape: FixedShape | None = None) -> NDArray[np.int64]:
    """(D,) tokens of each document of a packed batch that is still on the CPU, without padding and empty documents.

    Args:
        shape: see `Meter`. Padding is what ends a row and holds only padding's id, untrained.
    """
    lengths: NDArray[np.int64] = np.diff(batch["cu_seq_lens_q"].numpy().astype(np.int64))
    if shape is not None:
        ids, labels, ends = batch["input_ids"][0].numpy(), batch["labels"][0].numpy(), np.cumsum(lengths)
        for end in range(shape.length, len(ids) + 1, shape.length):
            last = int(np.searchsorted(ends, end))  # of the documents that end here, the one that has tokens
            piece = slice(end - int(lengths[last]), end)
            if (ids[piece] == shape.pad_id).all() and (labels[piece] == IGNORE_INDEX).all():
                lengths[last] = 0
    return lengths[lengths > 0]


def _gathered(numbers: list[float]) -> torch.Tensor:
    """(W, K) float64 of all ranks."""
    distributed = torch.distributed
    everyone: list[Any] = [numbers]
    if distributed.is_available() and distributed.is_initialized():
        everyone = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyone, numbers)
    return torch.tensor(everyone, dtype=torch.float64)
