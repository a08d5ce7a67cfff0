"""The loader: packed shards → batches, the same rows in every step whatever the number of ranks and workers.

`rows_per_step` is global. Step s holds positions s·B .. s·B + B - 1 of one canonical order (`stream.RowStream`);
they are dealt to the ranks, and each rank makes one batch of its share. The state counts rows handed out, so that
resuming on another number of ranks, workers or rows a step goes on exactly where this one stopped.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..schemas.errors import ConfigError
from ..schemas.rows import IGNORE_INDEX
from .batch import flatten, unpack
from .cost import SEVEN_BILLION, ModelShape, deal
from .order import Shuffle
from .ranks import find_place
from .rows import PackedRow, PackedRows, document_names
from .state import LoaderState
from .stream import Balance, RowStream

AUTO_GAIN = 0.02
"""`balance="auto"` groups rows whose costs differ by more than this share of the mean (one standard deviation)."""


class Tail(StrEnum):
    """What happens to the rows after the last full step."""

    DROP = "drop"
    """They are left out."""
    PAD = "pad"
    """A last step is filled with rows in which nothing is trained."""
    REPEAT = "repeat"
    """A last step is filled with the first rows of the order."""


@dataclass(frozen=True, slots=True)
class Step:
    """Which rows a step holds, and who gets them."""

    rows: NDArray[np.int64]
    """(B,)"""
    real: int
    """How many of them count as handed out; the others fill up the last step."""
    tokens: int
    """Of the rows that count."""
    hands: list[list[int]]
    """For each rank, indices into `rows`."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A document piece in a step."""

    rank: int
    row: int
    """Number of the packed row in the split."""
    doc_id: int
    id: str
    source: str
    file: str
    line: int
    tokens: int


