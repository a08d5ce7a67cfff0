"""The loader: packed shards → batches, with the same rows in every step for any number of ranks.

`rows_per_step` is global. Step s holds positions s·B .. s·B + B - 1 of one canonical order (`Steps`); they are divided
among the ranks, and each rank makes its batches of its share. The state counts returned rows, so a run can resume
exactly where it stopped with another number of ranks or rows per step.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch.utils.data import Dataset

from ..schemas.errors import ConfigError, choice
from ..schemas.model_facts import SEVEN_BILLION, ModelShape
from ..schemas.units import plural
from .ahead import ShardsAhead, Watchdog, made_ahead
from .batch import FixedShape, flatten, pinned, unpack, untrained
from .files import CACHE_BYTES
from .order import EpochOrder, Order, Source, mixture_of
from .place import detect_rank, divisible
from .rows import ConcatRows, PackedRows, document_names
from .shard import Row
from .steps import FORMAT, SAMPLE, Balance, State, Steps, Tail, choose_balance

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepDocument:
    """A document piece in a step."""

    rank: int
    dataset: str
    """Folder or URL of the dataset."""
    row: int
    """Number of the packed row in its dataset's split."""
    doc_id: int
    id: str
    source: str
    file: str
    line: int
    tokens: int
    """Without padding, if the dataset says how much there is."""


