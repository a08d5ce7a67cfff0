"""What a training says of itself: its speed, and a line for each logging step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

from . import Say


class Meter:
    """How fast a training is: sums of one rank since the last log line.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._begun: float | None = None
        self._waited = 0.0
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
            if self._begun is not None:
                self._begun += self.clock() - began

    def collect(self) -> dict[str, float]:
        """The figures since the last call, over all ranks; every rank must call it, after the same step.

        Returns:
            `tokens_per_second`, per device; `loader_wait` (share of the time that the rank which waited longest waited
            for batches). Empty where nothing was done.
        """
        from accelerate.utils import gather_object

        time_now = self.clock()
        seconds = 0.0 if self._begun is None else time_now - self._begun
        ranks = gather_object([(seconds, self._waited, self._tokens)])
        self._begun = None if self._begun is None else time_now
        self._waited = 0.0
        self._tokens = 0
        # All ranks wait for the slowest in every step, so its time is that of the step.
        slowest = max(rank_seconds for rank_seconds, _, _ in ranks)
        longest_wait = max(rank_waited for _, rank_waited, _ in ranks)
        tokens = sum(rank_tokens for _, _, rank_tokens in ranks)
        if slowest <= 0 or not tokens:
            return {}
        return {"tokens_per_second": tokens / slowest / len(ranks), "loader_wait": longest_wait / slowest}


class ConsoleLog(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Prints a line at every logging step, of which the last step is one, and for every evaluation. Counts epochs by
    rows, because steps may cross them.

    Args:
        say: prints a line.
        epochs_per_step: how often a step reads the data.
    """

    def __init__(self, say: Say, epochs_per_step: float) -> None:
        self.say, self.epochs_per_step = say, epochs_per_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        state.epoch = state.global_step * self.epochs_per_step
        control.should_log = control.should_log or state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        if logs and {"loss", "eval_loss"} & logs.keys():
            shown = "  ".join(f"{key} {value:.5g}" for key, value in logs.items() if isinstance(value, int | float))
            self.say(f"step {state.global_step:,}/{state.max_steps:,}  {shown}")
