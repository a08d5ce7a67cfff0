"""The reference of a preference training, and the proof that the model is compared with it rightly.

The reference is the log-probabilities of all rows, of training and held out, by the weights that training starts from.
They are computed before the first step, and read from then on.
"""

import math
import time
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ReferenceMismatchError
from ...schemas.units import plural
from ..attention.packed_attention import Applied
from ..attention.probe_setup import chances
from ..loader import PackedLoader
from ..preference.losses import LOGPS_CHOSEN, LOGPS_REJECTED, PairLosses
from ..preference.reference import Reference
from ..preference.reference_pass import LogpsOf, reference_key, stored_reference
from . import Say

REFERENCE = "reference.arrow"
"""The file in `out`, unless the configuration names another one."""
SECONDS = 10.0
"""Time between two lines of progress."""
LN_2 = math.log(2)
"""The dpo loss of a model that is its own reference."""
_FLOAT32_TOLERANCES = (1e-6, 1e-7)
"""(absolute, relative), for float32. The first loss may differ from ln 2 by `absolute`, or by `relative` times β times
the size of log-probabilities, if that is more: the difference of two large numbers has the rounding of both."""
_HALF_TOLERANCES = (2e-2, 5e-4)
"""The same in bf16 and fp16."""


class PairReference:
    """The log-probabilities that the pairs of a training are compared with.

    Args:
        file: holds those of the training rows. Those of held-out rows are in a file beside it.
        weights: hash of the weights that training starts from.
        held_out: gives the held-out rows; None if none are evaluated.
        held_out_rows: how many of them are evaluated, from the first on.
    """

    def __init__(self, file: Path, weights: str, held_out: PackedLoader | None, held_out_rows: int) -> None:
        self.file = file
        self.held_out: Reference | None = None
        """The log-probabilities of held-out rows; None before `prepare`, or if none are evaluated."""
        self._weights = weights
        self._held_out_loader = held_out
        self._held_out_rows = held_out_rows

    def prepare(
        self,
        loader: PackedLoader,
        model: Any,
        attention: Applied,
        logps_of: LogpsOf | None,
        device: torch.device,
        say: Say,
    ) -> None:
        """Read or compute the log-probabilities, and give those of the training rows to the loader. Every rank calls
        it, within the autocast in which the model computes.

        Args:
            model: in eval mode.
            attention: what computes its attention on the device.
            logps_of: the model's forward pass, as it computes log-probabilities for the loss; None if the model's
                weights are trained already, and so are no reference.

        Raises:
            ConfigError, PacktrainError, StoreError: see `stored_reference`.
        """
        _describe_reference("training", self.file, say)
        loader.reference = stored_reference(
            self.file,
            reference_key(loader, model, attention, self._weights),
            loader,
            logps_of,
            device,
            progress=_Progress("training", say),
        )
        if self._held_out_loader is None:
            return
        # reference.arrow → reference.holdout.arrow
        file = self.file.with_name(f"{self.file.stem}.holdout{self.file.suffix}")
        _describe_reference("held-out", file, say)
        self.held_out = stored_reference(
            file,
            reference_key(self._held_out_loader, model, attention, self._weights),
            self._held_out_loader,
            logps_of,
            device,
            rows=self._held_out_rows,
            progress=_Progress("held-out", say),
        )


def _describe_reference(name: str, file: Path, say: Say) -> None:
    """Say where the reference of some rows comes from, before a pass that may take hours."""
    state = "is read from" if file.exists() else "is computed, once, and kept in"
    say(f"the reference of {name} rows {state} {file}")


class _Progress:
    """Says every `SECONDS` how many rows of a reference are computed: a pass over all rows may take hours. It is called
    with the number of rows that are done, and of all rows.

    Args:
        name: what the rows are called, `training` or `held-out`.
        say: prints a line.
    """

    def __init__(self, name: str, say: Say) -> None:
        self._name = name
        self._say = say
        self._last = time.monotonic()

    def __call__(self, done: int, rows: int) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS:
            return
        self._last = now
        self._say(f"the reference of {self._name} rows: {done:,} of {plural(rows, 'row')}")


class FirstLossProof:
    """The proof before the first step: compared with itself, a model gives every pair a dpo loss of ln 2. Any other
    number shows that reference and policy are not computed alike: other weights or rows, padding that is counted,
    documents that see each other.

    Args:
        beta: of the loss.
        file: of the reference; the error names it.
        model: what is trained.
        is_half: it computes in bf16 or fp16, whatever the dtype of its weights.
        say: prints a line.
    """

    def __init__(self, beta: float, file: Path, model: torch.nn.Module, *, is_half: bool, say: Say) -> None:
        self._beta = beta
        self._file = file
        self._model = model
        self._is_half = is_half
        self._say = say
        self._has_said = False

    def require(self, result: PairLosses) -> None:
        """Require that the loss of a micro-batch of the first step is ln 2. A micro-batch without pairs shows nothing,
        and neither does a model with dropout.

        Raises:
            ReferenceMismatchError: the loss is another number, so the step is not taken.
        """
        if not result.pairs:
            return
        # `chances` finds the layers that drop values at random: with any, the model differs from itself in every pass.
        if next(chances(list(self._model.modules())), None) is not None:
            self._say_once("the first loss is not compared with ln 2, because the model drops values at random")
            return
        loss = float(result.total.detach()) / result.pairs
        # The mean size of what is subtracted, for the rounding that is allowed.
        size = float((result.metrics[LOGPS_CHOSEN].abs() + result.metrics[LOGPS_REJECTED].abs()).mean())
        full = (torch.float32, torch.float64)
        is_half = self._is_half or any(weight.dtype not in full for weight in self._model.parameters())
        absolute, relative = _HALF_TOLERANCES if is_half else _FLOAT32_TOLERANCES
        # Not `>`, so that NaN is no proof.
        if not abs(loss - LN_2) <= max(absolute, relative * self._beta * size):
            raise ReferenceMismatchError(
                f"the step is not taken: the first loss is {loss:.7g}, but a model compared with itself has ln 2 = "
                f"{LN_2:.7g}: the reference is of other weights or another precision; delete {self._file}, and it is "
                "computed again"
            )
        self._say_once(f"first loss proved: {loss:.7g} = ln 2")

    def _say_once(self, text: str) -> None:
        """Say the text, unless something was said of an earlier micro-batch."""
        if not self._has_said:
            self._say(text)
        self._has_said = True
