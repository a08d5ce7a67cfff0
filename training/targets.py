"""The trained tokens of a batch: where they are predicted, their cross-entropies, and sums over documents.

Legend: T tokens of a batch (of an unpacked one, all its rows end to end), n of them trained, D documents, V the
vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ..schemas.rows import IGNORE_INDEX
from .branches import piece_bounds

CHUNK = 8192
"""Number of positions whose logits are widened to float32 at once: of all at once they would take much memory."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The n trained tokens of a batch."""

    index: torch.Tensor
    """(n,) int64, positions whose logits predict a trained token."""
    tokens: torch.Tensor
    """(n,) int64, the trained tokens."""
    weights: torch.Tensor | None = None
    """(n,) float32, how much each token counts; None if all count 1."""

    @property
    def units(self) -> float:
        """What these tokens add to the number by which a step's loss is divided: the sum of their weights."""
        return float(len(self.tokens)) if self.weights is None else float(self.weights.double().sum())

    def to(self, device: torch.device | str) -> "Targets":
        """The targets moved to a device. From memory that is not pinned CUDA copies before it returns, so that
        `non_blocking` gains nothing there, and is safe.
        """
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        return Targets(self.index.to(device, non_blocking=True), self.tokens.to(device, non_blocking=True), weights)

    def document_sums(self, values: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        """float64 (D,): the sums of the tokens' values (n,) over each of the D documents of their batch, on the values'
        device, with a gradient.
        """
        return document_sums(values, self.index, document_bounds(batch))


def find_targets(batch: Mapping[str, Any]) -> Targets:
    """What a batch is trained on. The label of its first token is never trained.

    Args:
        batch: `labels` int64 (1, T), not shifted, or of an unpacked batch (D, L); `loss_weights` float32 of the same
            shape, if they differ.
    """
    labels = batch["labels"]
    # The logits at a position predict the next token: of the labels [-100, 5, 6, -100, 8], 5, 6 and 8 are predicted
    # at the positions 0, 1 and 3. The first label of a row has no position before it.
    rows, columns = (labels[:, 1:] != IGNORE_INDEX).nonzero(as_tuple=True)
    index = rows * labels.shape[1] + columns  # of the rows end to end: column 1 of row 2, of 5 columns, is 11
    weights = batch["loss_weights"][rows, columns + 1] if "loss_weights" in batch else None
    return Targets(index, labels[rows, columns + 1], weights)


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(n,) the cross-entropy of each token, from its logits (n, V).

    Computed in float32, or in float64 if the logits are in float64.
    """
    chunks = zip(logits.split(CHUNK), tokens.split(CHUNK), strict=True)
    losses = [
        # In float32: bf16 has three digits, too few for a sum over a vocabulary.
        functional.cross_entropy(_widened(chunk_logits), chunk_tokens, reduction="none")
        for chunk_logits, chunk_tokens in chunks
    ]
    return torch.cat(losses)


def _widened(logits: torch.Tensor) -> torch.Tensor:
    """Logits in float32; those in float64 stay as they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def document_bounds(batch: Mapping[str, Any]) -> torch.Tensor:
    """int (D + 1,) where the documents of a batch begin, then T. In an unpacked batch every row is a document."""
    if "cu_pieces" in batch or "cu_seq_lens_q" in batch:
        return piece_bounds(batch)
    documents, length = batch["labels"].shape
    return torch.arange(documents + 1) * length


def document_sums(values: torch.Tensor, index: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """float64 (D,): sums of the values (n,) of trained tokens over each document, with a gradient.

    In float64, because losses of preferences are small differences of sums over thousands of tokens: sums in float32
    gave gradients wrong by 1e-4, relatively, those in float64 by 4e-7.

    Args:
        index: (n,) the position that predicts each token: the one before the token's own.
        bounds: (D + 1,) where documents begin, then T.
    """
    # Documents of 3 and 2 tokens end at 3 and 5. The token at 3, predicted at 2, is the second document's: as many
    # ends are at or before it as there are documents before its own.
    ends = bounds[1:].to(index.device).long()
    document = torch.searchsorted(ends, index + 1, right=True).to(values.device)
    sums = torch.zeros(len(bounds) - 1, dtype=torch.float64, device=values.device)
    return sums.index_add(0, document, values.double())
