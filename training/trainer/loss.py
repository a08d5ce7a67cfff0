"""The loss: the mean over all trained tokens of a step, over every rank and micro-batch.

1. Before a batch goes to the device, `targets` finds which positions predict a trained label: often a third of them.
   Only these go through the model's head and the cross-entropy.
2. Each micro-batch gives its sum of cross-entropies, divided by the trained tokens of the *whole step* on all ranks.
   Summed over micro-batches and ranks that is the mean; a mean of means would weight the tokens of short batches more.
3. With loss weights, both are weighted: the sum of weight times cross-entropy, over the sum of weights.

Legend: T tokens of a batch, n of them trained, V the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ...schemas.rows import IGNORE_INDEX

CHUNK = 8192
"""Number of positions whose logits are widened to float32 at once."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The trained tokens of a batch."""

    index: torch.Tensor
    """(n,) int64, positions whose logits predict a trained token."""
    tokens: torch.Tensor
    """(n,) int64, the trained tokens."""
    weights: torch.Tensor | None = None
    """(n,) float32, how much each token counts; None if all count 1."""

    @property
    def units(self) -> float:
        """The tokens' part of what the step's loss is divided by: the sum of their weights."""
        return float(len(self.tokens)) if self.weights is None else float(self.weights.double().sum())

    def to(self, device: torch.device | str) -> "Targets":
        """The targets moved to a device."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        return Targets(self.index.to(device, non_blocking=True), self.tokens.to(device, non_blocking=True), weights)

    def total(self, losses: torch.Tensor) -> torch.Tensor:
        """The sum of the tokens' losses (n,), each times its weight."""
        return losses.sum() if self.weights is None else (losses * self.weights).sum()

    def document_sums(self, values: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        """float64 (D,): the sums of the tokens' values (n,) over each of the D documents of their batch, on the CPU."""
        document = torch.searchsorted(batch["cu_seq_lens_q"][1:].cpu().long(), self.index.cpu() + 1, right=True)
        sums = torch.zeros(len(batch["cu_seq_lens_q"]) - 1, dtype=torch.float64)
        return sums.index_add_(0, document, values.detach().double().cpu())


def targets(batch: Mapping[str, Any]) -> Targets:
    """What a packed batch is trained on. The label of its first token is never trained.

    Args:
        batch: `labels` int64 (1, T), not shifted; `loss_weights` float32 (1, T), if they differ.
    """
    labels = batch["labels"][0]
    place = (labels[1:] != IGNORE_INDEX).nonzero()[:, 0] + 1  # of the label; the logits one before predict it
    weights = batch["loss_weights"][0][place] if "loss_weights" in batch else None
    return Targets(place - 1, labels[place], weights)


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(n,) float32 the cross-entropy of each token, from its logits (n, V)."""
    pairs = zip(logits.split(CHUNK), tokens.split(CHUNK), strict=True)
    return torch.cat([functional.cross_entropy(some.float(), their, reduction="none") for some, their in pairs])


# For a loop of one's own


def weighted_loss(
    logits: torch.Tensor, batch: Mapping[str, Any], units: torch.Tensor | float | None = None
) -> torch.Tensor:
    """The sum of weight times cross-entropy of a batch's trained tokens, over `units`.

    Args:
        logits: (B, T, V) of all positions.
        batch: of a packtrain loader, on the same device: `labels` and `loss_weights` (B, T), or with context
            parallelism `shift_labels` and `shift_loss_weights`. Without weights all tokens count 1.
        units: sum of the weights (`loss_units`) over all micro-batches and ranks of the step, so that their losses add
            up to the step's mean. None: that of this batch alone, whose mean is then returned.
    """
    tokens, weights, ahead = _parts(batch)
    trained = tokens != IGNORE_INDEX
    losses = token_losses(logits[:, : logits.shape[1] - ahead][trained], tokens[trained])
    if weights is not None:
        losses = losses * weights[trained]
    whole = loss_units(batch) if units is None else units
    return losses.sum() / torch.as_tensor(whole, device=losses.device).clamp_min(torch.finfo(torch.float32).tiny)


def loss_units(batch: Mapping[str, Any]) -> torch.Tensor:
    """What a batch adds to `units` of `weighted_loss`: the sum of the weights of its trained tokens, float64."""
    tokens, weights, _ = _parts(batch)
    trained = tokens != IGNORE_INDEX
    return trained.sum().double() if weights is None else weights[trained].double().sum()


def _parts(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Labels and weights as they belong to logits, and how many positions at the end predict nothing."""
    if "shift_labels" in batch:
        return batch["shift_labels"], batch.get("shift_loss_weights"), 0
    weights = batch.get("loss_weights")
    return batch["labels"][:, 1:], None if weights is None else weights[:, 1:], 1
