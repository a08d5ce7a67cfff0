"""Callbacks of a training: the count of finished steps, and the proof of isolation."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from transformers import TrainerCallback

from ..loader.collate import flatten
from .data import Feed

FIRST_BATCH = 0.01
"""Relative difference allowed between the first packed batch's loss and that of its documents one by one."""


_SHOWN = ("isolation", "perturbation", "control", "equivalence", "at length")
"""Checks of the probe whose values are shown."""


class StepClock(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Counts finished steps, for checkpoints, and how often the data has been read."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self.feed.finish()
        state.epoch = self.feed.epoch


class Proof(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Proves before the first step, and after resuming, that no document sees another; then watches every step.

    Args:
        trainer: a PackedTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.report: Any = None
        self.comparison: Any = None
        self._guard: Any = None
        self._compare = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe the prepared model: wrapped, compiled and checkpointed as it trains. See transformers.

        Raises:
            LeakError: documents see each other; names the setting at fault, and the fix.
        """
        from ..probe import StepGuard, probe

        trainer, loader = self.trainer, self.trainer.loader
        model, rows = trainer.model_wrapped, args.per_device_train_batch_size
        if trainer.probes:
            # Within autocast, which the model's forward enters by itself: it tells the probe what rounding to expect.
            with trainer.accelerator.autocast():
                self.report = probe(
                    model,
                    seed=args.seed,
                    device=args.device,
                    make=partial(flatten, seq_idx=loader.seq_idx),
                    tokens=rows * loader.corpus.max_length,
                    longest=loader.corpus.longest(),
                )
            self.report.require()
            if trainer.say is not None and state.is_world_process_zero:
                trainer.say(proved(self.report))
        self._guard = StepGuard(model, None if self.report is None else self.report.calls)
        self._compare = trainer.probes

    def first_batch(self, batch: Mapping[str, Any]) -> None:
        """Check that the loss of the first batch equals that of its documents one by one."""
        if self._compare:
            from ..probe import compare_first_batch

            self._compare = False
            self.comparison = compare_first_batch(self.trainer.model_wrapped, batch)
            self.comparison.require(FIRST_BATCH)

    def step(self, batch: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """A context for the forward pass, which checks that every layer uses the attention that was proved."""
        return nullcontext() if self._guard is None else self._guard.step(batch)


def proved(report: Any) -> str:
    """Such as: `isolation proved: isolation 0, control 0.018, equivalence 3.1e-07`."""
    found = [f"{check.name} {check.value}" for check in report.checks if check.name in _SHOWN]
    return f"isolation proved: {', '.join(found)}"
