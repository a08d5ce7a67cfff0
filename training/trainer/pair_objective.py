"""The loss of preference pairs in a training: a part of the mean over all pairs of a step, over every rank and
micro-batch; and its figures.

1. Before a batch goes to the device, `PairObjective.targets` takes out what the model does not take: its sides and its
   reference.
2. Each micro-batch gives its sum over pairs, divided by the pairs of the *whole step* on all ranks: a mean of means
   would give more weight to pairs in rows with few of them.
3. Figures are sums on the device until a line is logged, so that no step waits for them.

Legend: D documents of a batch, P of its pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import ConfigError, InputError
from ...schemas.tables.columns import WEIGHTS
from ..models.reward_model import last_tokens
from ..packed_rows import PackedRows
from ..preference.losses import (
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
from ..targets import Targets, find_targets
from .loss import Forward
from .objective import Reduce
from .pair_reference import FirstLossProof
from .train_config import PreferenceConfig

PAIR_COLUMNS = ("loss", "weight", "pairs")
"""What is summed of held-out pairs: their losses; their weights, each of which is 1; and their number. Their figures
follow."""


@dataclass(frozen=True, slots=True)
class PairTargets:
    """What a batch of pairs is trained on."""

    tokens: Targets
    """The trained tokens of its completions."""
    pairs: Pairs
    """Which documents are chosen, and which are rejected."""
    places: torch.Tensor
    """int64 (D,) the place of the last token of each document, in the tokens of all rows end to end."""
    reference: torch.Tensor | None = None
    """float64 (D,) log-probabilities of the documents by the reference; None if the loss compares with none."""

    @property
    def units(self) -> float:
        """The batch's part of what the step's loss is divided by: its pairs."""
        return float(len(self.pairs.chosen))

    def to(self, device: torch.device | str) -> "PairTargets":
        """The targets moved to a device."""
        reference = None if self.reference is None else self.reference.to(device, non_blocking=True)
        places = self.places.to(device, non_blocking=True)
        return PairTargets(self.tokens.to(device), self.pairs.to(device), places, reference)


class PairObjective:
    """An `Objective`: the mean loss over preference pairs, with figures to watch.

    Args:
        config: which loss.
        forward: calls the model.
        proof: compares the loss of the first step with what it must be; None if it may be anything.
    """

    def __init__(self, config: PreferenceConfig, forward: Forward, proof: FirstLossProof | None) -> None:
        self.config = config
        self.forward = forward
        self._proof = proof
        self._figures = PairFigures(scores=config.scores)
        self.columns: tuple[str, ...] = (*PAIR_COLUMNS, *self._figures.names)

    def targets(self, batch: dict[str, Any]) -> PairTargets:
        """What a batch, as the loader makes it, is trained on; removes from it what the model does not take.

        Raises:
            InputError: a side has no trained token.
            IntegrityError: its sides are no pairs.
        """
        pairs = find_pairs(batch.pop("sides"))
        reference = batch.pop("reference", None)
        tokens = find_targets(batch)
        # A reward model scores a side by its last token, whether tokens of it are trained or not.
        if not self.config.scores:
            counts = tokens.document_sums(torch.ones(len(tokens.tokens)), batch)
            sides = torch.cat(pairs)  # the numbers of the chosen documents, then of the rejected ones
            if not bool((counts[sides] > 0).all()):
                raise InputError(
                    "a pair has a side without a trained token, so its completion has no log-probability; pack the "
                    "data again, which leaves such pairs out"
                )
        return PairTargets(tokens, pairs, last_tokens(batch), reference)

    def loss(
        self,
        model: Any,
        batch: Mapping[str, Any],
        targets: PairTargets,
        units: torch.Tensor,
        *,
        share: float,
        is_first_step: bool,
    ) -> torch.Tensor:
        """This micro-batch's sum of losses over pairs, divided by the pairs of the whole step.

        Raises:
            ReferenceMismatchError: in the first step, when the model is its own reference, the loss is not ln 2.
        """
        result, auxiliary = self._losses(model, batch, targets)
        if self._proof is not None and is_first_step:
            self._proof.require(result)
        self._figures.add(result)
        # In float32, as transformers adds up the losses that it logs.
        return self.forward.with_auxiliary((result.total / units).float(), auxiliary, share)

    def document_columns(self, model: Any, batch: Mapping[str, Any], targets: PairTargets) -> torch.Tensor:
        """float64 (D, columns): loss, weight 1, count 1 and figures of each pair, at its chosen document. The rows of
        rejected documents are 0, so that sums over documents are sums over pairs.
        """
        result, _ = self._losses(model, batch, targets)
        ones = torch.ones_like(result.losses)
        columns = torch.stack([result.losses, ones, ones, *result.metrics.values()], dim=1)
        documents = columns.new_zeros(len(targets.places), len(self.columns))
        return documents.index_add_(0, targets.pairs.chosen, columns)

    def figures(self, reduce: Reduce, device: torch.device) -> dict[str, float]:
        """Means over the pairs since the last call, on all ranks: `rewards/accuracy` and others of `preference_loss`.
        Every rank calls it.
        """
        return self._figures.collect(reduce, device)

    def _losses(
        self, model: Any, batch: Mapping[str, Any], targets: PairTargets
    ) -> tuple[PairLosses, torch.Tensor | None]:
        """The losses of a batch's pairs, and the mean auxiliary loss of a mixture of experts, if there is one."""
        # (D,) each document's score, or its log-probability and the number of tokens that it is summed over.
        counts = None
        if self.config.scores:
            values, auxiliary = self.forward.scores(model, batch, targets.places)
        else:
            losses, auxiliary = self.forward.token_losses(model, batch, targets.tokens)
            values, counts = sum_logps(losses, targets.tokens, batch)
        result = preference_loss(
            self.config.loss,
            values,
            counts,
            targets.pairs,
            targets.reference,
            beta=self.config.beta,
            gamma=self.config.gamma,
        )
        return result, auxiliary

    def logps(self, model: Any, batch: Mapping[str, Any], targets: PairTargets) -> torch.Tensor:
        """float64 (D,): the log-probabilities of documents, computed as for the loss, so that a reference made of them
        agrees with it.
        """
        losses, _ = self.forward.token_losses(model, batch, targets.tokens)
        return sum_logps(losses, targets.tokens, batch).sums


