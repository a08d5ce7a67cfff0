"""The loss: the mean over all trained tokens of a step, over every rank and micro-batch, to the last one.

1. Before a batch goes to the device, `targets` finds which positions predict a trained label: often a third of them.
   Only these go through the model's head and the cross-entropy.
2. Each micro-batch gives Σ weight · cross-entropy, divided by what the *whole step* counts on all ranks. Summed over
   micro-batches and ranks that is the mean; a mean of means would weight the tokens of short batches more.

Legend: T tokens of a batch, n of them trained, V the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from ...schemas.rows import IGNORE_INDEX

CHUNK = 8192
"""Number of positions whose logits are widened to float32 at once, if no gradient is needed."""


class LossMean(StrEnum):
    """What the loss is a mean of."""

    TOKEN = "token"
    """Every trained token of a step has the same weight."""
    DOCUMENT = "document"
    """Every document (piece) with a trained token has the same weight, whatever its length: its loss is the mean over
    its tokens.
    """


@dataclass(frozen=True, slots=True)
class Targets:
    """The trained tokens of a batch, and their weights."""

    index: torch.Tensor
    """(n,) int64, positions in the flattened batch whose logits predict a trained token."""
    tokens: torch.Tensor
    """(n,) int64, the trained tokens."""
    weights: torch.Tensor | None
    """(n,) float32 weight of each token; None if all are 1."""
    pieces: torch.Tensor
    """(n,) int64, index in the batch of each token's document (piece)."""
    units: int
    """This batch's part of the step's divisor: its number of trained tokens, or of documents."""

    def to(self, device: torch.device | str) -> "Targets":
        """The targets moved to a device."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        index, tokens = (one.to(device, non_blocking=True) for one in (self.index, self.tokens))
        return Targets(index, tokens, weights, self.pieces, self.units)


def targets(batch: Mapping[str, Any], mean: LossMean) -> Targets:
    """What a batch is trained on. The label of the first token of a row of the batch is never trained.

    Args:
        batch: `labels` int64 (B, L), not shifted; with `cu_seq_lens_q` where B is 1 and the row is packed.
    """
    labels = batch["labels"]
    rows, length = labels.shape
    row, place = (labels[:, 1:] != IGNORE_INDEX).nonzero(as_tuple=True)
    place = place + 1  # of the label; the logits one before predict it
    bounds = batch.get("cu_seq_lens_q")
    pieces = torch.searchsorted(bounds[1:].long(), place, right=True) if bounds is not None and rows == 1 else row
    weights, units = None, len(place)
    if mean is LossMean.DOCUMENT:
        counts = torch.bincount(pieces)
        weights = counts[pieces].float().reciprocal()
        units = int((counts > 0).sum())
    return Targets(row * length + place - 1, labels[row, place], weights, pieces, units)


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(n,) float32 the cross-entropy of each token, from its logits (n, V), which are widened first."""
    return torch.nn.functional.cross_entropy(logits.float(), tokens, reduction="none")


def token_losses_in_chunks(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(n,) float32 cross-entropy as `token_losses`, without gradients: widens only some logits to float32 at a time."""
    pairs = zip(logits.split(CHUNK), tokens.split(CHUNK), strict=True)
    parts = [token_losses(some, their) for some, their in pairs]
    return torch.cat(parts) if parts else tokens.new_zeros(0, dtype=torch.float32)


def weighted_sum(logits: torch.Tensor, wanted: Targets) -> torch.Tensor:
    """Σ weight · cross-entropy over a micro-batch; 0, with a graph to every parameter, where nothing is trained."""
    losses = token_losses(logits, wanted.tokens)
    return losses.sum() if wanted.weights is None else (losses * wanted.weights).sum()


def chosen_logits(logits: torch.Tensor, wanted: Targets, *, kept: bool) -> torch.Tensor:
    """(n, V) the logits of the wanted positions, from (1, n, V) where the model has kept only these, or (B, L, V)."""
    return logits[0] if kept else logits.flatten(0, 1)[wanted.index]
