"""The loss on held-out packed rows: the mean over all their trained tokens, and over those of each source; of tokens
with loss weights, the weighted mean, as in training.

All ranks make the same number of batches, because forward passes of a sharded model are collective; rows that fill up
the last ones have no trained tokens, and so do not count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ..batch import flatten, untrained
from ..packed_rows import MAKE_HOLDOUT, PackedRows
from .loss import Targets, targets, token_losses

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
    def sources(self) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
        """The names of the sources, the ids of all documents in the rows, ascending, and the source of each."""
        ids = np.unique(np.concatenate([self.rows.row(index).doc_ids for index in range(len(self))]))
        names = self.rows.names(ids.tolist())
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(names[one][1], len(numbers)) for one in ids.tolist()]
        return tuple(numbers), ids, np.array(codes, np.int64)

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, and (D,) the number of the source of each document (piece) in them."""
        _, ids, numbers = self.sources
        width = self.rows_per_device * world_size
        for begin in range(0, len(self), width):
            first = begin + rank * self.rows_per_device
            indices = range(first, first + self.rows_per_device)
            # Rows that fill up the last batch are not trained.
            rows = [self.rows.row(one) if one < len(self) else untrained(self.rows.row(0)) for one in indices]
            documents = np.concatenate([row.doc_ids for row in rows])
            yield flatten(rows), numbers[np.searchsorted(ids, documents)]


def measure(
    held: HeldOut, logits: Logits, device: torch.device | str, rank: int = 0, world_size: int = 1
) -> torch.Tensor:
    """float64 (S, 3) on `device`: for each source, the sum of its tokens' losses on this rank, each times its weight;
    the sum of their weights; and their number.
    """
    sums = torch.zeros(len(held.sources[0]), 3, dtype=torch.float64)
    with torch.no_grad():
        for batch, sources in held.batches(rank, world_size):
            wanted = targets(batch)
            losses = token_losses(logits(batch, wanted), wanted.tokens.to(device)).cpu()
            ones = torch.ones(len(losses))
            weights = ones if wanted.weights is None else wanted.weights
            columns = [wanted.document_sums(one, batch) for one in (losses * weights, weights, ones)]
            sums.index_add_(0, torch.from_numpy(sources), torch.stack(columns, dim=1))
    return sums.to(device)


def loss_metrics(sums: torch.Tensor, names: tuple[str, ...], prefix: str) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and `{prefix}_tokens`, from the sums of all ranks together.

    A source without a trained token has no loss, and is left out.
    """
    total, weight, count = sums.sum(0).tolist()
    each = zip(names, sums.tolist(), strict=True)
    by_source = {f"{prefix}_loss_{name}": loss / weights for name, (loss, weights, _) in each if weights}
    return {f"{prefix}_loss": total / weight if weight else float("nan"), **by_source, f"{prefix}_tokens": count}
