"""The loader: packed shards → batches, with the same rows in every step for any number of ranks.

`rows_per_step` (B) is global. Step s holds positions s·B .. s·B + B - 1 of one canonical order (`Steps`); they are
divided among the ranks by their cost, and each rank makes batches of its share. With B = 4 and two ranks:

    step                    0                   1
    positions               0  1  2  3          4  5  6  7
    rows (order=full)       7 12  3 30         25  4 19  8
    batch of rank 0         7  3                4 19
    batch of rank 1        12 30               25  8
    state after the step    rows: 4             rows: 8

The state counts returned rows, so a run can resume exactly where it stopped with another number of ranks or rows per
step.
"""

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.dataset.files import CACHE_BYTES
from ..schemas.errors import ConfigError, choice
from ..schemas.escape import escape_line
from .batch import FixedShape, flatten, unpack, untrained
from .branches import require_attention
from .order import Order, Steps, Tail
from .packed_rows import LINEAGE, PackedRows
from .preference.reference import Reference
from .prefetch import ShardsAhead, results_ahead
from .rank_info import detect_rank, divisible

if TYPE_CHECKING:
    from .attention.packed_attention import Applied

_LOG = logging.getLogger(__name__)

MAX_COUNT = 2**62
"""The largest number of rows in a state: sums with it fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class StepDocument:
    """A document piece in a step."""

    rank: int
    row: int
    """Number of the packed row in its split."""
    doc_id: int
    """Number of the document in the document table."""
    id: str
    """Id of its example: `source/file:line`."""
    source: str
    file: str
    line: int
    """In the file, from 1."""
    tokens: int
    """Of the piece, without padding; with it if the dataset does not have lengths without padding."""
    side: int | None
    """0 for the chosen side of a preference pair, 1 for its rejected side; None for other documents."""


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
        tail: `drop` leaves out the rows after the last full step; `pad` fills the last step with untrained rows. The
            number of steps is the same on every rank.
        order: `full` permutes all rows anew in every epoch, but for epoch 0 if packing shuffled them already;
            `sequential` reads them in the order of the shards, for remote shards that do not fit into the cache.
        balance: put this many rows of similar cost next to each other in the order. If each rank takes one row a step,
            give the number of ranks: then they do similar work. Ranks that take several rows do not need it, because
            each step's rows are divided by cost anyway.
        prefetch: number of steps that a thread makes ahead. With 0 they are made when they are asked for, and nothing
            warns if that takes long.
        static_shapes: give all batches the same shape, for compiled steps and CUDA graphs: rows are padded to the
            capacity of a row, and `cu_seq_lens` to the most documents of a row.
        unpacked: one document per row, padded, with an attention mask: for models that cannot separate packed
            documents. It loses what packing saves.
        seq_idx: also return the number of each token's document.
        attention: what `use_packed(model)` returned. Only data whose documents share tokens (`pack.share`) need it, and
            make no batch without it. It may be set later, as the attribute.
        accumulate: divide a rank's share of a step into this many batches, for gradient accumulation; `rows_per_step`
            must be a multiple of the number of ranks times this. The state advances with the last batch of a step;
            `len` counts all batches.
        reference: for preference pairs, what `reference_logps` returned: each batch then has the reference's
            log-probabilities of its documents as `reference`. It may be set later, as the attribute.
        cache, cache_bytes, storage_options: for remote shards: the folder of their copies, its most bytes, and options
            of the store, such as credentials.

    Raises:
        ConfigError: `rows_per_step` cannot be divided among the ranks (the message names numbers that can), or another
            argument is invalid.
        InputError: there is no finished dataset, or no such split.
        IntegrityError: the manifest or a shard is damaged.
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
        balance: int = 1,
        prefetch: int = 2,
        static_shapes: bool = False,
        unpacked: bool = False,
        seq_idx: bool = False,
        accumulate: int = 1,
        attention: "Applied | None" = None,
        reference: Reference | None = None,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.place = detect_rank(rank, world_size)
        _LOG.info("rank %d of %d, from %s", self.place.rank, self.place.world_size, self.place.origin)
        self.rows_per_step = divisible(rows_per_step, self.place.world_size, accumulate)
        # Before the dataset is opened, which may be a remote one.
        for name, value, minimum in (("epochs", epochs, 1), ("prefetch", prefetch, 0), ("balance", balance, 1)):
            if value < minimum:
                raise ConfigError(f"{name}={value}: must be at least {minimum}")
        if unpacked and static_shapes:
            raise ConfigError(
                "static_shapes and unpacked exclude each other: padded rows differ in length; leave out one of the two"
            )
        self.corpus = PackedRows(data, split, cache=cache, cache_bytes=cache_bytes, storage_options=storage_options)
        if not len(self.corpus):
            raise ConfigError(f"{data}: the split {split!r} has no rows; name another split")
        if self.corpus.shares_tokens and (static_shapes or seq_idx):
            raise ConfigError(
                f"{data} has rows whose documents share tokens (pack.share), which have no fixed shape, and do not go "
                "with recurrent layers; leave static_shapes and seq_idx out, or pack with pack.share: none"
            )
        self.steps = Steps(
            self.corpus,
            seed=seed,
            order=choice("order", order, Order),
            epochs=epochs,
            balance=balance,
            rows_per_step=rows_per_step,
            ranks=self.place.world_size,
            tail=choice("tail", tail, Tail),
        )
        """The order, cut into steps and divided among the ranks."""
        self.accumulate = accumulate
        self.prefetch = prefetch
        self.unpacked = unpacked
        self.seq_idx = seq_idx
        self.shape = FixedShape.of(self.corpus) if static_shapes else None
        """The size to which rows are padded; None without `static_shapes`."""
        self.attention = attention
        self.reference = reference  # checked by its setter
        self._pad_id = self.corpus.manifest.pad_id
        self._rows = 0
        """Rows returned so far, over all ranks and epochs."""

    def __getitem__(self, index: object) -> dict[str, Any]:
        """Refused, because only a torch DataLoader around the loader asks for it.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a PackedLoader gives whole batches by itself, and makes them ahead in a thread; iterate over it, without "
            "a torch DataLoader around it"
        )

    @property
    def reference(self) -> Reference | None:
        """The log-probabilities of the rows' documents under the reference model of a preference training.

        Setting it raises ConfigError if it was computed for other rows.
        """
        return self._reference

    @reference.setter
    def reference(self, reference: Reference | None) -> None:
        if reference is not None:
            reference.require_rows(self.corpus)
        self._reference = reference

    @property
    def rows_per_batch(self) -> int:
        """Rows of one batch of this rank."""
        return self.rows_per_step // (self.place.world_size * self.accumulate)

    @property
    def total_rows(self) -> int:
        """Number of rows of all epochs, over all ranks."""
        return self.steps.total

    def __len__(self) -> int:
        """Number of batches left; the same on every rank."""
        return self.steps.left(self._rows) * self.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rank's batches from the current state on. The state advances as batches are returned.

        Raises:
            ConfigError: this is one of several worker processes of a torch DataLoader; or documents share tokens, and
                nothing shows that the model's attention follows them.
        """
        refuse_workers("PackedLoader")
        if self.corpus.shares_tokens and not self.unpacked:
            require_attention(self.attention, self.corpus.files.address)
        # Where each step begins in the order: after 8 rows, with 4 rows a step, at 8, 12, 16, …
        end = self._rows + self.steps.left(self._rows) * self.rows_per_step
        positions = range(self._rows, end, self.rows_per_step)
        shards_ahead = None if self.corpus.files.is_local else ShardsAhead(self.steps)
        batches_of_steps = results_ahead(self._batches, positions, count=self.prefetch, describe=self._describe_wait)
        try:
            for position, batches in zip(positions, batches_of_steps, strict=True):
                if shards_ahead is not None:
                    shards_ahead.move(position)
                yield from batches[:-1]
                # Before the last batch is yielded, because a trainer saves the state while it has that batch. The rows
                # that fill up the last step are not counted.
                self._rows = min(position + self.rows_per_step, self.total_rows)
                yield batches[-1]
        finally:
            if shards_ahead is not None:
                shards_ahead.close()

    @property
    def lineage(self) -> dict[str, str]:
        """`{"packtrain/dataset": …}`, the hash of the dataset's manifest, for the configuration that a log shows:
        `wandb.init(config={**config, **loader.lineage})`. It is also in `state_dict`.
        """
        return self.corpus.lineage

    def state_dict(self) -> dict[str, Any]:
        """The loader's position: equal on all ranks, under a kilobyte."""
        return {**self.steps.beginning, "rows": self._rows, **self.lineage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, on any number of ranks and rows per step.

        Raises:
            ConfigError: the state belongs to another dataset, order or version, or is damaged.
        """
        if isinstance(state, Mapping):  # anything else is refused below
            # The same rows may be in a dataset with another manifest: what must be equal is the rows' own fingerprint.
            state = {key: value for key, value in state.items() if key != LINEAGE}
        # All but `rows`, which says how far the loader was, must be as at the beginning of this order.
        checked = checked_state(state, self.steps.beginning, owner="PackedLoader", counts=["rows"])
        rows = checked["rows"]
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
        contents = self.steps.at(step * self.rows_per_step)
        rows = {index: self.corpus.row(index) for index in contents.rows.tolist()}
        # In one call, because each one reads the document table and compares it with its hash.
        origins = self.corpus.origins([doc_id for row in rows.values() for doc_id in row.doc_ids.tolist()])
        documents = []
        for rank, share in enumerate(contents.shares):
            for index in contents.rows[share].tolist():
                row = rows[index]
                for piece, doc_id in enumerate(row.doc_ids.tolist()):
                    origin = origins[doc_id]
                    document = StepDocument(
                        rank=rank,
                        row=index,
                        doc_id=doc_id,
                        id=origin.id,
                        source=origin.source,
                        file=origin.file,
                        line=origin.line,
                        tokens=int(row.own_lengths[piece]),
                        side=None if row.sides is None else int(row.sides[piece]),
                    )
                    documents.append(document)
        return documents

    def _batches(self, position: int) -> list[dict[str, Any]]:
        """This rank's batches of the step that begins at a position."""
        step = self.steps.at(position)
        share = step.shares[self.place.rank]
        rows = step.rows[share].tolist()
        fills_up = None
        if step.real < self.rows_per_step:
            # Behind its first `real` rows, the last step has rows that are trained elsewhere: they only fill it up.
            fills_up = [number_in_step >= step.real for number_in_step in share]
        # With accumulate=2, a share of 4 rows gives two batches: rows 0 and 1, then 2 and 3.
        batches = []
        for begin in range(0, len(rows), self.rows_per_batch):
            part = slice(begin, begin + self.rows_per_batch)
            batches.append(self.batch_of(rows[part], None if fills_up is None else fills_up[part]))
        return batches

    def batch_of(self, indices: Sequence[int], fills_up: Sequence[bool] | None = None) -> dict[str, Any]:
        """A batch of rows, in the form that iterating gives; the state is not moved.

        Args:
            indices: the rows by their numbers in the split, in the order of the batch.
            fills_up: of each row, whether it only fills up a step, without labels. None if no row does.

        Raises:
            IndexError: there is no such row.
            IntegrityError: a shard, or the reference, is damaged.
        """
        # Joined where the rows allow it, which is faster. Padding to a shape, references, rows without labels and paths
        # of branches are made row by row.
        if self.shape is None and self._reference is None and fills_up is None and not self.corpus.shares_tokens:
            rows = list(self.corpus.neighbours_joined(indices))
        else:
            rows = [self.corpus.row(index) for index in indices]
        logps = None
        if self._reference is not None:
            # By the number of the row: no order of the rows, and no division among ranks, can exchange references.
            logps = [
                self._reference.of_row(index, len(row.seq_lengths)) for index, row in zip(indices, rows, strict=True)
            ]
        if fills_up is not None:
            rows = [untrained(row) if fills else row for row, fills in zip(rows, fills_up, strict=True)]
        if self.unpacked:
            return unpack(rows, self._pad_id, reference=logps)
        return flatten(rows, seq_idx=self.seq_idx, shape=self.shape, reference=logps)

    def _describe_wait(self, position: int) -> str:
        """What the batches of the step that begins at a position wait for, as a clause."""
        rows = self.steps.rows(position, position + self.rows_per_step).tolist()
        urls = sorted({self.corpus.url_of(self.corpus.shard_of(row)) for row in rows})
        others = f" and {len(urls) - 3:,} more" if len(urls) > 3 else ""
        return (
            f"rank {self.place.rank} of {self.place.world_size} waits for step {position // self.rows_per_step:,}, "
            f"whose rows are in {', '.join(urls[:3])}{others}"
        )


def refuse_workers(name: str) -> None:
    """Raise ConfigError in one of several worker processes of a torch DataLoader: each would deliver every row.

    Args:
        name: what is iterated over.
    """
    torch_data = sys.modules.get("torch.utils.data")  # a worker of a DataLoader has imported it already
    worker = torch_data.get_worker_info() if torch_data is not None else None
    if worker is not None and worker.num_workers > 1:
        raise ConfigError(
            f"a {name} is read by {worker.num_workers} workers of a torch DataLoader, each of which would deliver "
            "every row; take num_workers=0: the next batches are made ahead in a thread anyway"
        )


def checked_state(saved: Any, beginning: dict[str, Any], owner: str, counts: Collection[str]) -> dict[str, Any]:
    """Check a saved state, which may be any data, and return it as a dict.

    Args:
        beginning: the state of the object that shall take it, before its first step.
        owner: name of that object's class, for messages.
        counts: the keys that say how far a state is, in whole numbers from 0. The values of all other keys must be
            equal in both states.

    Raises:
        ConfigError: it is of another version or order, damaged, or not a state of this kind; the message names the key.
    """
    state = dict(saved) if isinstance(saved, Mapping) else {}
    for key in {**beginning, **state}:  # also keys that only one of them has, which the other gives as None
        value: Any = state.get(key)
        expected: Any = beginning.get(key)
        has_type = type(value) is type(expected)  # not isinstance: True is an int, and would pass for a count
        if has_type and key in counts and 0 <= value <= MAX_COUNT:
            continue
        if has_type and key not in counts and value == expected:
            continue
        raise ConfigError(
            f"the state of a {owner} does not fit: {escape_line(str(key))} differs: here it is {expected!r}, in the "
            f"state {value!r:.60}. Resuming would repeat some rows and leave others out: configure it as before, "
            "resume from another checkpoint, or start again without the state"
        )
    return state
