"""What a training prints: a line at every logging step, and one for every evaluation."""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from ...schemas.units import count, duration
from ..printing import Say, print_line

SHOWN: dict[str, Callable[[float], str]] = {
    "loss": "loss {:.4f}".format,
    "grad_norm": "grad norm {:.3g}".format,
    "learning_rate": "lr {:.2e}".format,
    "tokens_per_second": lambda value: f"{count(value)} tokens/s",
    "mfu": "MFU {:.1%}".format,
    "loader_wait": "wait {:.1%}".format,
    "tokens_seen": lambda value: f"{count(value)} tokens",
    "epoch": "epoch {:.2f}".format,
}
"""Log key → how a line shows it. Keys that a log does not have are left out."""


class ConsoleLog(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Prints on the first process only."""

    def __init__(self, say: Say = print_line, clock: Callable[[], float] = time.monotonic) -> None:
        self.say, self.clock = say, clock

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._first_step: int = state.global_step
        self._began = self.clock()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        if not state.is_world_process_zero or not logs:
            return
        step: int = state.global_step
        if "loss" in logs:
            # At the pace so far, evaluations and checkpoints included.
            left = (self.clock() - self._began) / max(1, step - self._first_step) * (state.max_steps - step)
            shown = "  ".join(show(logs[key]) for key, show in SHOWN.items() if isinstance(logs.get(key), int | float))
            self.say(f"step {step:,}/{state.max_steps:,}  {shown}  left {duration(left)}")
        elif "eval_loss" in logs:
            sources = (key.removeprefix("eval_loss_") for key in logs if key.startswith("eval_loss_"))
            losses = ", ".join(f"{name} {logs[f'eval_loss_{name}']:.4f}" for name in sources)
            tokens = count(logs["eval_tokens"])
            self.say(f"held out, after {step:,} steps: loss {logs['eval_loss']:.4f} ({losses}), {tokens} tokens")
