"""The loss: the mean over all trained tokens of a step, over every rank and micro-batch, to the last one.

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
    pieces: torch.Tensor
    """(n,) int64, index in the batch of each token's document (piece)."""
    weights: torch.Tensor | None = None
    """(n,) float32, how much each token counts; None if all count 1."""

    @property
    def units(self) -> float:
        """The tokens' part of what the step's loss is divided by: the sum of their weights."""
        return float(len(self)) if self.weights is None else float(self.weights.double().sum())

    def __len__(self) -> int:
        return len(self.pieces)

    def to(self, device: torch.device | str) -> "Targets":
        """The targets moved to a device."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        index, tokens, pieces = (one.to(device, non_blocking=True) for one in (self.index, self.tokens, self.pieces))
        return Targets(index, tokens, pieces, weights)

    def total(self, losses: torch.Tensor) -> torch.Tensor:
        """The sum of the tokens' losses (n,), each times its weight."""
        return losses.sum() if self.weights is None else (losses * self.weights).sum()


def targets(batch: Mapping[str, Any]) -> Targets:
    """What a packed batch is trained on. The label of its first token is never trained.

    Args:
        batch: `labels` int64 (1, T), not shifted; `cu_seq_lens_q` (D + 1,); `loss_weights` float32 (1, T), if they
            differ.
    """
    labels = batch["labels"][0]
    place = (labels[1:] != IGNORE_INDEX).nonzero()[:, 0] + 1  # of the label; the logits one before predict it
    pieces = torch.searchsorted(batch["cu_seq_lens_q"][1:].long(), place, right=True)
    weights = batch["loss_weights"][0][place] if "loss_weights" in batch else None
    return Targets(place - 1, labels[place], pieces, weights)


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(n,) float32 the cross-entropy of each token, from its logits (n, V)."""
    pairs = zip(logits.split(CHUNK), tokens.split(CHUNK), strict=True)
    return torch.cat([functional.cross_entropy(some.float(), their, reduction="none") for some, their in pairs])


def document_sums(losses: torch.Tensor, wanted: Targets, size: int) -> torch.Tensor:
    """(D,) float64, on the same device: the sum of the tokens' losses (n,) of each of D documents (pieces)."""
    sums = torch.zeros(size, dtype=torch.float64, device=losses.device)
    return sums.index_add_(0, wanted.pieces, losses.detach().double())
