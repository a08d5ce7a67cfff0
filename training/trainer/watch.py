"""What watches a training: the proof of isolation, warnings in early steps, its speed, and the lines that it prints."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback

from ...schemas.errors import LeakError
from ...schemas.units import count, duration, plural
from ..attention.apply import unwrap
from ..model import EXPERTS
from ..probe import probe
from . import Say, print_line

_LOG = logging.getLogger(__name__)
_PROVED = {name: name for name in ("isolation", "perturbation", "control", "equivalence")} | {
    "at length": "at full length"
}
"""Checks of the probe whose values are shown, and what they are called there."""
EARLY = 50
"""Number of first steps in which warnings are given."""
WORSE, RISEN, STEEP = 1.3, 1.5, 10.0
"""Multiples above which a warning is given: the first loss of that of guessing, a later loss of the first, a gradient
norm of the smallest so far."""
_RATE = "too high a learning rate, too short a warm-up or no gradient clipping"
PEAKS = {"B200": 2250.0, "H200": 989.4, "H100": 989.4, "A100": 311.9, "L40S": 362.1, "RTX 4090": 165.2}
"""Name within torch.cuda.get_device_name → dense TFLOP/s in bf16 with float32 sums, from the makers' data sheets."""
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


class Proof:
    """Proves with the first batch, also after resuming, that no document sees another; and sees to it that the
    attention that was proved stays.

    Args:
        trainer: a PackedTrainer.
        wanted: whether to prove anything.
    """

    def __init__(self, trainer: Any, wanted: bool) -> None:
        self.trainer, self.wanted = trainer, wanted
        self.report: Any = None
        """probe.ProbeReport; None where nothing was probed."""

    def check(self, batch: Mapping[str, Any]) -> None:
        """Probe the prepared model: wrapped, compiled and checkpointed as it trains.

        Raises:
            LeakError: documents see each other, with what to do; or something has changed the attention since.
        """
        trainer = self.trainer
        if (now := str(trainer.model.config._attn_implementation)) != trainer.applied.name:
            raise LeakError(
                f"the step is not taken: attention was {trainer.applied.name} when training began, and is {now} now; "
                "something set it in between"
            )
        if not self.wanted or self.report is not None:
            return
        # Within autocast, which the model's forward enters by itself: it tells the probe what rounding to expect.
        with trainer.meter.paused(), trainer.accelerator.autocast():
            self.report = probe(trainer.model_wrapped, batch=batch, seed=trainer.args.seed, device=trainer.args.device)
        self.report.require()
        if trainer.say is not None and trainer.state.is_world_process_zero:
            shown = [f"{_PROVED[one.name]} {one.value}" for one in self.report.checks if one.name in _PROVED]
            trainer.say(f"isolation proved: {', '.join(shown)}")


class Steps(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Has the last step logged, and counts epochs by rows: steps may cross them.

    Args:
        epochs_per_step: how often a step reads the data.
    """

    def __init__(self, epochs_per_step: float) -> None:
        self.epochs_per_step = epochs_per_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        state.epoch = state.global_step * self.epochs_per_step
        control.should_log = control.should_log or state.global_step >= state.max_steps


class EarlyWarnings(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """A warning, once of each kind and with likely causes, when early losses or gradient norms are abnormal.

    A model that guesses has a loss of ln(V), V the size of its vocabulary: the first loss must not be far above it, and
    later early ones must not rise far above the first. Nothing is stopped: people judge.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self.guessing = math.log(max(2, vocabulary))
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


class Meter:
    """How fast a training is: sums of one rank since the last log line.

    MFU counts the model's own operations as 6 for each weight and token, and 6 · layers · width for each pair of tokens
    of a document (causal, forward and backward). Adapters, windows and recurrent layers make it rough.

    Args:
        model: before it is sharded.
        device: whose peak is looked up in `PEAKS`; there is no MFU where it is not known.
        clock: seconds.
    """

    def __init__(self, model: Any, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        config = unwrap(model).config.get_text_config()
        experts = next((found for key in EXPERTS if (found := getattr(config, key, None))), 1)
        active = (getattr(config, "num_experts_per_tok", None) or 1) / experts
        embedding = unwrap(model).get_input_embeddings().weight
        tied = embedding is getattr(unwrap(model).get_output_embeddings(), "weight", None)
        self._weights = 0.0
        for name, weight in model.named_parameters():
            if weight is not embedding or tied:  # looking up rows multiplies nothing
                size = int(getattr(weight, "ds_numel", weight.numel()))  # the first under ZeRO-3
                self._weights += size * (active if "experts" in name.split(".") else 1.0)
        self._width = float(getattr(config, "num_hidden_layers", 0) * getattr(config, "hidden_size", 0))
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self.peak = next((teraflops * 1e12 for known, teraflops in PEAKS.items() if known in name), None)
        self.clock = clock
        self._begun: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._waited = self._paused = 0.0
        self._tokens = self._squares = 0.0

    def batch(self, batch: Mapping[str, Any], waited: float = 0.0) -> None:
        """Count a packed micro-batch that is still on the CPU, and the seconds that the trainer waited for it."""
        if self._begun is None:  # what came before the first batch is not training
            self._begun = self.clock() - waited
        lengths = batch["cu_seq_lens_q"].diff().double()
        self._waited += waited
        self._tokens += float(lengths.sum())
        self._squares += float((lengths**2).sum())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context for other work, such as an evaluation, whose time does not count."""
        began = self.clock()
        try:
            yield
        finally:
            self._paused += self.clock() - began

    def collect(self, tokens_before: int) -> dict[str, float]:
        """The figures since the last call, over all ranks; every rank must call it, after the same step.

        Args:
            tokens_before: `tokens_seen` of the last call.

        Returns:
            `tokens_per_second`, per device; `mfu`, where the peak is known; `loader_wait` (share of the time that the
            rank which waited longest waited for batches); `tokens_seen` (over all ranks, since training began). Empty
            where nothing was done.
        """
        from accelerate.utils import gather_object

        now = self.clock()
        elapsed = 0.0 if self._begun is None else now - self._begun - self._paused
        ranks = gather_object([(elapsed, self._waited, self._tokens, self._squares)])
        self._clear()
        self._begun = None if self._begun is None else now
        slowest, waited = max(one[0] for one in ranks), max(one[1] for one in ranks)
        tokens, squares = sum(one[2] for one in ranks), sum(one[3] for one in ranks)
        if slowest <= 0 or not tokens:
            return {}
        figures = {"tokens_per_second": tokens / slowest / len(ranks)}
        if self.peak is not None:
            flops = 6 * (self._weights * tokens + self._width * squares)
            figures["mfu"] = flops / slowest / len(ranks) / self.peak
        return {**figures, "loader_wait": waited / slowest, "tokens_seen": tokens_before + int(tokens)}


class ConsoleLog(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Prints a line at every logging step, and one for every evaluation, on the first process only."""

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
            prefix = "eval_loss_"
            each = ", ".join(
                f"{key.removeprefix(prefix)} {loss:.4f}" for key, loss in logs.items() if key.startswith(prefix)
            )
            held, tokens = f"held out, after {plural(step, 'step')}", count(logs["eval_tokens"])
            self.say(f"{held}: loss {logs['eval_loss']:.4f} ({each}), {tokens} tokens")