class PackedLoader:
    """Iterates over one rank's batches of a packed dataset, or of a mixture of several.

    Args:
        data: folder or URL that `packtrain run` wrote; or a list of `Source`.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`; each `Source` has its own.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which. Devices
            that share a sequence take the same batches: they have one rank, and each takes its part by `cp_part`.
        seed: seed of the order.
        epochs: number of epochs, without a gap between them; the tail comes after the last.
        tail: see `Tail`. The number of steps is the same on every rank.
        order: see `Order`. Use `blocks` for remote shards that do not fit into the cache.
        first_epoch_sequential: read epoch 0 in stored order; None does so if packing shuffled the rows.
        balance: group rows of similar cost (`Balance`), and deal each step's rows to the ranks by cost. `auto` groups
            them if that saves time; `balance_note` says what was chosen. None keeps the order.
        model: shape of the model, for the costs.
        prefetch: number of steps that a thread makes ahead. With 0 they are made when they are asked for, without a
            watchdog.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        static_shapes: give all batches the same shape, for compiled steps and CUDA graphs: rows are padded to the
            dataset's `max_length`, and `cu_seq_lens` to the most documents of a row, or to this number if given.
        unpacked: one document per row, padded, with an attention mask: for models that cannot separate packed
            documents. It loses what packing saves.
        seq_idx: also return the number of each token's document.
        loss_weights: return the loss weights of data that has some; in a mixture, labels of other data weigh 1.
            `model(**batch)` ignores them.
        pad_id: input id of padding.
        accumulate: divide a rank's share of a step into this many batches, for gradient accumulation; `rows_per_step`
            must be a multiple of the number of ranks times this. The state advances with the last batch of a step;
            `len` counts all batches.
        cache, cache_bytes, storage_options: for remote shards; see `files.open_files`.
        watchdog: when to warn, and when to give up, if a batch takes long.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks (the message names numbers that can), or another
            argument is invalid.
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(
        self,
        data: str | Path | Sequence[Source],
        *,
        rows_per_step: int,
        split: str = "train",
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        epochs: int = 1,
        tail: str = "drop",
        order: str = "full",
        first_epoch_sequential: bool | None = None,
        balance: Balance | str | None = "auto",
        model: ModelShape = SEVEN_BILLION,
        prefetch: int = 2,
        pin_memory: bool = False,
        static_shapes: bool | int = False,
        unpacked: bool = False,
        seq_idx: bool = False,
        loss_weights: bool = True,
        pad_id: int = 0,
        accumulate: int = 1,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
        watchdog: Watchdog = Watchdog(),  # noqa: B008  # frozen
    ) -> None:
        self.place = detect_rank(rank, world_size)
        _LOG.info("rank %d of %d, from %s", self.place.rank, self.place.world_size, self.place.origin)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size, accumulate)
        for name, value, least in (("epochs", epochs, 1), ("prefetch", prefetch, 0)):
            if value < least:
                raise ConfigError(f"{name}={value}: must be at least {least}")
        if isinstance(balance, str) and balance != "auto":
            raise ConfigError(f"balance={balance!r}: give a Balance, 'auto' or None")
        self.accumulate, self.prefetch, self.watchdog = accumulate, prefetch, watchdog
        self.pin_memory, self.unpacked, self.seq_idx, self.pad_id = pin_memory, unpacked, seq_idx, pad_id
        tails, orders = choice("tail", tail, Tail), choice("order", order, Order)
        sources = [Source(data, split=split)] if isinstance(data, str | Path) else list(data)
        remote = {"cache": cache, "cache_bytes": cache_bytes, "storage_options": storage_options}
        self.corpus = corpus = _open(sources, remote)
        mixture = mixture_of(sources, corpus.parts, epochs)
        shuffled = all(part.packing["shuffle"] for part in corpus.parts)
        in_order = shuffled if first_epoch_sequential is None else first_epoch_sequential
        self.balance_note = f"rows grouped by cost: {balance}" if balance else "rows are not grouped by cost"
        """Whether rows are grouped by cost, and why."""
        names = ["rows"] if mixture is None else [f"rows {number}" for number in range(len(sources))]
        each = [
            EpochOrder(len(part), seed, orders, in_order, name) for part, name in zip(corpus.parts, names, strict=True)
        ]
        layout: dict[str, Any] = {"epochs": sources[0].epochs or epochs, "rows_per_step": rows_per_step, "tail": tails}
        layout |= {"ranks": self.place.world_size, "dealt": balance is not None}
        if isinstance(balance, str):
            # In stored order if that is random, because then the sample is in one shard.
            stored = Order.SEQUENTIAL if shuffled else Order.FULL
            plain = [replace(one, order=stored, first_sequential=False) for one in each]
            sample = Steps(corpus, plain, mixture, None, model, **layout)
            balance, self.balance_note = choose_balance(sample.costs(sample.rows(0, min(SAMPLE, sample.period))))
        self.steps = Steps(corpus, each, mixture, balance, model, **layout)
        """The order, cut into steps and divided among the ranks."""
        if tails is Tail.DROP and self.total_rows < rows_per_step:
            raise ConfigError(
                f"rows_per_step={rows_per_step:,}, but the data has only {plural(self.total_rows, 'row')} in all: not "
                "one step would be full; take fewer rows a step, or tail='pad' or 'repeat'"
            )
        self._state = State(
            fingerprint=corpus.fingerprint,
            mixture="" if mixture is None else ":".join(map(str, mixture.weights)),
            seed=seed,
            order=orders.value,
            first_epoch_sequential=in_order,
            balance=f"{balance.block}/{balance.group}" if balance else "",
            rows=0,
        )
        self._ended = False
        self.shape = FixedShape.of(corpus, static_shapes, pad_id)
        """The size to which rows are padded; None without `static_shapes`."""
        self._weights = loss_weights and corpus.weighted
        self._unpadded = any(part.packing.get("parallel") for part in corpus.parts)
        if unpacked and self.shape is not None:
            raise ConfigError(
                "static_shapes and unpacked exclude each other: padded rows differ in length; leave out one of the two"
            )

    def __repr__(self) -> str:
        where = ", ".join(str(part.where) for part in self.corpus.parts)
        return (
            f"PackedLoader({where}; {plural(self.rows_per_step, 'row')} a step, "
            f"{plural(self.steps.left(self._state.rows), 'step')} left, rank {self.place.rank} of "
            f"{self.place.world_size})"
        )

    @property
    def total_rows(self) -> int:
        """Number of rows of all epochs, over all ranks."""
        return self.steps.total

    def __len__(self) -> int:
        """Number of batches left; the same on every rank."""
        return self.steps.left(self._state.rows) * self.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned."""
        first, width = self._state.rows, self.rows_per_step
        positions = range(first, first + self.steps.left(first) * width, width)
        if not positions and self._ended:
            _LOG.warning("this loader has been read to its end; make one with more epochs")
        shards = None if all(part.is_local for part in self.corpus.parts) else ShardsAhead(self.steps)
        made = made_ahead(self._batches, positions, self.prefetch, self.watchdog, self._whereabouts)
        try:
            for position, batches in zip(positions, made, strict=True):
                if shards is not None:
                    shards.move(position)
                for number, batch in enumerate(batches, 1):
                    if number == self.accumulate:
                        self._state = structs.replace(self._state, rows=min(position + width, self.total_rows))
                    yield batch
            self._ended = True
        finally:
            if shards is not None:
                shards.close()

    def state_dict(self) -> dict[str, Any]:
        """The loader's position: equal on all ranks, under a kilobyte."""
        return {"format": FORMAT, **structs.asdict(self._state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, on any number of ranks and rows per step.

        Raises:
            ConfigError: the state belongs to another dataset, order or version, or is damaged.
        """
        self._state = structs.replace(self._state, rows=self._state.position_in(state, self.total_rows))

    def explain(self, step: int) -> list[StepDocument]:
        """The documents of a step, with their ranks. Steps are counted from the beginning of the order.

        Raises:
            IndexError: the order has fewer steps.
        """
        if not 0 <= step < self.steps.left(0):
            raise IndexError(f"there is no step {step}; the order has {self.steps.left(0):,}")
        found, parts = self.steps.at(step * self.rows_per_step), self.corpus.parts
        hands = [(rank, row) for rank, hand in enumerate(found.hands) for row in found.rows[hand].tolist()]
        placed = [(rank, *self.corpus.locate(row)) for rank, row in hands]
        rows = [parts[part].row(row) for _, part, row in placed]
        ids: list[list[int]] = [[] for _ in parts]
        for (_, part, _), row in zip(placed, rows, strict=True):
            ids[part] += row.doc_ids.tolist()
        names = [document_names(*pair) for pair in zip(parts, ids, strict=True)]
        return [
            StepDocument(rank, str(parts[part].where), number, doc_id, *names[part][doc_id], tokens)
            for (rank, part, number), row in zip(placed, rows, strict=True)
            for doc_id, tokens in zip(row.doc_ids.tolist(), row.own_lengths.tolist(), strict=True)
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
        if self.unpacked:
            batch = unpack(rows, self.pad_id, weights=self._weights)
        else:
            batch = flatten(
                rows, seq_idx=self.seq_idx, weights=self._weights, unpadded=self._unpadded, shape=self.shape
            )
        return pinned(batch) if self.pin_memory else batch

    def _whereabouts(self, position: int) -> str:
        """What the batches of a step wait for."""
        rows = self.steps.rows(position, min(position + self.rows_per_step, self.total_rows))
        urls = sorted({self.corpus.url_of(row) for row in rows.tolist()})
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
        loss_weights: as in `PackedLoader`.
        remote: `cache`, `cache_bytes`, `storage_options`: see `files.open_files`.

    Raises:
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(self, where: str | Path, split: str = "train", *, loss_weights: bool = True, **remote: Any) -> None:
        self.rows = PackedRows(where, split, **remote)
        self.weights = loss_weights and self.rows.manifest.weighted

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `labels`, `position_ids`, int64 (T,), and `seq_lengths`, int64 (D,); for data with weights also
        `loss_weights`, float32 (T,).
        """
        row = self.rows.row(index if index >= 0 else index + len(self))
        names = ("input_ids", "labels", "position_ids", "seq_lengths")
        found = {name: torch.from_numpy(getattr(row, name).astype(np.int64)) for name in names}
        if self.weights and row.loss_weights is not None:
            found["loss_weights"] = torch.from_numpy(row.loss_weights.copy())
        return found


def collate(examples: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """A `collate_fn` that turns rows of a PackedDataset into one flattened batch; see `batch.flatten`."""
    return flatten(
        [
            Row(
                example["input_ids"].numpy(),
                example["labels"].numpy(),
                example["position_ids"].numpy(),
                example["seq_lengths"].numpy().astype(np.int32),
                loss_weights=example["loss_weights"].numpy() if "loss_weights" in example else None,
            )
            for example in examples
        ]
    )


def _open(sources: Sequence[Source], remote: dict[str, Any]) -> ConcatRows:
    """The rows of the sources.

    Raises:
        ConfigError: there is no source, or one has no rows.
        InputError, IntegrityError: see `PackedRows`.
    """
    if not sources:
        raise ConfigError("no source was given; give a folder that packtrain run wrote")
    corpus = ConcatRows([PackedRows(source.path, source.split, **remote) for source in sources])
    for source, part in zip(sources, corpus.parts, strict=True):
        if not len(part):
            raise ConfigError(
                f"{source.path}: the split {source.split!r} has no rows; name another split, or leave the source out"
            )
    return corpus
