"""What a training prints: a line at every logging step, in columns, and one for every evaluation."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from ...schemas.units import duration
from ..printing import print_line

Say = Callable[[str], None]


def _count(value: float) -> str:
    """1234567 as 1.23M."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.0f}" if not unit else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def _percent(value: float) -> str:
    return f"{value:.1%}"


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss": ("loss", "{:.4f}".format),
    "grad_norm": ("grad norm", "{:.3g}".format),
    "learning_rate": ("lr", "{:.2e}".format),
    "tokens_per_second": ("tokens/s", _count),
    "trained_tokens_per_second": ("trained/s", _count),
    "mfu": ("MFU", _percent),
    "fill": ("fill", _percent),
    "balance": ("balance", "{:.2f}".format),
    "loader_wait": ("wait", _percent),
    "tokens_seen": ("tokens", _count),
    "epoch": ("epoch", "{:.2f}".format),
    "seconds_left": ("left", duration),
}
"""Log key → heading and format of its column. Keys that no log has get no column. This file adds `seconds_left`."""


class ConsoleLog(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Prints on the first process only."""

    def __init__(self, say: Say = print_line, clock: Callable[[], float] = time.monotonic) -> None:
        self.say, self.clock = say, clock
        self._keys: list[str] = []
        self._since: tuple[int, float] | None = None
        """Step and time from which the time left is computed."""
        self._first = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._since, self._first = (state.global_step, self.clock()), True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            self._line({**logs, **self._left(state.global_step, state.max_steps)}, state)
        elif any(key.startswith("eval_loss") for key in logs):
            self.say(evaluation_line(logs, state.global_step))

    def _left(self, step: int, steps: int) -> dict[str, float]:
        """Seconds until the last step at the pace so far, evaluations and checkpoints included.

        Counted from the first line on, because the first steps warm up; only that line itself counts from the start.
        """
        if self._since is None or step <= self._since[0]:
            return {}
        before, began = self._since
        now = self.clock()
        left = (now - began) / (step - before) * (steps - step)
        if self._first:
            self._since, self._first = (step, now), False
        return {"seconds_left": left}

    def _line(self, logs: Mapping[str, Any], state: Any) -> None:
        keys = [key for key in COLUMNS if isinstance(logs.get(key), int | float)]
        width = max(len(f"{state.max_steps:,}") * 2 + 1, 9)
        if keys != self._keys:
            self._keys = keys
            self.say("  ".join([f"{'step':>{width}}", *(f"{COLUMNS[key][0]:>{_width(key)}}" for key in keys)]))
        step = f"{state.global_step:,}/{state.max_steps:,}"
        self.say("  ".join([f"{step:>{width}}", *(f"{_shown(key, logs[key]):>{_width(key)}}" for key in keys)]))


def evaluation_line(logs: Mapping[str, Any], step: int) -> str:
    """`held out, after 20 steps: loss 2.310 (apps 2.200, docs 2.500), 1.97k tokens`."""
    parts = [
        f"{key.removeprefix('eval_loss_')} {value:.4f}" for key, value in logs.items() if key.startswith("eval_loss_")
    ]
    named = f" ({', '.join(parts)})" if parts else ""
    tokens = f", {_count(logs['eval_tokens'])} tokens" if "eval_tokens" in logs else ""
    return f"held out, after {step:,} steps: loss {logs['eval_loss']:.4f}{named}{tokens}"


def _width(key: str) -> int:
    if key == "seconds_left":
        return len("59 min 59 s")
    return max(len(COLUMNS[key][0]), 8 if key in ("loss", "learning_rate") else 6)


def _shown(key: str, value: float) -> str:
    return COLUMNS[key][1](value) if math.isfinite(value) else str(value)
