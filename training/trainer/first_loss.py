"""What the first dpo loss of a training must be: ln 2."""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from ...schemas.errors import ReferenceMismatchError
from ..attention.probe_setup import chances
from ..preference.losses import LOGPS_CHOSEN, LOGPS_REJECTED, PairLosses
from . import Say

LN_2 = math.log(2)
"""The dpo loss of a model that is its own reference."""
_EXACT = (1e-6, 1e-7)
"""How far from ln 2 the first loss may be in float32: this, or that times β and the size of the log-probabilities,
whichever is more. Their difference has the rounding of both."""
_HALF = (2e-2, 5e-4)
"""The same in bf16 and fp16."""
_FULL = (torch.float32, torch.float64)


class FirstLossProof:
    """The proof before the first step: compared with itself, a model gives every pair a dpo loss of ln 2. Any other
    number shows that reference and policy are not computed alike: other weights or rows, padding that is counted,
    documents that see each other.

    Args:
        beta: of the loss.
        file: the reference, for messages.
        model: what is trained.
        is_half: it computes in bf16 or fp16, whatever its weights.
        is_due: whether the training is in its first step.
        say: prints a line.
    """

    def __init__(
        self,
        beta: float,
        file: Path,
        model: torch.nn.Module,
        *,
        is_half: bool,
        is_due: Callable[[], bool],
        say: Say,
    ) -> None:
        self.loss: float | None = None
        """The first loss, once it was proved."""
        self._beta = beta
        self._file = file
        self._model = model
        self._is_half = is_half
        self._is_due = is_due
        self._say = say
        self._drops_values: bool | None = None

    def require(self, result: PairLosses) -> None:
        """Compare the loss of a micro-batch of the first step. One without pairs shows nothing, and neither does a
        model that drops values at random.

        Raises:
            ReferenceMismatchError: it is another one, so the step is not taken.
        """
        if not self._is_due():
            return
        if self._drops_values is None:
            self._drops_values = next(chances(list(self._model.modules())), None) is not None
            if self._drops_values:
                self._say("the first loss is not compared with ln 2, because the model drops values at random")
        if self._drops_values or not result.pairs:
            return
        loss = float(result.total.detach()) / result.pairs
        size = float((result.metrics[LOGPS_CHOSEN].abs() + result.metrics[LOGPS_REJECTED].abs()).mean())
        is_half = self._is_half or any(weight.dtype not in _FULL for weight in self._model.parameters())
        absolute, relative = _HALF if is_half else _EXACT
        # Not `>`, so that NaN is no proof.
        if not abs(loss - LN_2) <= max(absolute, relative * self._beta * size):
            raise ReferenceMismatchError(
                f"the step is not taken: the first loss is {loss:.7g}, but a model compared with itself has ln 2 = "
                f"{LN_2:.7g}: the reference is of other weights or another precision; delete {self._file}, and it is "
                "computed again"
            )
        if self.loss is None:
            self.loss = loss
            self._say(f"first loss proved: {loss:.7g} = ln 2")
