"""What watches a training: warnings in early steps, its speed, and the lines that it prints."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

from . import Say
from .train_config import PreferenceConfig

_LOG = logging.getLogger(__name__)
EARLY = 50
"""Number of first steps in which warnings are given."""
WORSE_THAN_GUESSING = 1.3
"""A first loss above this multiple of the loss of guessing gives a warning."""
RISEN = 1.5
"""A later loss above this multiple of the first one gives a warning."""
STEEP = 10.0
"""A gradient norm above this multiple of the smallest one so far gives a warning."""
_RATE = "too high a learning rate, too short a warm-up or no gradient clipping"


class EarlyWarnings(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """A warning, once of each kind and with likely causes, when losses or gradient norms of the first `EARLY` steps are
    abnormal. Nothing is stopped: people judge.

    Args:
        guessing: the loss of a model that guesses, such as ln(V) for tokens, V the size of the vocabulary; None if
            such a model may have any loss, so that the first one cannot be judged.
    """

    def __init__(self, guessing: float | None) -> None:
        self.guessing = guessing
        self.findings: dict[str, str] = {}
        """Kind of warning → its text, of those given so far."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch, also after resuming: the steps that follow are again the first ones."""
        self._until = state.global_step + EARLY
        """The last step that is judged."""
        self._first: float | None = None
        """The first loss; None before it."""
        self._least_norm = math.inf
        """The smallest gradient norm so far."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Judge the loss and the gradient norm of a step that is logged."""
        if not state.is_world_process_zero or not logs or "loss" not in logs or state.global_step > self._until:
            return
        loss = float(logs["loss"])
        norm = logs.get("grad_norm")  # None where transformers did not compute it
        first = self._first
        if first is None:
            self._first = loss
            if self.guessing is not None and loss > WORSE_THAN_GUESSING * self.guessing:
                self._warn(
                    state, "worse_than_guessing", f"the loss is {loss:.3f}; guessing has {self.guessing:.3f}",
                    f"another tokenizer than the model's, damaged or missing weights, or {_RATE}",
                )  # fmt: skip
        # Also by 0.5, because a small first loss is soon exceeded one and a half times.
        elif loss > RISEN * first and loss > first + 0.5:
            self._warn(state, "rising", f"the loss is {loss:.3f}, and was {first:.3f} at first", _RATE)
        if norm == 0:
            self._warn(
                state, "nothing_trained", "the gradient norm is 0", "no trained token (packtrain inspect) or weight"
            )
        # Above 1 only: small norms may differ by a lot, and clipping, at 1 by default, leaves them alone.
        elif norm is not None:
            is_far_above = norm > STEEP * self._least_norm and norm > 1
            if is_far_above or not math.isfinite(norm):
                self._warn(state, "steep", f"the gradient norm is {norm:.3g}", f"{_RATE}, or damaged weights or data")
            else:
                self._least_norm = min(norm, self._least_norm)

    def _warn(self, state: Any, kind: str, symptom: str, causes: str) -> None:
        """Log a warning, unless there was one of its kind.

        Args:
            state: of transformers, which counts the steps.
            kind: the key in `findings`.
            symptom: what was seen, with its numbers.
            causes: what is likely to have led to it.
        """
        if kind not in self.findings:
            self.findings[kind] = f"step {state.global_step:,}: {symptom}. Likely causes: {causes}"
            _LOG.warning("%s", self.findings[kind])


def loss_of_guessing(config: PreferenceConfig | None, vocabulary: int) -> float | None:
    """The loss of a model that knows nothing; None where the loss of such a model can be any number.

    Args:
        config: of pairs; None if tokens are trained.
        vocabulary: the number of token ids.
    """
    tokens = math.log(max(2, vocabulary))
    if config is None:
        return tokens
    # A model that cannot tell two answers apart has the loss −log σ(0) = ln 2. Of ipo it is 1/(4·β²) for any model that
    # is its own reference, and of simpo it depends on the margin gamma alone: neither says whether a model is good.
    pairs = math.log(2)
    return {"dpo": pairs, "reward": pairs, "orpo": tokens + config.beta * pairs}.get(config.loss)


class Meter:
    """How fast a training is: sums of one rank since the last log line.

    Args:
        clock: gives the time in seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._begun: float | None = None
        """When the time that counts began, by the clock; None before the first batch."""
        self._waited = 0.0
        """Seconds that the trainer waited for batches."""
        self._tokens = 0

    @property
    def running(self) -> bool:
        """Whether there was a batch."""
        return self._begun is not None

    def batch(self, tokens: int, waited: float = 0.0) -> None:
        """Count a micro-batch, and the seconds that the trainer waited for it."""
        if self._begun is None:  # what came before the first batch is not training
            self._begun = self.clock() - waited
        self._waited += waited
        self._tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context for other work, such as an evaluation, whose time does not count."""
        began = self.clock()
        try:
            yield
        finally:
            if self._begun is not None:  # a later beginning, so that these seconds fall out
                self._begun += self.clock() - began

    def collect(self) -> dict[str, float]:
        """The figures since the last call, over all ranks; every rank must call it, after the same step.

        Returns:
            `tokens_per_second`, per device; and `loader_wait`, the share of the time for which the rank that waited
            longest waited for batches. Empty if there was no batch since the last call.
        """
        from accelerate.utils import gather_object

        time_now = self.clock()
        seconds = 0.0 if self._begun is None else time_now - self._begun
        ranks = gather_object([(seconds, self._waited, self._tokens)])
        self._begun = None if self._begun is None else time_now
        self._waited = 0.0
        self._tokens = 0
        # All ranks wait for the slowest one in every step, so a step takes as long as that rank.
        slowest = max(rank_seconds for rank_seconds, _, _ in ranks)
        longest_wait = max(rank_waited for _, rank_waited, _ in ranks)
        tokens = sum(rank_tokens for _, _, rank_tokens in ranks)
        if slowest <= 0 or not tokens:
            return {}
        return {"tokens_per_second": tokens / slowest / len(ranks), "loader_wait": longest_wait / slowest}


class ConsoleLog(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Prints a line at every logging step, after the last step, and for every evaluation. It counts epochs by rows,
    because a step may have rows of two epochs.

    Args:
        say: prints a line.
        epochs_per_step: which part of the data a step reads, as 0.01 for a hundred steps an epoch.
    """

    def __init__(self, say: Say, epochs_per_step: float) -> None:
        self.say = say
        self.epochs_per_step = epochs_per_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch, and have the last step logged."""
        # For transformers the whole training is one epoch, because it goes through the loader's batches once.
        state.epoch = state.global_step * self.epochs_per_step
        control.should_log = control.should_log or state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the figures of a step or an evaluation."""
        # Not the line at the end of a training, whose figures are those of transformers' own clock.
        if logs and {"loss", "eval_loss"} & logs.keys():
            shown = "  ".join(f"{key} {value:.5g}" for key, value in logs.items() if isinstance(value, int | float))
            self.say(f"step {state.global_step:,}/{state.max_steps:,}  {shown}")
