"""A warning, with its likely causes, when a training's first losses or gradient norms are abnormal.

A model that guesses has a loss of ln(V), V the size of its vocabulary: the first loss must not be far above it, and
later early ones must not rise far above the first. Gradient norms must be finite, not zero, and not far above those
before. That the first batch's loss is that of its documents one by one is proved before (`callbacks.Proof`).

Nothing is stopped: people judge. Each kind of warning is given once.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

_LOG = logging.getLogger(__name__)
EARLY = 50
"""Number of first steps in which warnings are given."""
WORSE = 1.3
"""A first loss above this multiple of the loss of guessing gives a warning."""
KNOWN = 0.02
"""A first loss below this gives a warning, because it is too good."""
RISEN = 1.5
"""A loss above this multiple of the first loss gives a warning."""
STEEP = 10.0
"""A gradient norm above this multiple of the smallest so far gives a warning."""
_RATE = "a learning rate that is too high"


class Alarm(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Looks at the lines that a training logs; give it to the trainer as a callback.

    Args:
        vocabulary: V.
        say: gives a warning to a person; by default, the log.
    """

    def __init__(self, vocabulary: int, say: Callable[[str], None] = _LOG.warning) -> None:
        self.guessing, self.say = math.log(max(2, vocabulary)), say
        self.findings: dict[str, str] = {}
        """Warnings given so far, by kind."""
        self._began = 0
        self._first: float | None = None
        self._least_norm = math.inf

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._began, self._first, self._least_norm = state.global_step, None, math.inf

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        if not state.is_world_process_zero or not logs or "loss" not in logs or state.global_step - self._began > EARLY:
            return
        self._look_at_loss(float(logs["loss"]), f"step {state.global_step:,}")
        if logs.get("grad_norm") is not None:
            self._look_at_norm(float(logs["grad_norm"]), f"step {state.global_step:,}")

    def _look_at_loss(self, loss: float, step: str) -> None:
        said, before = f"the loss of {step} is {loss:.3f}", self._first
        if not math.isfinite(loss):
            self._warn("not_finite", said, f"{_RATE}, float16 without a loss scaler, or weights that are not numbers")
            return
        if loss == 0:
            self._warn("nothing_trained", said, "none of its tokens is trained: see the mask with packtrain inspect")
        elif before is None:
            self._first = loss
            if loss > WORSE * self.guessing:
                self._warn(
                    "worse_than_guessing",
                    f"{said}; guessing among all tokens has {self.guessing:.3f}",
                    "the data was packed with another tokenizer than the model's, weights that were not loaded or are "
                    f"damaged, a dtype too narrow for this model, or {_RATE}",
                )
            elif loss < KNOWN and self._began == 0:
                self._warn(
                    "known_already",
                    f"{said} before any training",
                    "the model was trained on this data, or labels are shifted twice, so that each token predicts "
                    "itself",
                )
        elif loss > RISEN * before and loss > before + 0.5:
            causes = f"{_RATE}, too short a warm-up, or no gradient clipping"
            self._warn("rising", f"{said}, and was {before:.3f} at first", causes)

    def _look_at_norm(self, norm: float, step: str) -> None:
        said = f"the gradient norm of {step} is {norm:.3g}"
        if not math.isfinite(norm):
            causes = "float16 overflow (the scaler skips such a step; many of them are a fault), broken weights, or"
            self._warn("norm_not_finite", said, f"{causes} {_RATE}")
        elif norm == 0:
            causes = "a step without a trained token, frozen weights, or"
            self._warn("no_gradient", f"{said}: nothing is learned", f"{causes} {_RATE}")
        else:
            if norm > STEEP * self._least_norm and norm > 1:
                self._warn(
                    "steep",
                    f"{said}, and was {self._least_norm:.3g}",
                    f"{_RATE}, a damaged or foreign document (packtrain loader --explain names those of a step), or a "
                    "sum of losses in place of a mean",
                )
            self._least_norm = min(norm, self._least_norm)

    def _warn(self, kind: str, what: str, causes: str) -> None:
        if kind not in self.findings:
            self.findings[kind] = f"{what}. Likely causes: {causes}"
            self.say(self.findings[kind])
