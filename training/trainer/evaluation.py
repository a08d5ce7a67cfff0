"""The loss on held-out packed rows: the mean over all their trained tokens, and over those of each source; of tokens
with loss weights, the weighted mean, as in training.

All ranks make the same number of batches, because forward passes of a sharded model are collective; rows that fill up
the last ones have no trained tokens, and so do not count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.rows import IGNORE_INDEX
from ..batch import flatten
from ..losses.sources import DocumentSources
from ..rows import MAKE_HOLDOUT, PackedRows
from ..shard import Row
from .loss import Targets, document_sums, targets, token_losses

Logits = Callable[[dict[str, Any], Targets], torch.Tensor]
"""(batch, targets) → (n, V) logits that predict the trained tokens."""


@dataclass(frozen=True)
class HeldOut:
    """The packed rows on which the loss is measured, in the order in which they lie.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: which split of it.
        limit: only so many rows, the first ones.
        rows_per_device: rows of one forward pass on one device.
        remote: `cache`, `cache_bytes` and `storage_options` of `PackedRows`.

    Raises:
        InputError, IntegrityError: see `PackedRows`.
        ConfigError: the split has no rows.
    """

    where: str | Path
    split: str = "holdout"
    limit: int | None = None
    rows_per_device: int = 1
    remote: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self):
            raise ConfigError(
                f"{self.where}: the split {self.split!r} has no rows to measure a loss on; "
                f"name another split, or leave eval out{'; ' + MAKE_HOLDOUT if self.split == 'holdout' else ''}"
            )

    @cached_property
    def rows(self) -> PackedRows:
        """The held-out rows."""
        return PackedRows(self.where, self.split, **self.remote)

    def __len__(self) -> int:
        return len(self.rows) if self.limit is None else min(self.limit, len(self.rows))

    @cached_property
    def sources(self) -> DocumentSources:
        """Which document is of which source."""
        return DocumentSources([self.rows])

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, and (D,) the number of the source of each document (piece) in them."""
        width = self.rows_per_device * world_size
        for begin in range(0, len(self), width):
            first = begin + rank * self.rows_per_device
            rows = [self._row(index) for index in range(first, first + self.rows_per_device)]
            doc_ids = np.concatenate([row.doc_ids for row in rows])
            yield flatten(rows), self.sources.of(0, doc_ids)

    def _row(self, index: int) -> Row:
        """A row; for indices beyond the last row, the first row with nothing trained."""
        if index < len(self):
            return self.rows.row(index)
        row = self.rows.row(0)
        return replace(row, labels=np.full_like(row.labels, IGNORE_INDEX), loss_weights=None)


def measure(
    held: HeldOut, logits: Logits, device: torch.device | str, rank: int = 0, world_size: int = 1
) -> torch.Tensor:
    """float64 (S, 3) on `device`: for each source, the sum of its tokens' losses on this rank, each times its weight;
    the sum of their weights; and their number.
    """
    sums = np.zeros((len(held.sources.names), 3))
    with torch.no_grad():
        for batch, sources in held.batches(rank, world_size):
            wanted = targets(batch)
            losses = token_losses(logits(batch, wanted), wanted.tokens.to(device)).cpu()
            weights = torch.ones(len(wanted)) if wanted.weights is None else wanted.weights
            columns = (losses * weights, weights, torch.ones(len(wanted)))
            documents = [document_sums(one, wanted, len(sources)).numpy() for one in columns]
            sums += held.sources.sums(sources, *documents)
    return torch.from_numpy(sums).to(device)


def loss_metrics(sums: torch.Tensor, names: tuple[str, ...], prefix: str) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and `{prefix}_tokens`, from the sums of all ranks together."""
    total, weight, count = (one.item() for one in sums.sum(0))
    mean = {f"{prefix}_loss": total / weight if weight else float("nan")}
    return {**mean, **source_metrics(sums[:, :2].tolist(), names, f"{prefix}_loss"), f"{prefix}_tokens": count}


def source_metrics(sums: list[list[float]], names: tuple[str, ...], prefix: str) -> dict[str, float]:
    """`{prefix}_{source}`, the mean loss of each source, from (S, 2) sums of losses and tokens, or of weighted losses
    and weights.

    A source without a trained token has no loss, and is left out.
    """
    pairs = zip(names, sums, strict=True)
    return {f"{prefix}_{name}": loss / tokens for name, (loss, tokens) in pairs if tokens}
