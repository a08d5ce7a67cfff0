"""What a training prints: a line at every logging step, and one for every evaluation."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from ...schemas.units import count, duration, plural
from ..printing import Say, print_line

MOST_SOURCES = 6
"""More sources than these are not shown in a line; logs and TensorBoard have all of them."""
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
            parts = [show(logs[key]) for key, show in SHOWN.items() if isinstance(logs.get(key), int | float)]
            if 1 < sum(key.startswith("loss_") for key in logs) <= MOST_SOURCES:
                parts[0] += f" ({_by_source(logs, 'loss_')})"
            shown = "  ".join(parts)
            self.say(f"step {step:,}/{state.max_steps:,}  {shown}  left {duration(left)}")
        elif "eval_loss" in logs:
            losses, tokens = _by_source(logs, "eval_loss_"), count(logs["eval_tokens"])
            self.say(
                f"held out, after {plural(step, 'step')}: loss {logs['eval_loss']:.4f} ({losses}), {tokens} tokens"
            )


def _by_source(logs: Mapping[str, float], prefix: str) -> str:
    """Such as `chats 1.2345, texts 2.3456`."""
    found = ((key.removeprefix(prefix), loss) for key, loss in logs.items() if key.startswith(prefix))
    return ", ".join(f"{name} {loss:.4f}" for name, loss in found)
