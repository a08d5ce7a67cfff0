"""How fast a training is, and on what: the figures of the stretch since they were last asked for.

The trainer tells the meter every micro-batch as it is drawn, and how long it waited for it. When a line is logged, all
ranks add up what they have (`collect`, which is collective), so that between two lines the meter costs nothing but
sums. Time in which the model was evaluated or saved is left out.

Rates are per device and count real tokens: padding makes no one faster.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

from .batch_sizes import BatchSizes
from .flops import ModelFlops, peak_flops


@dataclass(slots=True)
class _Stretch:
    """Sums of one rank since the last line."""

    begun: float | None = None
    left_out: float = 0.0
    waited: float = 0.0
    tokens: int = 0
    trained: int = 0
    room: int = 0
    costs: list[float] = field(default_factory=list)
    """Of each optimizer step, in operations."""

    def numbers(self, now: float) -> list[float]:
        """In an order that `Meter.collect` knows."""
        elapsed = now - self.begun - self.left_out if self.begun is not None else 0.0
        return [elapsed, self.waited, float(self.tokens), float(self.trained), float(self.room), *self.costs]


class Meter(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Measures; give it to the trainer as a callback, and let the trainer's `log` add what `collect` returns.

    Args:
        flops: of the model, made before it was sharded. None: no utilisation, and no balance but by tokens.
        device, dtype: what it computes on and in; decides the peak that utilisation is a share of. Where none is
            known (a CPU), there is no utilisation.
        capacity: tokens that a micro-batch has room for; None for as many as it has positions.
        static_length, pad_id: see `BatchSizes.of`.
        skips_untrained: positions without a label do not go through the head, and are not counted there.
        clock: seconds.
    """

    def __init__(
        self,
        flops: ModelFlops | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        capacity: int | None = None,
        static_length: int | None = None,
        pad_id: int = 0,
        skips_untrained: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.flops, self.device, self.capacity = flops, torch.device(device), capacity
        self.peak = peak_flops(device, dtype)
        self.static_length, self.pad_id, self.skips_untrained = static_length, pad_id, skips_untrained
        self.clock = clock
        self.tokens_seen = self.trained_tokens_seen = 0
        self._now = _Stretch()
        self._cost = 0.0
        self._idle_since: float | None = None
        self._other_work = False

    @classmethod
    def of(cls, trainer: Any) -> "Meter":
        """For a PackedTrainer whose model is not wrapped or sharded yet.

        Args:
            trainer: with `model`, `args` and `loader` (a PackedLoader or a baseline).
        """
        loader, args = trainer.loader, trainer.args
        shape = getattr(loader, "_shape", None)  # of a PackedLoader with static_shapes
        share = loader.rows_per_step // (loader.place.world_size * getattr(loader, "accumulate", 1))
        return cls(
            ModelFlops.of(trainer.model),
            device=args.device,
            dtype=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else _dtype(trainer.model),
            # A baseline's batch has no room of a packed row's to fill.
            capacity=share * loader.corpus.max_length if getattr(loader, "packed", True) else None,
            static_length=None if shape is None else shape.length,
            pad_id=0 if shape is None else shape.pad_id,
            skips_untrained=shape is None,
        )

    def batch(self, batch: Mapping[str, Any], waited_seconds: float = 0.0) -> None:
        """Count a micro-batch of the step that comes next."""
        sizes = BatchSizes.of(batch, static_length=self.static_length, pad_id=self.pad_id)
        stretch = self._now
        stretch.waited += waited_seconds
        stretch.tokens += sizes.tokens
        stretch.trained += sizes.trained
        stretch.room += self.capacity or sizes.positions
        if self._idle_since is not None:  # so that it is not left out with an evaluation
            self._idle_since += waited_seconds
        if self.flops is None:
            self._cost += sizes.tokens
        else:
            self._cost += self.flops.of_lengths(sizes.lengths, sizes.trained if self.skips_untrained else None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After resuming, the sums go on from the last line before the checkpoint."""
        last: Mapping[str, Any] = next((line for line in reversed(state.log_history) if "tokens_seen" in line), {})
        self.tokens_seen = int(last.get("tokens_seen", 0))
        self.trained_tokens_seen = int(last.get("trained_tokens_seen", 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All micro-batches of the step are there."""
        now, stretch = self.clock(), self._now
        if stretch.begun is None:  # whatever came before the first step is none of ours, but for waiting
            stretch.begun = now - stretch.waited
        elif self._other_work and self._idle_since is not None:
            stretch.left_out += max(0.0, now - self._idle_since)
        self._other_work, self._idle_since = False, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is done."""
        self._now.costs.append(self._cost)
        self._cost, self._idle_since = 0.0, self.clock()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The time since the step ended is not training's."""
        self._other_work = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The time since the step ended is not training's."""
        self._other_work = True

    def collect(self) -> dict[str, float]:
        """The figures since the last call, over all ranks; every rank must call it, after the same step.

        Returns:
            `tokens_per_second`, `trained_tokens_per_second` (per device); `mfu` (share of the device's peak that the
            model's own operations on real tokens made use of) and `model_tflops` (the same, per device and second),
            where they are known; `fill`, `trained_share`; `balance` (the dearest rank of each step over the mean, with
            more than one rank); `loader_wait` (share of the time that the rank which waited longest spent waiting for
            batches); `tokens_seen`, `trained_tokens_seen` (over all ranks, since training began). Empty where
            nothing was done.
        """
        now = self.clock()
        ranks = _gathered(self._now.numbers(now), self.device)
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
        found = {
            "tokens_per_second": tokens / elapsed / devices,
            "trained_tokens_per_second": trained / elapsed / devices,
        }
        if self.flops is not None:
            speed = float(costs.sum()) / elapsed / devices
            found["model_tflops"] = speed / 1e12
            if self.peak is not None:
                found["mfu"] = speed / self.peak
        found |= {"fill": tokens / room, "trained_share": trained / tokens}
        if devices > 1 and float(costs.sum()) > 0:
            found["balance"] = float(costs.max(0).values.sum() / costs.mean(0).sum())
        found["loader_wait"] = float(ranks[:, 1].max()) / elapsed
        return found | {"tokens_seen": self.tokens_seen, "trained_tokens_seen": self.trained_tokens_seen}


def _dtype(model: Any) -> torch.dtype:
    found = next(iter(model.parameters())).dtype
    assert isinstance(found, torch.dtype)
    return found


def _gathered(numbers: list[float], device: torch.device) -> torch.Tensor:
    """(W, K) float64 of all ranks, on the CPU."""
    mine = torch.tensor(numbers, dtype=torch.float64)
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return mine[None]
    place = device if distributed.get_backend() == "nccl" else torch.device("cpu")
    mine = mine.to(place)
    everyone = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, mine)
    return torch.stack(everyone).cpu()
