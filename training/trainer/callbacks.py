"""What watches a training: the count of finished steps, the proof of isolation, and warnings in early steps."""

import logging
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import TrainerCallback

from ...schemas.errors import LeakError
from .document_losses import DocumentLosses
from .feed import Feed

_LOG = logging.getLogger(__name__)
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
    """Proves before the first step, and after resuming, that no document sees another; and sees to it that the
    attention that was proved stays.

    Args:
        trainer: a PackedTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.report: Any = None
        """probe.ProbeReport; None where nothing was probed."""
        self._wanted = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._wanted = self.trainer.probes

    def check(self, batch: Mapping[str, Any]) -> None:
        """Probe the prepared model with the first batch: wrapped, compiled and checkpointed as it trains.

        Raises:
            LeakError: documents see each other, with what to do; or something has changed the attention since.
        """
        from ..probe import probe

        trainer = self.trainer
        now = str(trainer.model.config._attn_implementation)
        if now != trainer.applied.name:
            raise LeakError(
                f"the step is not taken: attention was {trainer.applied.name} when training began, and is {now} now; "
                "something set it in between"
            )
        if not self._wanted:
            return
        self._wanted = False
        # Within autocast, which the model's forward enters by itself: it tells the probe what rounding to expect.
        with trainer.meter.paused(), trainer.accelerator.autocast():
            self.report = probe(trainer.model_wrapped, batch=batch, seed=trainer.args.seed, device=trainer.args.device)
        self.report.require()
        if trainer.say is not None and trainer.state.is_world_process_zero:
            shown = [f"{_SHOWN[one.name]} {one.value}" for one in self.report.checks if one.name in _SHOWN]
            trainer.say(f"isolation proved: {', '.join(shown)}")


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