class PackedLoader:
    """Iterates over a rank's batches of a packed dataset.

    Args:
        folder: what `packtrain run` wrote.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which.
        seed: of the order.
        epochs: they run on into one another; the tail comes after the last.
        tail: see `Tail`. The number of steps is the same on every rank.
        shuffle: see `order.Shuffle`.
        first_epoch_sequential: epoch 0 as the rows lie, which packing has shuffled.
        balance: rows of like cost near each other (`stream.Balance`); `auto` where it gains something, None never.
        model: shape of the model that costs are counted for.
        workers: threads that make batches ahead. Copies release the interpreter, so threads are enough.
        prefetch: batches ahead, for each worker.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        unpacked: one document a row, padded, with an attention mask: for models that cannot keep packed documents
            apart. It gives away what packing saves.
        seq_idx: also hand out the number of each token's document.
        pad_id: input id of padding, where there is any.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks; says which numbers can.
        InputError, IntegrityError: see `PackedRows`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rows_per_step: int,
        split: str = "train",
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        epochs: int = 1,
        tail: str = "drop",
        shuffle: str = "full",
        first_epoch_sequential: bool = True,
        balance: Balance | str | None = "auto",
        model: ModelShape = SEVEN_BILLION,
        workers: int = 1,
        prefetch: int = 2,
        pin_memory: bool = False,
        unpacked: bool = False,
        seq_idx: bool = False,
        pad_id: int = 0,
    ) -> None:
        self.rows = PackedRows(Path(folder), split)
        self.place = find_place(rank, world_size)
        self.rows_per_step = _divisible(rows_per_step, self.place.world_size)
        self.tail = _choice("tail", tail, Tail)
        self.workers, self.prefetch, self.pin_memory = workers, prefetch, pin_memory
        self.unpacked, self.seq_idx, self.pad_id = unpacked, seq_idx, pad_id
        if not len(self.rows):
            raise ConfigError(f"{folder}: the split {split!r} has no rows; nothing can be loaded")
        if epochs < 1:
            raise ConfigError(f"epochs={epochs}: at least one")
        if self.tail is Tail.DROP and len(self.rows) * epochs < rows_per_step:
            raise ConfigError(
                f"rows_per_step={rows_per_step:,}, but there are only {len(self.rows) * epochs:,} rows in all: not one "
                "step would be full; take fewer rows a step, or tail='pad' or 'repeat'"
            )
        order = _choice("shuffle", shuffle, Shuffle)
        chosen = self._choose_balance(balance, seed, order, first_epoch_sequential, model)
        self.stream = RowStream(self.rows, seed, order, first_epoch_sequential, chosen, model)
        self._state = LoaderState(
            fingerprint=self.rows.fingerprint,
            seed=seed,
            shuffle=order.value,
            first_epoch_sequential=first_epoch_sequential,
            balance_block=chosen.block if chosen else 0,
            balance_group=chosen.group if chosen else 0,
            epochs=epochs,
            rows=0,
            tokens=0,
        )

    @property
    def total_rows(self) -> int:
        """Rows of all epochs, over all ranks."""
        return len(self.rows) * self._state.epochs

    def __len__(self) -> int:
        """Steps that are left: the same on every rank."""
        left = self.total_rows - self._state.rows
        whole, rest = divmod(left, self.rows_per_step)
        return whole + (1 if rest and self.tail is not Tail.DROP else 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rank's batches from where the state stands. The state moves on as batches are returned."""
        steps = len(self)
        first = self._state.rows
        if self.workers < 1:
            for number in range(steps):
                step, batch = self._make(first + number * self.rows_per_step)
                self._consumed(step)
                yield batch
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="packtrain-loader") as pool:
            ahead: deque[Future[tuple[Step, dict[str, Any]]]] = deque()
            submitted = 0
            try:
                for _ in range(steps):
                    while submitted < steps and len(ahead) < max(1, self.workers * self.prefetch):
                        ahead.append(pool.submit(self._make, first + submitted * self.rows_per_step))
                        submitted += 1
                    step, batch = ahead.popleft().result()
                    self._consumed(step)
                    yield batch
            finally:
                for future in ahead:
                    future.cancel()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: equal on all ranks, under a kilobyte."""
        return self._state.to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a loader stood, on any number of ranks, workers and rows a step.

        Raises:
            ValueError: the state is of another dataset, another order, or another version.
        """
        found = LoaderState.from_dict(state)
        self._state.refuse_other(found)
        self._state = replace(self._state, rows=found.rows, tokens=found.tokens)

    def explain(self, step: int) -> list[Placed]:
        """Which documents stand in a step, counted from the beginning of the order, on which rank.

        Raises:
            IndexError: the order has fewer steps.
        """
        position = step * self.rows_per_step
        if not 0 <= position < self.total_rows:
            raise IndexError(f"there is no step {step}; the order has {self.total_rows:,} rows")
        dealt = self.step_at(position)
        found = []
        for rank, hand in enumerate(dealt.hands):
            for index in hand:
                row = int(dealt.rows[index])
                for doc_id, tokens in zip(self.rows.row(row).doc_ids.tolist(), self.rows.seq_lengths(row), strict=True):
                    found.append((rank, row, doc_id, int(tokens)))
        names = document_names(self.rows.folder, [doc_id for _, _, doc_id, _ in found])
        return [Placed(rank, row, doc_id, *names[doc_id], tokens) for rank, row, doc_id, tokens in found]

    def step_at(self, position: int) -> Step:
        """The step whose first row stands at a position of the order."""
        real = min(self.rows_per_step, self.total_rows - position)
        rows = self.stream.at(position, position + real)
        tokens = sum(self.rows.tokens(row) for row in rows.tolist())
        missing = self.rows_per_step - real
        if missing:
            filler = np.arange(missing) % self.total_rows
            rows = np.concatenate([rows, np.concatenate([self.stream.at(int(p), int(p) + 1) for p in filler])])
        share = self.rows_per_step // self.place.world_size
        if self.stream.balance is not None and share > 1 and not missing:
            hands = deal(self.stream.costs(rows), self.place.world_size)
        else:
            hands = [list(range(r * share, (r + 1) * share)) for r in range(self.place.world_size)]
        return Step(rows, real, tokens, hands)

    def _make(self, position: int) -> tuple[Step, dict[str, Any]]:
        step = self.step_at(position)
        rows = []
        for index in step.hands[self.place.rank]:
            row = self.rows.row(int(step.rows[index]))
            if index >= step.real and self.tail is Tail.PAD:
                row = replace(row, labels=np.full_like(row.labels, IGNORE_INDEX))
            rows.append(row)
        batch = self._batch(rows)
        if self.pin_memory:
            batch = {
                name: value.pin_memory() if isinstance(value, torch.Tensor) else value for name, value in batch.items()
            }
        return step, batch

    def _batch(self, rows: list[PackedRow]) -> dict[str, Any]:
        if self.unpacked:
            return unpack(rows, self.pad_id)
        return flatten(rows, seq_idx=self.seq_idx)

    def _consumed(self, step: Step) -> None:
        self._state = replace(self._state, rows=self._state.rows + step.real, tokens=self._state.tokens + step.tokens)

    def _choose_balance(
        self, balance: Balance | str | None, seed: int, order: Shuffle, first_sequential: bool, model: ModelShape
    ) -> Balance | None:
        if balance is None or isinstance(balance, Balance):
            return balance
        if balance != "auto":
            raise ConfigError(f"balance={balance!r}: give a Balance, 'auto' or None")
        plain = RowStream(self.rows, seed, order, first_sequential, None, model)
        # The same rows on every rank, and for any number of ranks: the choice is part of the order.
        costs = plain.costs(plain.at(0, min(1024, len(self.rows))))
        return Balance() if costs.std() > AUTO_GAIN * costs.mean() else None


_Enum = TypeVar("_Enum", bound=StrEnum)


def _choice(name: str, value: str, kind: type[_Enum]) -> _Enum:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(kind)}") from None


def _divisible(rows_per_step: int, world_size: int) -> int:
    if rows_per_step >= 1 and rows_per_step % world_size == 0:
        return rows_per_step
    low = rows_per_step // world_size * world_size
    near = f"{low:,} or {low + world_size:,}" if low > 0 else f"{world_size:,}"
    raise ConfigError(
        f"rows_per_step={rows_per_step:,} cannot be divided among {world_size:,} ranks, which must all do as many; "
        f"take {near}"
    )
