"""The loader: packed shards → batches, with the same rows in every step for any number of ranks.

`rows_per_step` is global. Step s holds positions s·B .. s·B + B - 1 of one canonical order (`Steps`); they are divided
among the ranks, and each rank makes its batches of its share. The state counts returned rows, so a run can resume
exactly where it stopped with another number of ranks or rows per step.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..schemas.errors import ConfigError, choice
from .ahead import ShardsAhead, made_ahead
from .batch import FixedShape, flatten, pinned, unpack, untrained
from .dataset_files import CACHE_BYTES
from .mapped_shard import Row
from .order import Order
from .packed_rows import PackedRows
from .place import detect_rank, divisible
from .steps import Steps, Tail, read_state

_LOG = logging.getLogger(__name__)
_COLUMNS = ("input_ids", "labels", "position_ids", "seq_lengths")
"""Of a PackedDataset."""


@dataclass(frozen=True, slots=True)
class StepDocument:
    """A document piece in a step."""

    rank: int
    row: int
    """Number of the packed row in its split."""
    doc_id: int
    id: str
    source: str
    file: str
    line: int
    tokens: int
    """Without padding, if the dataset says how much there is."""


class PackedLoader:
    """Iterates over one rank's batches of a packed dataset.

    Args:
        data: folder or URL that `packtrain run` wrote.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which. Devices
            that share a sequence take the same batches: they have one rank, and each takes its part by `cp_part`.
        seed: seed of the order.
        epochs: number of epochs, without a gap between them; the tail comes after the last.
        tail: see `Tail`. The number of steps is the same on every rank.
        order: see `Order`. Use `blocks` for remote shards that do not fit into the cache. Epoch 0 is in stored order
            if packing shuffled the rows.
        balance: group so many rows of similar cost, within blocks of eight groups, and deal each step's rows to the
            ranks by cost. `auto` makes groups of 64 if that saves time; `balance_note` says what was chosen. With one
            row a rank on more than 64 ranks, give their number. None keeps the order.
        prefetch: number of steps that a thread makes ahead. With 0 they are made when they are asked for, and nothing
            warns if that takes long.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        static_shapes: give all batches the same shape, for compiled steps and CUDA graphs: rows are padded to the
            dataset's `max_length`, and `cu_seq_lens` to the most documents of a row.
        unpacked: one document per row, padded, with an attention mask: for models that cannot separate packed
            documents. It loses what packing saves.
        seq_idx: also return the number of each token's document.
        accumulate: divide a rank's share of a step into this many batches, for gradient accumulation; `rows_per_step`
            must be a multiple of the number of ranks times this. The state advances with the last batch of a step;
            `len` counts all batches.
        cache, cache_bytes, storage_options: for remote shards; see `DatasetFiles`.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks (the message names numbers that can), or another
            argument is invalid.
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(
        self,
        data: str | Path,
        *,
        rows_per_step: int,
        split: str = "train",
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        epochs: int = 1,
        tail: str = "drop",
        order: str = "full",
        balance: int | str | None = "auto",
        prefetch: int = 2,
        pin_memory: bool = False,
        static_shapes: bool = False,
        unpacked: bool = False,
        seq_idx: bool = False,
        accumulate: int = 1,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.place = detect_rank(rank, world_size)
        _LOG.info("rank %d of %d, from %s", self.place.rank, self.place.world_size, self.place.origin)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size, accumulate)
        group = 1 if balance in ("auto", None) else balance
        if not isinstance(group, int):
            raise ConfigError(f"balance={balance!r}: give the rows of a group, 'auto' or None")
        for name, value, least in (("epochs", epochs, 1), ("prefetch", prefetch, 0), ("balance", group, 1)):
            if value < least:
                raise ConfigError(f"{name}={value}: must be at least {least}")
        if unpacked and static_shapes:
            raise ConfigError(
                "static_shapes and unpacked exclude each other: padded rows differ in length; leave out one of the two"
            )
        tails, orders = choice("tail", tail, Tail), choice("order", order, Order)
        self.corpus = PackedRows(data, split, cache=cache, cache_bytes=cache_bytes, storage_options=storage_options)
        if not len(self.corpus):
            raise ConfigError(f"{data}: the split {split!r} has no rows; name another split")
        self.steps = Steps(
            self.corpus, seed=seed, order=orders, epochs=epochs, balance=balance,
            rows_per_step=rows_per_step, ranks=self.place.world_size, tail=tails,
        )  # fmt: skip
        """The order, cut into steps and divided among the ranks."""
        self.accumulate, self.prefetch = accumulate, prefetch
        self.pin_memory, self.unpacked, self.seq_idx = pin_memory, unpacked, seq_idx
        self._pad_id = self.corpus.manifest.pad_id
        self.shape = FixedShape(self.corpus.max_length, self.corpus.max_docs, self._pad_id) if static_shapes else None
        """The size to which rows are padded; None without `static_shapes`."""
        self._rows, self._ended = 0, False

    @property
    def balance_note(self) -> str:
        """Whether rows are grouped by cost, and why."""
        return self.steps.note

    @property
    def total_rows(self) -> int:
        """Number of rows of all epochs, over all ranks."""
        return self.steps.total

    def __len__(self) -> int:
        """Number of batches left; the same on every rank."""
        return self.steps.left(self._rows) * self.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned."""
        first, width = self._rows, self.rows_per_step
        positions = range(first, first + self.steps.left(first) * width, width)
        if not positions and self._ended:
            _LOG.warning("this loader has been read to its end; make one with more epochs")
        shards = None if self.corpus.files.is_local else ShardsAhead(self.steps)
        made = made_ahead(self._batches, positions, self.prefetch, self._whereabouts)
        try:
            for position, batches in zip(positions, made, strict=True):
                if shards is not None:
                    shards.move(position)
                for number, batch in enumerate(batches, 1):
                    if number == self.accumulate:
                        self._rows = min(position + width, self.total_rows)
                    yield batch
            self._ended = True
        finally:
            if shards is not None:
                shards.close()

    def state_dict(self) -> dict[str, Any]:
        """The loader's position: equal on all ranks, under a kilobyte."""
        return {**self.steps.beginning, "rows": self._rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, on any number of ranks and rows per step.

        Raises:
            ConfigError: the state belongs to another dataset, order or version, or is damaged.
        """
        rows = read_state(state, self.steps.beginning, "PackedLoader", ["rows"])["rows"]
        if rows > self.total_rows:
            raise ConfigError(
                f"the state is after {rows:,} rows, but the order has {self.total_rows:,}; give as many epochs as "
                "before, or resume from another checkpoint"
            )
        self._rows = rows

    def explain(self, step: int) -> list[StepDocument]:
        """The documents of a step, with their ranks. Steps are counted from the beginning of the order.

        Raises:
            IndexError: the order has fewer steps.
        """
        if not 0 <= step < self.steps.left(0):
            raise IndexError(f"there is no step {step}; the order has {self.steps.left(0):,}")
        found = self.steps.at(step * self.rows_per_step)
        hands = [(rank, index) for rank, hand in enumerate(found.hands) for index in found.rows[hand].tolist()]
        rows = {index: self.corpus.row(index) for _, index in hands}
        names = self.corpus.names([doc_id for row in rows.values() for doc_id in row.doc_ids.tolist()])
        return [
            StepDocument(rank, index, doc_id, *names[doc_id], tokens)
            for rank, index in hands
            for doc_id, tokens in zip(rows[index].doc_ids.tolist(), rows[index].own_lengths.tolist(), strict=True)
        ]

    def _batches(self, position: int) -> list[dict[str, Any]]:
        """This rank's batches of the step that begins at a position."""
        step = self.steps.at(position)
        hand = step.hands[self.place.rank]
        rows = [self.corpus.row(index) for index in step.rows[hand].tolist()]
        if step.real < self.rows_per_step and self.steps.tail is Tail.PAD:
            rows = [row if index < step.real else untrained(row) for index, row in zip(hand, rows, strict=True)]
        share = len(rows) // self.accumulate
        return [self._batch(rows[begin : begin + share]) for begin in range(0, len(rows), share)]

    def _batch(self, rows: list[Row]) -> dict[str, Any]:
        batch = unpack(rows, self._pad_id) if self.unpacked else flatten(rows, seq_idx=self.seq_idx, shape=self.shape)
        return pinned(batch) if self.pin_memory else batch

    def _whereabouts(self, position: int) -> str:
        """What the batches of a step wait for."""
        rows = self.steps.rows(position, position + self.rows_per_step)
        urls = sorted({self.corpus.url_of(self.corpus.shard_of(row)) for row in rows.tolist()})
        more = f" and {len(urls) - 3:,} more" if len(urls) > 3 else ""
        return (
            f"rank {self.place.rank} of {self.place.world_size} waits for step {position // self.rows_per_step:,}, "
            f"whose rows are in {', '.join(urls[:3])}{more}"
        )


class PackedDataset(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]  # torch is not followed
    """`PackedDataset(folder)[i]` is packed row i, for any DataLoader or trainer. Pickled as its location, so every
    loader worker maps the shards itself.

    Args:
        where: folder or URL that `packtrain run` wrote.
        split: `train` or `holdout`.
        remote: `cache`, `cache_bytes`, `storage_options`: see `DatasetFiles`.

    Raises:
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(self, where: str | Path, split: str = "train", **remote: Any) -> None:
        self.rows = PackedRows(where, split, **remote)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `labels`, `position_ids`, int64 (T,), and `seq_lengths`, int64 (D,); for data with weights also
        `loss_weights`, float32 (T,).
        """
        row = self.rows.row(index if index >= 0 else index + len(self))
        found = {name: torch.from_numpy(getattr(row, name).astype(np.int64)) for name in _COLUMNS}
        if row.loss_weights is not None:
            found["loss_weights"] = torch.from_numpy(row.loss_weights.copy())
        return found


def collate(examples: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """A `collate_fn` that turns rows of a PackedDataset into one flattened batch; see `batch.flatten`."""
    return flatten(
        [
            Row(
                *(example[name].numpy().astype(np.int32) for name in _COLUMNS),
                loss_weights=example["loss_weights"].numpy() if "loss_weights" in example else None,
            )
            for example in examples
        ]
    )
