"""What a batch holds: real tokens, trained ones, the room that it takes, and the lengths of its documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Of one micro-batch, padding told apart."""

    lengths: NDArray[np.int64]
    """(D,) of the documents, without padding and without those of no tokens."""
    trained: int
    """Labels that count. The first of a row never does."""
    positions: int
    """That the model computes, padding included."""

    @property
    def tokens(self) -> int:
        """Real ones."""
        return int(self.lengths.sum())

    @classmethod
    def of(cls, batch: Mapping[str, Any], *, static_length: int | None = None, pad_id: int = 0) -> "BatchSizes":
        """Of a packed, padding-free or padded batch. Looks at tensors, so they should still be on the CPU.

        Args:
            static_length: tokens of a row of a batch of fixed shape (`loader: {static_shapes: true}`), whose last
                document may be padding.
            pad_id: input id of that padding.
        """
        labels: torch.Tensor = batch["labels"]
        trained = int((labels[:, 1:] != IGNORE_INDEX).sum())
        mask, bounds = batch.get("attention_mask"), batch.get("cu_seq_lens_q")
        if mask is not None:
            lengths = mask.sum(1).numpy()
        elif bounds is not None:
            lengths = np.diff(bounds.numpy().astype(np.int64))
            if static_length is not None:
                lengths = _without_padding(batch, lengths, static_length, pad_id)
        else:
            lengths = np.full(labels.shape[0], labels.shape[1], dtype=np.int64)
        return cls(lengths[lengths > 0].astype(np.int64), trained, labels.numel())


def _without_padding(
    batch: Mapping[str, Any], lengths: NDArray[np.int64], static_length: int, pad_id: int
) -> NDArray[np.int64]:
    """The lengths, those of padding made 0. Padding is what ends a row and holds only padding's id, untrained."""
    ids, labels = batch["input_ids"][0].numpy(), batch["labels"][0].numpy()
    ends = np.cumsum(lengths)
    out = lengths.copy()
    for end in range(static_length, len(ids) + 1, static_length):
        last = int(np.searchsorted(ends, end))  # of the documents that end here, the one that has tokens
        piece = slice(end - int(lengths[last]), end)
        if (ids[piece] == pad_id).all() and (labels[piece] == IGNORE_INDEX).all():
            out[last] = 0
    return out
