"""What watches a training: the count of finished steps, the proof of isolation, and warnings in early steps."""

import logging
import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from transformers import TrainerCallback

from ..batch import flatten
from .document_losses import DocumentLosses
from .feed import Feed

_LOG = logging.getLogger(__name__)
FIRST_BATCH = 0.01
"""Relative difference allowed between the first packed batch's loss and that of its documents one by one."""
_SHOWN = {name: name for name in ("isolation", "perturbation", "control", "equivalence")} | {
    "at length": "at full length"
}
"""Checks of the probe whose values are shown, and what they are called there."""
EARLY = 50
"""Number of first steps in which warnings are given."""
WORSE, RISEN, STEEP = 1.3, 1.5, 10.0
"""Multiples above which a warning is given: the first loss of that of guessing, a later loss of the first, a gradient
norm of the smallest so far."""
_SPIKES = ("rising", "steep")
"""Warnings that a document may be the cause of."""
_RATE = "too high a learning rate, too short a warm-up or no gradient clipping"


class StepClock(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Counts finished steps, for checkpoints, and how often the data has been read. Has the last step logged, and
    begins and ends the record of losses.
    """

    def __init__(self, feed: Feed, losses: DocumentLosses | None = None) -> None:
        self.feed, self.losses = feed, losses

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        if self.losses is not None:
            self.losses.begin(state.global_step, writes=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        if self.losses is not None:
            self.losses.end()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self.feed.finish()
        state.epoch = self.feed.epoch
        control.should_log = control.should_log or state.global_step >= state.max_steps


class Proof(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Proves before the first step, and after resuming, that no document sees another; then watches every step.

    Args:
        trainer: a PackedTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.report: Any = None
        """probe.ProbeReport; None where nothing was probed."""
        self._guard: Any = None
        self._compare = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe the prepared model: wrapped, compiled and checkpointed as it trains. See transformers.

        Raises:
            LeakError: documents see each other; names the setting at fault, and the fix.
        """
        from ..probe import StepGuard, probe

        trainer, loader = self.trainer, self.trainer.loader
        model = trainer.model_wrapped
        if trainer.probes:
            # Within autocast, which the model's forward enters by itself: it tells the probe what rounding to expect.
            with trainer.accelerator.autocast():
                self.report = probe(
                    model,
                    seed=args.seed,
                    device=args.device,
                    make=partial(flatten, seq_idx=loader.seq_idx),
                    tokens=args.per_device_train_batch_size * loader.corpus.max_length,
                    longest=loader.corpus.longest(),
                )
            self.report.require()
            if trainer.say is not None and state.is_world_process_zero:
                shown = [f"{_SHOWN[one.name]} {one.value}" for one in self.report.checks if one.name in _SHOWN]
                trainer.say(f"isolation proved: {', '.join(shown)}")
        self._guard = StepGuard(model, None if self.report is None else self.report.calls)
        self._compare = trainer.probes

    def step(self, batch: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """A context for the forward pass, which checks that every layer uses the attention that was proved.

        Raises:
            LeakError: the loss of the first batch differs from that of its documents one by one.
        """
        if self._compare:
            from ..probe import compare_first_batch

            self._compare = False
            with self.trainer.meter.paused():
                compare_first_batch(self.trainer.model_wrapped, batch).require(FIRST_BATCH)
        return nullcontext() if self._guard is None else self._guard.step(batch)


class EarlyWarnings(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """A warning, once of each kind and with likely causes, when early losses or gradient norms are abnormal.

    A model that guesses has a loss of ln(V), V the size of its vocabulary: the first loss must not be far above it, and
    later early ones must not rise far above the first. Nothing is stopped: people judge.

    Args:
        vocabulary: V.
        records: whether the losses of documents are recorded, so that `packtrain explain-loss` can show them.
    """

    def __init__(self, vocabulary: int, records: bool = False) -> None:
        self.guessing, self.records = math.log(max(2, vocabulary)), records
        self.findings: dict[str, str] = {}
        """Warnings given so far, by kind."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._until = state.global_step + EARLY
        self._first: float | None = None
        self._least_norm = math.inf

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        if not state.is_world_process_zero or not logs or "loss" not in logs or state.global_step > self._until:
            return
        for kind, text in self._look(float(logs["loss"]), logs.get("grad_norm")):
            if kind not in self.findings:
                if self.records and kind in _SPIKES:
                    show = ["packtrain", "explain-loss", str(args.output_dir), "--step", str(state.global_step)]
                    text += f". Its documents by loss: {shlex.join(show)}"
                self.findings[kind] = f"step {state.global_step:,}: {text}"
                _LOG.warning("%s", self.findings[kind])

    def _look(self, loss: float, norm: float | None) -> Iterator[tuple[str, str]]:
        """(kind, what is abnormal and its likely causes)."""
        first = self._first
        if loss == 0:
            yield "nothing_trained", "the loss is 0: none of its tokens is trained; see the mask with packtrain inspect"
        elif first is None:
            self._first = loss
            if loss > WORSE * self.guessing:
                yield (
                    "worse_than_guessing",
                    f"the loss is {loss:.3f}; guessing has {self.guessing:.3f}. Likely causes: another tokenizer than "
                    f"the model's, damaged or missing weights, or {_RATE}",
                )
        elif loss > RISEN * first and loss > first + 0.5:
            yield "rising", f"the loss is {loss:.3f}, and was {first:.3f} at first. Likely causes: {_RATE}"
        if norm is None:
            return
        said = f"the gradient norm is {norm:.3g}"
        if not math.isfinite(norm):
            yield "norm_not_finite", f"{said}. Likely causes: float16 overflow, damaged weights, or {_RATE}"
        elif norm == 0:
            yield "no_gradient", f"{said}: nothing is learned. Likely causes: no trained token, or frozen weights"
        elif norm > STEEP * self._least_norm and norm > 1:
            yield "steep", f"{said}, and was {self._least_norm:.3g}. Likely causes: {_RATE}, or a damaged document"
        if 0 < norm < math.inf:
            self._least_norm = min(norm, self._least_norm)
