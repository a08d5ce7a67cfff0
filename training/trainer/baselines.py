"""What training would be without packing, from the same packed dataset: what packing buys on one's own data.

The rows are taken apart into their documents, which come in an order of their own, as many in a step as the packed
rows of a step hold on the average. So a step trains on about as many tokens, and an epoch on exactly the same.

| batching | a batch |
|---|---|
| `padded` | every document a row, padded to the longest of the micro-batch, with an attention mask |
| `padding_free` | the documents one after another, as in packing, but as they come: batches are of any length |

In `order="length"` documents of like length come together, as `group_by_length` of transformers does it: less padding,
bought with steps that hold only long or only short documents.

Legend: `N` documents (pieces) of the dataset, `W` ranks, `A` micro-batches of a step.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.errors import ConfigError
from ...schemas.rows import IGNORE_INDEX
from ..batch import flatten, unpack
from ..corpus import Corpus
from ..loader import PackedLoader
from ..options import choice
from ..order import Permutation, epoch_key
from ..ranks import Place
from ..schedule import Schedule
from ..shard import Strip
from ..steps import Tail

_LOG = logging.getLogger(__name__)
FORMAT = 1
BLOCK_STEPS = 50
"""Steps whose documents are sorted together in `order="length"`, as in transformers."""
_AHEAD = 2
"""Batches made before they are asked for."""


class Batching(StrEnum):
    """What a batch is made of."""

    PACKED = "packed"
    """Packed rows."""
    PADDING_FREE = "padding_free"
    """Documents one after another, as they come."""
    PADDED = "padded"
    """A document a row, padded."""


class DocumentOrder(StrEnum):
    """In which order documents come."""

    RANDOM = "random"
    """A permutation, another one every epoch."""
    LENGTH = "length"
    """The same, and within 50 steps those of like length together."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of a corpus stand. Two numbers a document: small, but all shards are opened once."""

    corpus: Corpus
    row: NDArray[np.int64]
    """(N,)"""
    begin: NDArray[np.int64]
    """(N,) in the row."""
    length: NDArray[np.int64]
    """(N,)"""

    @classmethod
    def of(cls, corpus: Corpus) -> "Documents":
        """Read the boundaries of all rows."""
        lengths = [corpus.row(row).seq_lengths.astype(np.int64) for row in range(len(corpus))]
        begins = [np.cumsum(of_row) - of_row for of_row in lengths]
        rows = np.repeat(np.arange(len(corpus)), [len(of_row) for of_row in lengths])
        return cls(corpus, rows, np.concatenate(begins), np.concatenate(lengths))

    def __len__(self) -> int:
        return len(self.row)

    def strip(self, index: int) -> Strip:
        """One document, as a row of its own."""
        row, begin = self.corpus.row(int(self.row[index])), int(self.begin[index])
        part = slice(begin, begin + int(self.length[index]))
        lengths = np.array([self.length[index]], dtype=np.int32)
        return Strip(row.input_ids[part], row.labels[part], row.position_ids[part], lengths)


def unpacked_loader(
    loader: PackedLoader,
    batching: str,
    *,
    documents_per_step: int | None = None,
    order: str = "random",
) -> "PackedLoader | BaselineLoader":
    """The loader of a baseline, in place of a packed one; for `packed`, the packed one itself.

    Args:
        loader: whose data, ranks, epochs, tail and micro-batches are taken over.
        batching: see `Batching`.
        documents_per_step: over all ranks and micro-batches; None for as many as a packed step holds on the average.
        order: see `DocumentOrder`.

    Raises:
        ConfigError: the loader mixes datasets, or the documents cannot be divided.
    """
    wanted = choice("batching", batching, Batching)
    if wanted is Batching.PACKED:
        return loader
    if loader.schedule.stream.mixture is not None:
        raise ConfigError(
            f"batching: {wanted} compares on one dataset, and there are {len(loader.corpus.parts)}; name one of them "
            "under data, or take batching: packed"
        )
    if loader._shape is not None or loader.unpacked:
        raise ConfigError(f"batching: {wanted} has no fixed shape; leave loader.static_shapes and unpacked out")
    return BaselineLoader(loader, wanted, choice("order", order, DocumentOrder), documents_per_step)


