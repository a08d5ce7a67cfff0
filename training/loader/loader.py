"""The loader: packed shards → batches, with the same rows in every step for any number of ranks and workers.

`rows_per_step` is global. Step s holds positions s·B .. s·B + B - 1 of one canonical order (`GlobalOrder`);
they are divided among the ranks, and each rank makes one batch of its share. The state counts returned rows, so a run
can resume exactly where it stopped with another number of ranks, workers or rows per step.
"""

import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from ...schemas.config.hints import choice
from ...schemas.errors import ConfigError
from ...schemas.flops import SEVEN_BILLION, ModelShape
from ...schemas.rows import IGNORE_INDEX
from ...schemas.units import plural
from ..order.balance import Balance
from ..order.mixture import MixBy, Source, Until
from ..order.options import divisible
from ..order.permutation import Order
from ..order.schedule import Schedule
from ..order.state import LoaderState
from ..order.steps import Step, Steps, Tail
from ..shards.arrow_shard import RowSpan
from ..shards.dataset_rows import held_room
from ..shards.shard_files import CACHE_BYTES, LocalShardFiles, Verify
from .buffers import Buffers
from .collate import Collator, FixedShape, pinned, unpack, warn_of_padding
from .context_parallel import ContextPart, context_places
from .loss_weights import hands_out
from .prefetch import ShardsAhead
from .step_documents import StepDocument, step_documents
from .threads import Outcome, Threads
from .watchdog import Watchdog, whereabouts

_LOG = logging.getLogger(__name__)
_TASK_ROWS, _COPY_TOKENS = 32, 2**17
"""Most rows of a thread's task, and of one copy; and most tokens of one copy, whose batches take 3 MiB: more would not
fit into the processor's cache."""
_Made = tuple[Step | None, dict[str, Any]]
"""A batch, and the step that it completes; None if it does not complete one."""


