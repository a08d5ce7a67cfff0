"""The loss of preference pairs in a training: a part of the mean over all pairs of a step, over every rank and
micro-batch; its figures; and the proof that a model compared with itself cannot tell two answers apart.

1. Before a batch goes to the device, `PairLoss.targets` takes out what the model does not take: sides and reference.
2. Each micro-batch gives its sum over pairs, divided by the pairs of the *whole step* on all ranks: a mean of means
   would give more weight to pairs in rows with few of them.
3. Figures are sums on the device until a line is logged, so that no step waits for them.

Legend: D documents of a batch, P of its pairs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ConfigError, InputError, ReferenceMismatchError
from ...schemas.tables.columns import WEIGHTS
from ..attention.probe_setup import chances
from ..packed_rows import PackedRows
from ..preference import (
    ACCURACY,
    LOGPS_CHOSEN,
    LOGPS_REJECTED,
    MARGIN,
    PairLosses,
    Pairs,
    find_pairs,
    preference_loss,
    sum_logps,
)
from ..reward_model import last_tokens
from ..targets import Targets, find_targets
from . import Say
from .loss import Forward
from .train_config import PreferenceConfig

LN_2 = math.log(2)
"""The dpo loss of a model that is its own reference."""
_EXACT = (1e-6, 1e-7)
"""How far from ln 2 the first loss may be in float32: this, or that times β and the size of the log-probabilities,
whichever is more. Their difference has the rounding of both."""
_HALF = (2e-2, 5e-4)
"""The same in bf16 and fp16."""
_FULL = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class PairTargets:
    """What a batch of pairs is trained on."""

    tokens: Targets
    """The trained tokens of its completions."""
    pairs: Pairs
    places: torch.Tensor
    """int64 (D,) the last token of each document."""
    reference: torch.Tensor | None = None
    """float64 (D,) log-probabilities by the reference."""

    @property
    def units(self) -> float:
        """The batch's part of what the step's loss is divided by: its pairs."""
        return float(len(self.pairs.chosen))

    def to(self, device: torch.device | str) -> "PairTargets":
        """The targets moved to a device."""
        reference = None if self.reference is None else self.reference.to(device, non_blocking=True)
        places = self.places.to(device, non_blocking=True)
        return PairTargets(self.tokens.to(device), self.pairs.to(device), places, reference)


class PairLoss:
    """Computes the losses of pairs with a model, and adds up their figures.

    Args:
        config: which loss.
        forward: calls the model.
    """

    def __init__(self, config: PreferenceConfig, forward: Forward) -> None:
        self.config = config
        self.forward = forward
        self.figures = PairFigures(scores=config.scores)

    def targets(self, batch: dict[str, Any]) -> PairTargets:
        """What a batch, as the loader makes it, is trained on; removes from it what the model does not take.

        Raises:
            InputError: a side has no trained token.
            IntegrityError: its sides are no pairs.
        """
        pairs = find_pairs(batch.pop("sides"))
        reference = batch.pop("reference", None)
        tokens = find_targets(batch)
        if not self.config.scores:
            counts = tokens.document_sums(torch.ones(len(tokens.tokens)), batch)
            if not bool((counts[torch.cat(pairs)] > 0).all()):
                raise InputError(
                    "a pair has a side without a trained token, so its completion has no log-probability; pack the "
                    "data again, which leaves such pairs out"
                )
        return PairTargets(tokens, pairs, last_tokens(batch), reference)

    def losses(
        self, model: Any, batch: Mapping[str, Any], targets: PairTargets
    ) -> tuple[PairLosses, torch.Tensor | None]:
        """The losses of a batch's pairs, and the mean auxiliary loss of a mixture of experts, if there is one. `batch`
        and `targets` are on the model's device.
        """
        counts = None
        if self.config.scores:
            values, auxiliary = self.forward.scores(model, batch, targets.places)
        else:
            losses, auxiliary = self.forward.token_losses(model, batch, targets.tokens)
            values, counts = sum_logps(losses, targets.tokens, batch)
        result = preference_loss(
            self.config.loss, values, counts, targets.pairs, targets.reference,
            beta=self.config.beta, gamma=self.config.gamma,
        )  # fmt: skip
        return result, auxiliary

    def logps(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> torch.Tensor:
        """float64 (D,): the log-probabilities of documents, computed as `losses` does: those of a reference."""
        losses, _ = self.forward.token_losses(model, batch, targets)
        return sum_logps(losses, targets, batch).sums


class PairFigures:
    """Sums over pairs since the last log line, on one rank.

    Args:
        scores: of a reward model, which has no log-probabilities.
    """

    def __init__(self, *, scores: bool) -> None:
        self.names = (ACCURACY, MARGIN) if scores else (ACCURACY, MARGIN, LOGPS_CHOSEN, LOGPS_REJECTED)
        self._sums: torch.Tensor | None = None

    def add(self, result: PairLosses) -> None:
        """Count the pairs of a micro-batch."""
        sums = torch.stack([result.metrics[name].sum() for name in self.names])
        count = sums.new_full((1,), result.pairs)
        added = torch.cat([sums, count])
        self._sums = added if self._sums is None else self._sums + added

    def collect(self, reduce: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> dict[str, float]:
        """The means over pairs since the last call, over all ranks; every rank must call it. Empty without a pair.

        Args:
            reduce: adds up a tensor over ranks.
        """
        sums = self._sums if self._sums is not None else torch.zeros(len(self.names) + 1, dtype=torch.float64)
        self._sums = None
        *totals, pairs = reduce(sums.to(device)).tolist()
        return {name: total / pairs for name, total in zip(self.names, totals, strict=True)} if pairs else {}


class FirstLossProof:
    """The proof before the first step: compared with itself, a model gives every pair a dpo loss of ln 2. Any other
    number shows that reference and policy are not computed alike: other weights or rows, padding that is counted,
    documents that see each other.

    Args:
        beta: of the loss.
        file: the reference, for messages.
    """

    def __init__(self, beta: float, file: Path) -> None:
        self.beta = beta
        self.file = file
        self.loss: float | None = None
        """The first loss, once it was proved."""
        self._drops_values: bool | None = None

    @classmethod
    def of(cls, config: PreferenceConfig | None, file: Path) -> "FirstLossProof | None":
        """The proof of a training; None if its first loss may be anything."""
        return cls(config.beta, file) if config is not None and config.loss == "dpo" else None

    def require(self, result: PairLosses, model: torch.nn.Module, *, is_half: bool, say: Say) -> None:
        """Compare the loss of a micro-batch of the first step. One without pairs shows nothing, and neither does a
        model that drops values at random.

        Args:
            is_half: the model computes in bf16 or fp16, whatever its weights.

        Raises:
            ReferenceMismatchError: it is another one, so the step is not taken.
        """
        if self._drops_values is None:
            self._drops_values = next(chances(list(model.modules())), None) is not None
            if self._drops_values:
                say("the first loss is not compared with ln 2, because the model drops values at random")
        if self._drops_values or not result.pairs:
            return
        loss = float(result.total.detach()) / result.pairs
        size = float((result.metrics[LOGPS_CHOSEN].abs() + result.metrics[LOGPS_REJECTED].abs()).mean())
        is_half = is_half or any(weight.dtype not in _FULL for weight in model.parameters())
        absolute, relative = _HALF if is_half else _EXACT
        # Not `>`, so that NaN is no proof.
        if not abs(loss - LN_2) <= max(absolute, relative * self.beta * size):
            raise ReferenceMismatchError(
                f"the step is not taken: the first loss is {loss:.7g}, but a model compared with itself has ln 2 = "
                f"{LN_2:.7g}: the reference is of other weights or another precision; delete {self.file}, and it is "
                "computed again"
            )
        if self.loss is None:
            self.loss = loss
            say(f"first loss proved: {loss:.7g} = ln 2")


def loss_of_guessing(config: PreferenceConfig | None, vocabulary: int) -> float | None:
    """The loss of a model that knows nothing; None where it says nothing, because there is no telling.

    Args:
        config: of pairs; None if tokens are trained.
        vocabulary: the number of token ids.
    """
    tokens = math.log(max(2, vocabulary))
    if config is None:
        return tokens
    # Of ipo it is 1/(4·β²) whatever the model, and of simpo it depends on the margin alone.
    return {"dpo": LN_2, "reward": LN_2, "orpo": tokens + config.beta * LN_2}.get(config.loss)


def refuse_other_rows(config: PreferenceConfig | None, rows: PackedRows) -> None:
    """Refuse pairs without a loss of pairs, and a loss of pairs without pairs.

    Raises:
        ConfigError: says which it is, and what to do.
    """
    has_pairs = rows.has_pairs
    address = rows.files.address
    if has_pairs and config is None:
        raise ConfigError(
            f"{address} holds preference pairs; set `preference: {{loss: dpo}}`, or train on packed rows of another "
            "format"
        )
    if config is not None and not has_pairs:
        raise ConfigError(f"preference: {address} has no preference pairs; pack sources of format preference")
    if config is not None and WEIGHTS in rows.manifest.schema:
        raise ConfigError(
            f"preference: {address} has loss weights, and log-probabilities of whole completions have none; pack it "
            "without them"
        )