class BaselineLoader:
    """Batches of a rank, of documents that are not packed. What it shares with PackedLoader means the same there.

    The state counts documents handed out, and is good for any number of ranks and micro-batches, as long as the
    documents of a step stay the same.
    """

    packed = False

    def __init__(
        self, loader: PackedLoader, batching: Batching, order: DocumentOrder, documents_per_step: int | None
    ) -> None:
        self.corpus: Corpus = loader.corpus
        self.schedule: Schedule = loader.schedule
        self.place: Place = loader.place
        self.rows_per_step, self.accumulate = loader.rows_per_step, loader.accumulate
        self.batching, self.order, self.tail = batching, order, loader.tail
        self.pad_id, self.seq_idx, self.pin_memory = loader.pad_id, loader.seq_idx, loader.pin_memory
        self.documents = Documents.of(loader.corpus)
        self.epochs = loader.schedule.start.epochs
        self.seed = loader.schedule.start.seed
        self.total = len(self.documents) * self.epochs
        self.documents_per_step = self._per_step(documents_per_step)
        if self.tail is Tail.DROP and self.total < self.documents_per_step:
            raise ConfigError(
                f"{self.documents_per_step:,} documents a step, but there are only {self.total:,} in all: not one step "
                "would be full; take fewer rows_per_step, or tail: pad"
            )
        self._done = self._tokens = 0
        self._warn()

    def __repr__(self) -> str:
        return f"BaselineLoader({self.batching}, {self.order} order; {self.documents_per_step:,} documents a step)"

    @property
    def total_rows(self) -> int:
        """Packed rows that hold the documents of all epochs."""
        return len(self.corpus) * self.epochs

    def __len__(self) -> int:
        """Batches that are left: the same on every rank."""
        whole, rest = divmod(self.total - self._done, self.documents_per_step)
        return (whole + (1 if rest and self.tail is not Tail.DROP else 0)) * self.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rank's batches from where the state stands, some made ahead."""
        first, size = self._done, self.documents_per_step
        jobs = [(first + number // self.accumulate * size, number % self.accumulate) for number in range(len(self))]
        pool = ThreadPoolExecutor(1, thread_name_prefix="packtrain-baseline")
        try:
            waiting: list[Future[dict[str, Any]]] = []
            for number, (position, part) in enumerate(jobs):
                while len(waiting) <= _AHEAD and number + len(waiting) < len(jobs):
                    waiting.append(pool.submit(self._batch, *jobs[number + len(waiting)]))
                batch = waiting.pop(0).result()
                if part == self.accumulate - 1:
                    self._count(position)
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def batch(self, position: int) -> dict[str, Any]:
        """This rank's first micro-batch of the step whose first document stands at a position of the order."""
        return self._batch(position, 0)

    def lengths(self, step: int) -> list[list[int]]:
        """The lengths of the documents of each of this rank's micro-batches in a step."""
        hand = self._hand(step * self.documents_per_step)
        return [self.documents.length[part].tolist() for part in np.array_split(hand, self.accumulate)]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: equal on all ranks. `rows` is what as many packed rows would be, to compare progress."""
        return {
            "format": FORMAT,
            "baseline": self.batching.value,
            "order": self.order.value,
            "fingerprint": self.corpus.fingerprint,
            "seed": self.seed,
            "documents_per_step": self.documents_per_step,
            "documents": self._done,
            "rows": self._done * len(self.corpus) // len(self.documents),
            "tokens": self._tokens,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a loader stood.

        Raises:
            ConfigError: the state is of other data, another order, or another kind of loader.
        """
        mine = self.state_dict()
        for key in ("format", "baseline", "order", "fingerprint", "seed", "documents_per_step"):
            if state.get(key) != mine[key]:
                raise ConfigError(
                    f"{key} differs: this loader ({self.batching}) has {mine[key]!r}, the state {state.get(key)!r}; "
                    "make the loader as it was, or start anew without the state"
                )
        self._done, self._tokens = int(state["documents"]), int(state["tokens"])

    def _per_step(self, wanted: int | None) -> int:
        hands = self.place.world_size * self.accumulate
        if wanted is None:
            mean = len(self.documents) * self.rows_per_step / len(self.corpus)
            return max(1, round(mean / hands)) * hands
        if wanted < 1 or wanted % hands:
            raise ConfigError(
                f"documents_per_step={wanted:,}: take a multiple of {hands:,}, which is {self.place.world_size:,} "
                f"ranks times {self.accumulate:,} micro-batches"
            )
        return wanted

    def _count(self, position: int) -> None:
        end = min(self.total, position + self.documents_per_step)
        self._tokens += int(self.documents.length[self._at(position, end)].sum())
        self._done = end

    def _at(self, begin: int, end: int) -> NDArray[np.int64]:
        """(end - begin,) documents at these positions of the order, which run on over the epochs."""
        size, out = len(self.documents), []
        while begin < end:
            epoch, first = divmod(begin, size)
            last = min(size, first + end - begin)
            out.append(self._epoch(epoch, first, last))
            begin += last - first
        return np.concatenate(out) if out else np.zeros(0, dtype=np.int64)

    def _epoch(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        key = epoch_key(self.seed, epoch, "documents")
        shuffle = Permutation(len(self.documents), key)
        if self.order is DocumentOrder.RANDOM:
            return shuffle(np.arange(first, last, dtype=np.int64))
        block = BLOCK_STEPS * self.documents_per_step
        begin, end = first // block * block, min(len(self.documents), -(-last // block) * block)
        blocks = [
            self._by_length(shuffle(np.arange(at, min(at + block, end), dtype=np.int64)), key + at)
            for at in range(begin, end, block)
        ]
        return np.concatenate(blocks)[first - begin : last - begin]

    def _by_length(self, documents: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Sorted and cut into steps, which come in any order; what fills no step comes last."""
        size = self.documents_per_step
        ordered = documents[np.argsort(-self.documents.length[documents], kind="stable")]
        whole = len(ordered) // size
        if not whole:
            return ordered
        steps = ordered[: whole * size].reshape(whole, size)
        steps = steps[Permutation(whole, key % 2**64)(np.arange(whole, dtype=np.int64))]
        return np.concatenate([steps.ravel(), ordered[whole * size :]])

    def _hand(self, position: int) -> NDArray[np.int64]:
        """This rank's documents of a step; −1 − document for one that only fills the step up."""
        end = min(self.total, position + self.documents_per_step)
        documents = self._at(position, end)
        missing = self.documents_per_step - len(documents)
        if missing:
            fill = np.resize(self._at(0, min(missing, len(self.documents))), missing)
            documents = np.concatenate([documents, fill if self.tail is Tail.REPEAT else -1 - fill])
        share = self.documents_per_step // self.place.world_size
        return documents[self.place.rank * share : (self.place.rank + 1) * share]

    def _batch(self, position: int, part: int) -> dict[str, Any]:
        mine = np.array_split(self._hand(position), self.accumulate)[part]
        strips = [self._strip(int(document)) for document in mine]
        if self.batching is Batching.PADDED:
            batch = unpack(strips, self.pad_id)
        else:
            batch = flatten(strips, seq_idx=self.seq_idx)
        if self.pin_memory:
            batch = {name: v.pin_memory() if isinstance(v, torch.Tensor) else v for name, v in batch.items()}
        return batch

    def _strip(self, document: int) -> Strip:
        if document >= 0:
            return self.documents.strip(document)
        strip = self.documents.strip(-1 - document)
        return Strip(strip.input_ids, np.full_like(strip.labels, IGNORE_INDEX), strip.position_ids, strip.seq_lengths)

    def _warn(self) -> None:
        steps = min(8, max(1, len(self) // self.accumulate))
        batches = [batch for step in range(steps) for batch in self.lengths(step) if batch]
        real, room = sum(map(sum, batches)), sum(max(batch) * len(batch) for batch in batches)
        _LOG.warning(
            "batching: %s is a baseline, in %s order: %s documents a step%s",
            self.batching,
            self.order,
            f"{self.documents_per_step:,}",
            f", of which {1 - real / room:.0%} of the computed tokens are padding"
            if self.batching is Batching.PADDED
            else "",
        )
