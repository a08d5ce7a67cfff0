"""Packed rows as a map-style dataset, for use with any DataLoader or trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..shards.arrow_shard import RowSpan
from ..shards.dataset_rows import PackedRows
from ..shards.shard_files import CACHE_BYTES, Verify
from .collate import flatten
from .loss_weights import hands_out


class PackedDataset(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]  # torch is not followed
    """`PackedDataset(folder)[i]` is packed row i. Pickled as its location, so every loader worker maps the shards
    itself.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: `train` or `holdout`.
        loss_weights, as in `PackedLoader`; cache, cache_bytes, storage_options, verify: see
            `shard_files.open_shard_files`.

    Raises:
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(
        self,
        where: str | Path,
        split: str = "train",
        *,
        loss_weights: bool | None = None,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
        verify: str = Verify.NEVER,
    ) -> None:
        self.rows = PackedRows(
            where, split, cache=cache, cache_bytes=cache_bytes, storage_options=storage_options, verify=verify
        )
        self.weights = hands_out(self.rows.manifest.weighted, loss_weights)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `labels`, `position_ids`, int64 (T,), and `seq_lengths`, int64 (D,); for data with
        weights also `loss_weights`, float32 (T,).
        """
        row = self.rows.row(index if index >= 0 else index + len(self))
        names = ("input_ids", "labels", "position_ids", "seq_lengths")
        found = {name: torch.from_numpy(getattr(row, name).astype(np.int64)) for name in names}
        if self.weights and row.loss_weights is not None:
            found["loss_weights"] = torch.from_numpy(row.loss_weights.copy())
        return found


def collate(examples: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """A `collate_fn` that turns rows of a PackedDataset into one flattened batch; see `collate.flatten`."""
    return flatten(
        [
            RowSpan(
                input_ids=example["input_ids"].numpy(),
                labels=example["labels"].numpy(),
                position_ids=example["position_ids"].numpy(),
                seq_lengths=example["seq_lengths"].numpy().astype(np.int32),
                loss_weights=example["loss_weights"].numpy() if "loss_weights" in example else None,
            )
            for example in examples
        ]
    )