class PairFigures:
    """Sums of the figures of pairs since the last log line, on one rank.

    Args:
        scores: a reward model is trained, which has no log-probabilities.
    """

    def __init__(self, *, scores: bool) -> None:
        self.names = (ACCURACY, MARGIN) if scores else (ACCURACY, MARGIN, LOGPS_CHOSEN, LOGPS_REJECTED)
        self._sums: torch.Tensor | None = None
        """float64 (F + 1,): the sums of the F figures, then the number of pairs. None before the first pair."""

    def add(self, result: PairLosses) -> None:
        """Count the pairs of a micro-batch."""
        sums = torch.stack([result.metrics[name].sum() for name in self.names])
        count = sums.new_full((1,), result.pairs)
        added = torch.cat([sums, count])
        self._sums = added if self._sums is None else self._sums + added

    def collect(self, reduce: Reduce, device: torch.device) -> dict[str, float]:
        """The means over pairs since the last call, over all ranks; every rank must call it. Empty without a pair.

        Args:
            reduce: adds up a tensor over ranks.
        """
        # A rank without a pair adds zeros: all ranks must take part in the sum.
        sums = self._sums if self._sums is not None else torch.zeros(len(self.names) + 1, dtype=torch.float64)
        self._sums = None
        totals = reduce(sums.to(device)).tolist()
        pairs = totals[-1]
        if not pairs:
            return {}
        return {name: total / pairs for name, total in zip(self.names, totals[:-1], strict=True)}


def check_rows_fit_loss(config: PreferenceConfig | None, rows: PackedRows) -> None:
    """Refuse pairs without a loss of pairs, a loss of pairs without pairs, and pairs with loss weights.

    Args:
        config: the loss of pairs; None if tokens are trained.

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
