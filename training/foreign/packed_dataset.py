"""A map-style dataset of packed rows, with the keys of a trainer. Legend: T tokens of a row, D pieces of documents."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.dataset.row_batch import Row
from ...schemas.errors import ConfigError, did_you_mean
from ...schemas.rows import IGNORE_INDEX
from ...schemas.tables.columns import WEIGHTS
from ..batch import FixedShape
from ..packed_rows import PackedRows

Item = Callable[[Row, NDArray[np.int32], Row], Any]
"""`item(row, labels, padding)` → what a trainer takes. `labels` are the row's, beside it because a trainer whose
loss does not shift gets each one at the token before it; `padding` fills the row up to the length of all items."""


def torchtune_item(row: Row, labels: NDArray[np.int32], padding: Row) -> dict[str, torch.Tensor]:
    """For `padded_collate_packed` of torchtune 0.6.1: padding is in documents of its own. Its loss shifts labels."""
    lengths = np.concatenate([row.seq_lengths, padding.seq_lengths])  # (D,), of which empty padding documents are 0
    return {
        "tokens": _tensor(row.input_ids, padding.input_ids),
        "labels": _tensor(labels, padding.labels),
        "input_pos": _tensor(row.position_ids, padding.position_ids),
        "seq_lens": _tensor(lengths[lengths > 0]),
    }


def verl_item(row: Row, labels: NDArray[np.int32], padding: Row) -> dict[str, torch.Tensor]:
    """For `SFTTensorCollator` of verl 0.9.1 without padding. Its loss shifts the mask by itself."""
    return {
        # Not filled up: its collator joins rows of any length.
        "input_ids": _tensor(row.input_ids),
        "position_ids": _tensor(row.position_ids),
        "loss_mask": _tensor(labels != IGNORE_INDEX),
    }


def torchtitan_item(row: Row, labels: NDArray[np.int32], padding: Row) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """For the `Trainer` of torchtitan 0.3.0: (inputs, labels), where documents begin at position 0. Its loss does not
    shift, so `labels` are shifted already.
    """
    inputs = {
        "input": _tensor(row.input_ids, padding.input_ids),
        "positions": _tensor(row.position_ids, padding.position_ids),
    }
    return inputs, _tensor(labels, padding.labels)


def automodel_item(row: Row, labels: NDArray[np.int32], padding: Row) -> dict[str, torch.Tensor | list[int]]:
    """For `packed_sequence_thd_collater` and `neat_packed_collater` of NeMo Automodel 0.7.0.

    The mask numbers documents from 1, and has 0 at padding. `seq_lens_padded` counts all padding to the last document.
    Its loss does not shift, so `labels` are shifted already.
    """
    gap = len(padding.input_ids)
    lengths = row.seq_lengths.tolist()
    return {
        "input_ids": _tensor(row.input_ids, padding.input_ids),
        "labels": _tensor(labels, padding.labels),
        "position_ids": _tensor(row.position_ids, padding.position_ids),
        # Of the lengths 3, 2 and 2 tokens of padding: 1 1 1 2 2 0 0.
        "attention_mask": _tensor(np.repeat(np.arange(len(lengths)) + 1, lengths), np.zeros(gap, np.int64)),
        "seq_lens": row.own_lengths.tolist(),
        "seq_lens_padded": [*lengths[:-1], lengths[-1] + gap],
    }


ITEMS: dict[str, tuple[Item, bool]] = {
    "torchtune": (torchtune_item, False),
    "verl": (verl_item, False),
    "torchtitan": (torchtitan_item, True),
    "nemo-automodel": (automodel_item, True),
}
"""Trainer → its item, and whether it wants each label at the token before it, because its loss does not shift them."""


class PackedDataset(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is not followed
    """The rows of a packed dataset, with the keys that a trainer wants, filled up to one length where it stacks them.

    Args:
        data: folder or URL that `packtrain run` wrote.
        trainer: `torchtune`, `verl`, `torchtitan` or `nemo-automodel`.
        split: `train` or `holdout`.
        length: tokens of every item; by default the capacity of its rows.
        shift_labels: whether each label stands at the token before it; by default as the trainer's own loss wants it.
        remote: `cache`, `cache_bytes`, `storage_options`: see `DatasetFiles`.

    Raises:
        ConfigError: the trainer is not known, rows do not fit into `length`, or the dataset has what none of these
            trainers knows: loss weights, preference pairs, documents that share tokens.
        InputError, IntegrityError: see `PackedRows`.
    """

    packed = True
    """torchtune reads this attribute, and takes only datasets that have it as packed."""

    def __init__(
        self,
        data: str | Path,
        trainer: str,
        *,
        split: str = "train",
        length: int | None = None,
        shift_labels: bool | None = None,
        **remote: Any,
    ) -> None:
        if trainer not in ITEMS:
            raise ConfigError(f"trainer={trainer!r}: choose one of {', '.join(ITEMS)}{did_you_mean(trainer, ITEMS)}")
        self._rows = PackedRows(data, split, **remote)
        if WEIGHTS in self._rows.manifest.schema:
            raise ConfigError(
                f"{data} has loss_weights, which {trainer} does not know: every trained token would count the same, "
                "which is another objective; pack without weights, or take packtrain train"
            )
        if self._rows.has_pairs:
            raise ConfigError(
                f"{data} holds preference pairs, which {trainer} does not know: it would train rejected answers as it "
                "trains chosen ones; take packtrain train, or a loop with packtrain.training.preference_loss"
            )
        if self._rows.shares_tokens:
            raise ConfigError(
                f"{data} has rows whose documents share tokens (pack.share), which {trainer} does not know: documents "
                "would lose what they share; pack with pack.share: none, or take packtrain train"
            )
        self._item, shifts = ITEMS[trainer]
        self._shift = shifts if shift_labels is None else shift_labels
        length = self._rows.row_length if length is None else length
        if length < self._rows.row_length:
            raise ConfigError(
                f"length={length:,}: rows have up to {self._rows.row_length:,} tokens; give at least as many"
            )
        # Trainers stack rows: all items have this length, and as many documents as the fullest row.
        self._shape = FixedShape.of(self._rows)._replace(length=length)

    @property
    def lineage(self) -> Mapping[str, str]:
        """Names and values that say which dataset this is, for a log or a model's configuration."""
        return self._rows.lineage

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        """Row `index`. Raises IndexError beyond the last one, and IntegrityError if its file was changed."""
        row = self._rows.row(index)
        # A document's first label is IGNORE_INDEX, so no token predicts one of another document.
        labels = np.append(row.labels[1:], np.int32(IGNORE_INDEX)) if self._shift else row.labels
        return self._item(row, labels, self._shape.padding(row))


def _tensor(*parts: NDArray[Any]) -> torch.Tensor:
    """int64: the parts end to end. int64, because trainers stack items and index with labels."""
    return torch.from_numpy(np.concatenate(parts, dtype=np.int64))