class PackedLoader:
    """Iterates over one rank's batches of a packed dataset, or of a mixture of several.

    Args:
        data: folder or URL (of any kind that fsspec knows) that `packtrain run` wrote; or a list of `Source`.
        rows_per_step: rows of one step, over all ranks; a multiple of the number of ranks.
        split: `train` or `holdout`; each `Source` has its own.
        rank, world_size: both or neither; else from torch.distributed, torchrun or Slurm. `place` says which.
        cp_rank, cp_size, cp_layout: context parallelism: `cp_size` devices share each batch, and each gets its part of
            the tokens (`ContextPart`). Then `rank` and `world_size` count groups; if they are found, neighbouring
            ranks are a group. The layout is that of the data's `pack.parallel` by default.
        seed: seed of the order.
        epochs: number of epochs, without a gap between them; the tail comes after the last.
        tail: see `Tail`. The number of steps is the same on every rank.
        order: see `Order`. Use `blocks` for remote shards that do not fit into the cache.
        first_epoch_sequential: read epoch 0 in stored order; None does so if packing shuffled the rows.
        balance: group rows of similar cost (`Balance`), and assign each step's rows to the ranks by cost.
            `auto` chooses blocks, or none if ranks are balanced anyway (see `schedule.choice`); None keeps the order.
        model: shape of the model, for the costs.
        mix_by, until: for a mixture with weights: what the weights are shares of, and where the mixture ends.
        num_workers: number of threads that make batches ahead; threads are enough, because copying releases the
            interpreter lock. With 0, batches are made on demand, in the caller's thread and without a watchdog:
            faster when nothing else computes, and no slower during training while shards are in the page cache.
        prefetch: minimum number of batches ahead per worker. Small batches are made several at a time and share memory.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        static_shapes: give all batches the same shape, for compiled steps and CUDA graphs: rows are padded to the
            dataset's `max_length`, and `cu_seq_lens` to the most documents of a row, or to this number if given.
        unpacked: one document per row, padded, with an attention mask: for models that cannot separate packed
            documents. It loses what packing saves; the share of padding is logged.
        seq_idx: also return the number of each token's document.
        loss_weights: for data with weights: True, they are used; False leaves them out of batches; None hands them out
            with a warning, because `model(**batch)` ignores them. In a mixture, labels of other data weigh 1.
        pad_id: input id of padding.
        accumulate: divide a rank's share of a step into this many batches, for gradient accumulation; `rows_per_step`
            must be a multiple of the number of ranks times this. The state advances with the last batch of a step;
            `len` counts all batches.
        cache, cache_bytes, storage_options: for remote shards; see `shard_files.open_shard_files`.
        verify: `first` compares each local file with its hash in the manifest when this process first opens it.
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
        cp_rank: int | None = None,
        cp_size: int = 1,
        cp_layout: str | None = None,
        seed: int = 0,
        epochs: int = 1,
        tail: str = "drop",
        order: str = "full",
        first_epoch_sequential: bool | None = None,
        balance: Balance | str | None = "auto",
        model: ModelShape = SEVEN_BILLION,
        mix_by: str = "tokens",
        until: str = "first",
        num_workers: int = 1,
        prefetch: int = 2,
        pin_memory: bool = False,
        static_shapes: bool | int = False,
        unpacked: bool = False,
        seq_idx: bool = False,
        loss_weights: bool | None = None,
        pad_id: int = 0,
        accumulate: int = 1,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
        verify: str = Verify.NEVER,
        watchdog: Watchdog = Watchdog(),  # noqa: B008  # frozen
    ) -> None:
        self.place, group = context_places(rank, world_size, cp_rank, cp_size)
        _LOG.info("rank %d of %d, from %s", self.place.rank, self.place.world_size, self.place.origin)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size, accumulate)
        self.accumulate = accumulate
        self.num_workers, self.prefetch, self.pin_memory = num_workers, prefetch, pin_memory
        self.unpacked, self.pad_id, self.watchdog = unpacked, pad_id, watchdog
        self._cache_bytes = cache_bytes
        for name, value, least in (("epochs", epochs, 1), ("num_workers", num_workers, 0), ("prefetch", prefetch, 1)):
            if value < least:
                raise ConfigError(f"{name}={value}: must be at least {least}")
        remote = {"cache": cache, "cache_bytes": cache_bytes, "storage_options": storage_options, "verify": verify}
        self.schedule = Schedule.of(
            [Source(data, split=split)] if isinstance(data, str | Path) else data,
            epochs=epochs,
            seed=seed,
            order=choice("order", order, Order),
            first_sequential=first_epoch_sequential,
            balance=balance,
            model=model,
            mix_by=choice("mix_by", mix_by, MixBy),
            until=choice("until", until, Until),
            remote=remote,
        )
        self.tail = choice("tail", tail, Tail)
        self.corpus = self.schedule.corpus
        if self.tail is Tail.DROP and self.total_rows < rows_per_step:
            raise ConfigError(
                f"rows_per_step={rows_per_step:,}, but the data has only {plural(self.total_rows, 'row')} in all: not "
                "one step would be full; take fewer rows a step, or tail='pad' or 'repeat'"
            )
        self._dealt = balance is not None
        self._epochs = epochs
        self._ended = False
        self._rows = self._tokens = 0  # returned by all ranks together
        context = ContextPart.of(group, cp_layout, [part.packing for part in self.corpus.parts])
        # Torch's allocator reuses page-locked memory once copies from it are done; it knows them by their storage.
        self.collator = Collator(
            seq_idx,
            weights=hands_out(any(part.manifest.weighted for part in self.corpus.parts), loss_weights),
            unpadded=any(part.packing.get("parallel") for part in self.corpus.parts),
            shape=FixedShape.of(self.corpus, static_shapes, unpacked, pad_id),
            context=context,
            take=_pinned if pin_memory else Buffers().tensor,
        )
        if unpacked:
            if context is not None:
                raise ConfigError(
                    "unpacked: one document per row cannot be divided with cp_size; leave out one of them"
                )
            warn_of_padding(self.corpus, rows_per_step // self.place.world_size)

    def __repr__(self) -> str:
        where = ", ".join(str(part.where) for part in self.corpus.parts)
        return (
            f"PackedLoader({where}; {plural(self.rows_per_step, 'row')} a step, "
            f"{plural(self.steps.left(self._rows), 'step')} left, rank {self.place.rank} of {self.place.world_size})"
        )

    @property
    def total_rows(self) -> int:
        """Number of rows of all epochs, over all ranks."""
        return self.schedule.total

    @property
    def steps(self) -> Steps:
        """The order, cut into steps and divided among the ranks."""
        order, ranks = self.schedule.global_order, self.place.world_size
        return Steps(order, self.rows_per_step, ranks, self.total_rows, self.tail, self._dealt)

    def __len__(self) -> int:
        """Number of batches left; the same on every rank."""
        return self.steps.left(self._rows) * self.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned."""
        steps, first = self.steps, self._rows
        count, width = steps.left(first), self.rows_per_step
        if not count and self._ended:
            _LOG.warning("this loader has been read to its end (epochs=%d); make one with more epochs", self._epochs)
        ahead = self._shards_ahead()
        try:
            made = self._in_turn(steps, first, count) if not self.num_workers else self._early(steps, first, count)
            for number, (step, batch) in enumerate(made):
                if ahead is not None:
                    ahead.move(first + number // self.accumulate * width)
                if step is not None:
                    self._rows += step.real
                    self._tokens += step.tokens
                yield batch
            self._ended = True
        finally:
            if ahead is not None:
                ahead.close()

    def __getitem__(self, index: Any) -> Any:
        """Batches cannot be indexed.

        Raises:
            ConfigError: always; torch's DataLoader indexes whatever it takes for a map-style dataset.
        """
        raise ConfigError(
            "a PackedLoader makes batches itself, in order: iterate over it. For torch's DataLoader take "
            "DataLoader(PackedIterable(loader), batch_size=None), or DataLoader(PackedDataset(folder), "
            "collate_fn=collate)"
        )

    def state_dict(self) -> dict[str, Any]:
        """The loader's position: equal on all ranks, under a kilobyte."""
        return replace(self.schedule.start, rows=self._rows, tokens=self._tokens).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, on any number of ranks, workers and rows per step.

        Automatic choices (`balance="auto"`, `first_epoch_sequential=None`) are taken from the state.

        Raises:
            ConfigError: the state belongs to another dataset, order or version, or is damaged.
        """
        found = LoaderState.from_dict(state)
        schedule = self.schedule.adopt(found)
        schedule.start.refuse_other(found)
        schedule.refuse_beyond(found)
        self.schedule = schedule
        self._rows, self._tokens = found.rows, found.tokens

    def batch(self, position: int) -> dict[str, Any]:
        """Return this rank's rows of the step that begins at a position of the order, as one batch.

        Does not change the state.
        """
        return next(self._make([self.steps.at(position)], 1))[1]

    def explain(self, step: int) -> list[StepDocument]:
        """Return the documents of a step, with their ranks. Steps are counted from the beginning of the order.

        Raises:
            IndexError: the order has fewer steps.
        """
        steps, position = self.steps, step * self.rows_per_step
        if not 0 <= step < steps.left(0):
            raise IndexError(f"there is no step {step}; the order has {steps.left(0):,}")
        return step_documents(self.corpus, steps.at(position))

    def _tasks(self, first: int, count: int) -> Iterator[range]:
        """Yield the positions of the next steps, in groups."""
        width, size = self.rows_per_step, 1  # the first is one step, so that the first batch comes soon
        end = first + count * width
        while first < end:
            yield range(first, min(first + size * width, end), width)
            first, size = first + size * width, self._task_steps

    def _in_turn(self, steps: Steps, first: int, count: int) -> Iterator[_Made]:
        for task in self._tasks(first, count):
            yield from self._made(steps, task)

    def _early(self, steps: Steps, first: int, count: int) -> Iterator[_Made]:
        """Yield batches in order; threads make them ahead."""
        tasks = self._tasks(first, count)
        ahead = max(2 * self.num_workers, -(-self.num_workers * self.prefetch // self._task_steps))
        threads = Threads(partial(self._made, steps), self.num_workers, "packtrain-loader")
        waiting: deque[tuple[int, SimpleQueue[Outcome[_Made]]]] = deque()
        ending = sys.is_finalizing  # local names, because module names are gone if the interpreter ends during a loop
        try:
            while True:
                for task in islice(tasks, ahead - len(waiting)):
                    waiting.append((task.start, threads.submit(task)))
                if not waiting:
                    break
                position, queue = waiting.popleft()
                made, error = self.watchdog.wait(queue, partial(whereabouts, steps, self.place, position))
                yield from made
                del made  # its memory is used again
                if error is not None:
                    raise error
        finally:
            # do not wait for the threads, because a hanging store would hide the error
            if not ending():
                threads.close()

    def _made(self, steps: Steps, task: range) -> Iterator[_Made]:
        return self._make(steps.several(task.start, len(task)), self.accumulate)

    def _make(self, planned: list[Step], parts: int) -> Iterator[_Made]:
        """Yield this rank's share of several steps, each as `parts` batches. Only the last step may be incomplete."""
        rows: list[int] = []
        for step in planned:
            numbers, mine = step.rows.tolist(), step.rank_rows[self.place.rank]
            rows += [numbers[index] for index in mine]
        fill = sum(index >= step.real for index in mine) if self.tail is Tail.PAD else 0
        share = len(mine) // parts
        size = share * self._together(share)
        done, trained = 0, len(rows) - fill
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            made: Iterable[dict[str, Any]]
            try:
                made = self._batches(some, share, trained - begin)
            except Exception:
                if size == share or not self._local():
                    raise
                # The error comes again at its own batch, unless memory for all of them at once was the reason.
                _LOG.info("%d rows cannot be read at once; each batch is made alone", len(some), exc_info=True)
                made = (
                    batch
                    for number in range(0, len(some), share)
                    for batch in self._batches(some[number : number + share], share, trained - begin - number)
                )
            for batch in made:
                done += 1
                yield planned[done // parts - 1] if done % parts == 0 else None, batch

    def _batches(self, rows: list[int], share: int, trained: int) -> list[dict[str, Any]]:
        """Return batches of `share` rows each. Rows from number `trained` on only fill up a step."""
        whole, fill = rows[: max(trained, 0)], rows[max(trained, 0) :]
        # A fixed shape pads every row separately, so rows must not be joined.
        spans: list[RowSpan] = (
            self.corpus.row_spans(whole) if self.collator.shape is None else list(map(self.corpus.row, whole))
        )
        for row in map(self.corpus.row, fill):
            spans.append(replace(row, labels=np.full_like(row.labels, IGNORE_INDEX), loss_weights=None))
        if self.unpacked:
            batches = [unpack(spans, self.pad_id, weights=self.collator.weights)]
        else:
            batches = self.collator.batches(spans, share if len(rows) > share else 0)
        return list(map(pinned, batches)) if self.pin_memory else batches

    def _together(self, share: int) -> int:
        """Number of batches of `share` rows that are copied at once, into the same arrays.

        A row of a remote shard may have to be waited for, so only local ones are read before they are asked for.
        """
        alone = self.unpacked or self.pin_memory or not (self.num_workers or self._local())
        return 1 if alone else max(1, min(_TASK_ROWS, _COPY_TOKENS // self.corpus.max_length) // share)

    @property
    def _task_steps(self) -> int:
        """Number of steps that are planned at once, because planning one takes as long as copying a row; and that a
        thread makes, because handing over a task takes as long as a few rows.
        """
        return max(1, _TASK_ROWS * self.place.world_size // self.rows_per_step)

    def _local(self) -> bool:
        return all(isinstance(part.files, LocalShardFiles) for part in self.corpus.parts)

    def _shards_ahead(self) -> ShardsAhead | None:
        if self._local():
            return None
        ahead = ShardsAhead(
            self.schedule.global_order, self.total_rows, 4 * self.rows_per_step, held_room(self._cache_bytes)
        )
        ahead.move(self._rows)
        return ahead


def _pinned(size: int) -> torch.Tensor:
    return torch.empty((1, size), dtype=torch.int64, pin_memory=True)
