"""The loss on held-out packed rows: the mean over all their trained tokens, and over those of each source.

All ranks make the same number of batches, because forward passes of a sharded model are collective; rows that fill up
the last ones have no trained tokens, and so do not count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.rows import IGNORE_INDEX
from ..loader.collate import flatten
from ..shards.arrow_shard import PackedRow
from ..shards.dataset_rows import MAKE_HOLDOUT, PackedRows
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
    def _sources(self) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
        """Names of the sources; document ids, ascending; and the index of each id's name."""
        held = self.rows.documents()
        table = pq.read_table(held.path, columns=["doc_id", "source"]).unify_dictionaries().combine_chunks()
        held.close()
        column = table.column("source").combine_chunks().dictionary_encode()
        ids = table.column("doc_id").to_numpy()
        order = np.argsort(ids, kind="stable")
        return tuple(column.dictionary.to_pylist()), ids[order], column.indices.to_numpy().astype(np.int64)[order]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources."""
        return self._sources[0]

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, and (D,) the number of the source of each document (piece) in them."""
        _, ids, numbers = self._sources
        width = self.rows_per_device * world_size
        for begin in range(0, len(self), width):
            first = begin + rank * self.rows_per_device
            rows = [self._row(index) for index in range(first, first + self.rows_per_device)]
            doc_ids = np.concatenate([row.doc_ids for row in rows])
            yield flatten(rows), numbers[np.searchsorted(ids, doc_ids)]

    def _row(self, index: int) -> PackedRow:
        """A row; for indices beyond the last row, the first row with nothing trained."""
        if index < len(self):
            return self.rows.row(index)
        row = self.rows.row(0)
        return replace(row, labels=np.full_like(row.labels, IGNORE_INDEX))


def measure(
    held: HeldOut, logits: Logits, device: torch.device | str, rank: int = 0, world_size: int = 1
) -> torch.Tensor:
    """float64 (S, 2) on `device`: for each source, the sum of its tokens' losses on this rank, and their number."""
    sums = torch.zeros(len(held.sources), 2, dtype=torch.float64)
    with torch.no_grad():
        for batch, sources in held.batches(rank, world_size):
            wanted = targets(batch)
            losses = token_losses(logits(batch, wanted), wanted.tokens.to(device)).double().cpu()
            source = torch.from_numpy(sources)[wanted.pieces]
            sums[:, 0].index_add_(0, source, losses)
            sums[:, 1].index_add_(0, source, torch.ones_like(losses))
    return sums.to(device)


def loss_metrics(sums: torch.Tensor, names: tuple[str, ...], prefix: str) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and `{prefix}_tokens`, from the sums of all ranks together.

    A source without a trained token has no loss, and is left out.
    """
    total, count = sums[:, 0].sum().item(), sums[:, 1].sum().item()
    metrics = {f"{prefix}_loss": total / count if count else float("nan")}
    for name, (loss, tokens) in zip(names, sums.tolist(), strict=True):
        if tokens:
            metrics[f"{prefix}_loss_{name}"] = loss / tokens
    metrics[f"{prefix}_tokens"] = count
    return metrics
