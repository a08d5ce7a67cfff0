"""What a training minimises: the mean loss over tokens, or over preference pairs (`pair_objective`)."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from ..targets import Targets, find_targets, token_losses
from .loss import Forward

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Adds up a tensor over ranks."""
TOKEN_COLUMNS = ("loss", "weight", "tokens")
"""What is summed of held-out tokens: their losses, each times its weight; their weights; and their number."""


class Objective(Protocol):
    """What a training minimises. D documents of a batch."""

    columns: tuple[str, ...]
    """Names of the columns of `document_columns`, always in this order: the loss; the weight, by whose sum the sum of
    losses is divided; the count; and further figures, which are divided by the sum of weights as the loss is."""

    def targets(self, batch: dict[str, Any]) -> Any:
        """What a batch is trained on. Removes from the batch, which the loader made, what the model does not take.

        Returns:
            Has `units`, the batch's part of what the step's loss is divided by, and `to(device)`.
        """

    def loss(
        self,
        model: Any,
        batch: Mapping[str, Any],
        targets: Any,
        units: torch.Tensor,
        *,
        share: float,
        is_first_step: bool,
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss. The parts of all micro-batches and ranks add up to it.

        Args:
            batch, targets: on the model's device.
            units: of the whole step: the sum of `units` of all targets, on all ranks.
            share: 1 / (ranks · micro-batches), this micro-batch's weight in a mean over all of the step.
            is_first_step: no step was made before, so the weights are still those that training starts from.
        """

    def document_columns(self, model: Any, batch: Mapping[str, Any], targets: Any) -> torch.Tensor:
        """float64 (D, columns): the sum of each column over each document, for evaluation."""

    def figures(self, reduce: Reduce, device: torch.device) -> dict[str, float]:
        """Means since the last call, over all ranks, for the log; every rank calls it."""


class TokenObjective:
    """An `Objective`: the mean loss over trained tokens, each counted by its weight."""

    columns: tuple[str, ...] = TOKEN_COLUMNS

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def targets(self, batch: dict[str, Any]) -> Targets:
        """The trained tokens of a batch, with their loss weights if there are any."""
        targets = find_targets(batch)
        batch.pop("loss_weights", None)  # they are among the targets, and the model does not take them
        return targets

    def loss(
        self,
        model: Any,
        batch: Mapping[str, Any],
        targets: Targets,
        units: torch.Tensor,
        *,
        share: float,
        is_first_step: bool,
    ) -> torch.Tensor:
        """This micro-batch's sum of losses, divided by the trained tokens (or their weights) of the whole step.

        Args:
            units: the trained tokens (or their weights) of the whole step, on all ranks.
            share: 1 / (ranks · micro-batches), for a mean over the step such as an auxiliary loss.
            is_first_step: has no effect here.

        Raises:
            ConfigError: see `Forward.loss`.
        """
        return self._forward.loss(model, batch, targets, units, share=share)

    def document_columns(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> torch.Tensor:
        """float64 (D, 3): for each document the sum of its losses, each times its weight; of its weights, which are 1
        for data without weights; and the number of its trained tokens.
        """
        losses = token_losses(self._forward.logits(model, batch, targets), targets.tokens)
        counts = torch.ones_like(losses)
        weights = counts if targets.weights is None else targets.weights
        return torch.stack([targets.document_sums(values, batch) for values in (losses * weights, weights, counts)], 1)

    def figures(self, reduce: Reduce, device: torch.device) -> dict[str, float]:
        """None besides the loss, which transformers logs by itself."""
        return {}
