"""What is decided about a document because of all the others: whether an earlier one says the same, and how often it
is packed. In bounded memory: nobody holds all documents at once.

Both are found by passes over the documents, lot by lot in their order (`Survey`), after which the decision about any
lot can be made by itself: `Decisions.apply`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError
from ..stages.duplicates import later_ones, suspects
from ..stages.mask import Mask
from ..stages.sampling import Draw, Quota, draw_keys, passes_of
from .catalogue import Catalogue
from .selecting import Chosen, select_alone, source_bounds
from .spill import explained, nameless

MAX_PASSES = 10_000
"""Copies of an example beyond which a mix is a mistake."""
BUCKET = 1 << 21
"""Digests that are compared at once: some 150 MB with what sorting needs."""
_ENTRY = np.dtype([("first", np.uint64), ("second", np.uint64), ("document", np.int64)])


class Twins:
    """Finds documents that say what an earlier one says, among some billions.

    1. `add` every document that counts, in their order. Digests go to a file, sorted by their first bits.
    2. `find` reads one range of digests after another, and marks those that are not the first of their kind.

    Args:
        documents: in all, whether or not they are added.
        scratch: a folder for files without a name, which are gone when this is.
    """

    def __init__(self, documents: int, scratch: Path) -> None:
        self._documents = documents
        self._scratch = scratch
        self._bits = max(0, (documents // BUCKET).bit_length())
        self._lots: list[NDArray[np.int64]] = []
        """Where the entries of each range begin in the file, of one lot after another."""
        self._held: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._size = 0

    def add(self, documents: NDArray[np.int64], digests: NDArray[np.uint64]) -> None:
        """Add (K,) documents, beyond all before, with the (K, 2) halves of their digests."""
        entries = np.empty(len(documents), dtype=_ENTRY)
        entries["first"], entries["second"], entries["document"] = digests[:, 0], digests[:, 1], documents
        if not self._bits:
            self._held.append(entries)
            return
        bucket = (entries["first"] >> np.uint64(64 - self._bits)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        starts = np.searchsorted(bucket[order], np.arange((1 << self._bits) + 1))
        if self._file is None:
            self._file = nameless(self._scratch)
        with explained(self._scratch):
            self._file.write(entries[order].data)
            self._file.flush()
        self._lots.append(starts + self._size)
        self._size += len(entries)

    def find(self) -> NDArray[np.bool_]:
        """(documents,) which ones have the digest of an earlier one; mapped from a file where they are many."""
        if not self._bits:
            out = np.zeros(self._documents, dtype=np.bool_)
        else:
            file = nameless(self._scratch, self._documents)
            out = np.memmap(file, dtype=np.bool_, mode="r+", shape=(self._documents,))
        for entries in self._buckets():
            halves = np.stack([entries["first"], entries["second"]], axis=1)
            out[entries["document"][repeated_ones(halves)]] = True
        self._held, self._lots = [], []
        if self._file is not None:
            self._file.close()
        return out

    def _buckets(self) -> Iterator[NDArray[Any]]:
        """The entries of one range of digests after another, in the order of their documents."""
        if not self._bits:
            if self._held:
                yield np.concatenate(self._held)
            return
        file, width = self._file, _ENTRY.itemsize
        for bucket in range(1 << self._bits if file is not None else 0):
            assert file is not None
            pieces = []
            for starts in self._lots:
                first, last = int(starts[bucket]), int(starts[bucket + 1])
                if first < last:
                    file.seek(first * width)
                    pieces.append(np.frombuffer(file.read((last - first) * width), dtype=_ENTRY))
            if pieces:
                yield np.concatenate(pieces)


class Repeats:
    """Counts documents that say what an earlier one says, and leaves none out.

    Of more than `BUCKET` documents, only a share of all digests is compared, by their last bits: what is equal has
    equal digests, so the count of the share stands for all.

    Args:
        documents: in all, whether or not they are added.
    """

    def __init__(self, documents: int) -> None:
        self.share = max(1, -(-documents // BUCKET))
        """Digests for each one that is compared; 1 counts exactly."""
        self._held: list[NDArray[np.uint64]] = []
        self._found: int | None = None

    def add(self, digests: NDArray[np.uint64]) -> None:
        """Add the (K, 2) halves of the digests of documents that are packed."""
        self._held.append(digests if self.share == 1 else digests[digests[:, 1] % np.uint64(self.share) == 0])

    def count(self) -> int:
        """How many of those added an earlier one is equal to. Nothing can be added afterwards."""
        if self._found is None:
            self._found = len(repeated_ones(np.concatenate(self._held))) * self.share if self._held else 0
            self._held = []
        return self._found


class Mixer:
    """Finds how often documents are packed, by source: what `repeat` and `weight` of the configuration ask for.

    1. `count` every lot. 2. `aim`. 3. Where that says so, `look` at every lot again. 4. `quotas`.
    """

    def __init__(self, config: RunConfig, bounds: Sequence[tuple[int, int]]) -> None:
        self._config = config
        self._bounds = bounds
        self._draws = [Draw() for _ in bounds]
        self._again: list[bool] = []

    @staticmethod
    def needed(config: RunConfig) -> bool:
        """Whether the configuration says anything of it."""
        return any(source.weight is not None or source.repeat is not None for source in config.sources)

    def count(self, chosen: Chosen, documents: NDArray[np.int64]) -> None:
        """Show a lot, its duplicates left out: (N,) which documents of the run they are, rising."""
        for number, places, tokens in mixed(chosen, documents, self._bounds):
            self._draws[number].count(draw_keys(places, self._config.seed, number), tokens)

    def aim(self) -> bool:
        """Every lot was counted. Whether every lot must be looked at.

        Raises:
            ConfigError: a weight asks for too many copies.
        """
        sources = self._config.sources
        stocks = [draw.stock for draw in self._draws]
        passes = passes_of(stocks, [s.weight for s in sources], [s.repeat for s in sources])
        for source, often in zip(sources, passes, strict=True):
            if often > MAX_PASSES:
                raise ConfigError(
                    f"sources.{source.name}.weight asks for every example {float(often):,.0f} times; lower it, or "
                    f"limit it by `repeat` (at most {MAX_PASSES:,})"
                )
        self._again = [draw.aim(often) for draw, often in zip(self._draws, passes, strict=True)]
        return any(self._again)

    def look(self, chosen: Chosen, documents: NDArray[np.int64]) -> None:
        """Show a lot again."""
        for number, places, tokens in mixed(chosen, documents, self._bounds):
            if self._again[number]:
                self._draws[number].look(draw_keys(places, self._config.seed, number), places, tokens)

    def quotas(self) -> list[Quota]:
        """What was found, by source."""
        return [draw.quota() for draw in self._draws]


class Decisions:
    """What was found. Anything that is None was not asked for.

    Args:
        seed: of the configuration.
        bounds: (first document, one past the last) of each source.
    """

    def __init__(self, seed: int, bounds: Sequence[tuple[int, int]]) -> None:
        self._seed = seed
        self._bounds = bounds
        self.twins: NDArray[np.bool_] | None = None
        """(documents,)"""
        self.quotas: list[Quota] | None = None
        """By source."""

    def apply(self, chosen: Chosen, documents: NDArray[np.int64]) -> None:
        """Decide about a lot: (N,) which documents of the run they are, rising."""
        selection = chosen.selection
        if self.twins is not None:
            selection.leave_out(self.twins[documents], "duplicate")
        if self.quotas is None:
            return
        for number, places, tokens in mixed(chosen, documents, self._bounds):
            keys = draw_keys(places, self._seed, number)
            wanted = self.quotas[number].copies(keys, places, tokens)
            low, high = np.searchsorted(documents, self._bounds[number])
            takes_part = tokens > 0
            selection.copies[low:high] = np.where(takes_part, wanted, selection.copies[low:high])
            out = np.zeros(len(documents), dtype=np.bool_)
            out[low:high] = takes_part & (wanted == 0)
            selection.leave_out(out, "not_sampled")


def mixed(
    chosen: Chosen, documents: NDArray[np.int64], bounds: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """(source, places in it, tokens) of a lot's documents, source by source; no tokens where one is not mixed.

    What is held out is not.
    """
    tokens = chosen.packed_tokens()
    tokens[~chosen.selection.stays | chosen.catalogue.held_out] = 0
    for number, (first, last) in enumerate(bounds):
        low, high = np.searchsorted(documents, (first, last))
        if low < high:
            yield number, documents[low:high] - first, tokens[low:high]


def select(catalogue: Catalogue, config: RunConfig, mask: Mask, tokenizer_json: str) -> Chosen:
    """Decide about every document, where all of them are at hand. `survey` does the same lot by lot.

    Duplicates are looked for among what would be packed: a copy of something that is left out for another reason, by
    its source's filter say, is the first of its kind.

    Raises:
        InputError: `overlong: error`, and a document is too long.
    """
    chosen = select_alone(catalogue, config, mask, tokenizer_json)
    decide(chosen, config)
    return chosen


def decide(chosen: Chosen, config: RunConfig) -> None:
    """Leave out duplicates and set copies, where all documents are at hand."""
    catalogue = chosen.catalogue
    documents = np.arange(len(catalogue), dtype=np.int64)
    bounds = source_bounds(catalogue.part_starts, [part.source for part in catalogue.parts], len(config.sources))
    decisions = Decisions(config.seed, bounds)
    if config.duplicates == "drop":
        assert catalogue.digests is not None
        found = np.flatnonzero(chosen.selection.stays)
        repeated = np.zeros(len(catalogue), dtype=np.bool_)
        repeated[found[repeated_ones(catalogue.digests[found])]] = True
        chosen.selection.leave_out(repeated, "duplicate")
    if Mixer.needed(config):
        mixer = Mixer(config, bounds)
        mixer.count(chosen, documents)
        if mixer.aim():
            mixer.look(chosen, documents)
        decisions.quotas = mixer.quotas()
        decisions.apply(chosen, documents)


def repeated_ones(digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Which of (K, 2) digests an earlier one is equal to."""
    found = suspects(digests[:, 0], np.ones(len(digests), dtype=np.bool_))
    return found[later_ones(digests[found, 0], digests[found, 1])]
