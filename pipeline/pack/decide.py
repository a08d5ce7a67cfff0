"""Makes the decisions that depend on all documents: which are duplicates, and how often each is packed. Memory is
bounded: the documents are never all held at once.

Both need passes over the documents, chunk by chunk in order (`Decisions.find`). Afterwards the decisions are applied to
each chunk separately (`Decisions.apply`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ...stages.select.duplicates import later_ones, suspects
from ...stages.select.sampling import Draw, Quota, draw_keys, passes_of
from ..store.anonymous_files import explained, nameless
from .select import Chosen, source_bounds
from .windows import DocumentChunk

MAX_PASSES = 10_000
"""Maximum number of copies of an example; a configuration that asks for more is surely a mistake."""
BUCKET = 1 << 21
"""Digests compared at once: about 150 MB, including sorting."""
_ENTRY = np.dtype([("first", np.uint64), ("second", np.uint64), ("document", np.int64)])


class DuplicateFinder:
    """Finds documents equal to an earlier one, among billions.

    1. `add` all documents to consider, in order. Digests go to a file, grouped by their first bits.
    2. `find` reads one range of digests after another, and marks all but the first of equal digests.

    Args:
        documents: total number, added or not.
        scratch: a folder for anonymous files.
    """

    def __init__(self, documents: int, scratch: Path) -> None:
        self._documents = documents
        self._scratch = scratch
        self._bits = max(0, (documents // BUCKET).bit_length())
        self._chunks: list[NDArray[np.int64]] = []
        """For each chunk, where the entries of each range begin in the file."""
        self._held: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._size = 0

    def add(self, documents: NDArray[np.int64], digests: NDArray[np.uint64]) -> None:
        """Add (K,) documents, which follow all earlier ones, with the (K, 2) halves of their digests."""
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
        self._chunks.append(starts + self._size)
        self._size += len(entries)

    def find(self) -> NDArray[np.bool_]:
        """Return (documents,) whether each has the digest of an earlier one; a mapped file if there are many."""
        if not self._bits:
            out = np.zeros(self._documents, dtype=np.bool_)
        else:
            file = nameless(self._scratch, self._documents)
            out = np.memmap(file, dtype=np.bool_, mode="r+", shape=(self._documents,))
        for entries in self._buckets():
            halves = np.stack([entries["first"], entries["second"]], axis=1)
            out[entries["document"][repeated_ones(halves)]] = True
        self._held, self._chunks = [], []
        if self._file is not None:
            self._file.close()
        return out

    def _buckets(self) -> Iterator[NDArray[Any]]:
        """Yield the entries of each range of digests, in the order of their documents."""
        if not self._bits:
            if self._held:
                yield np.concatenate(self._held)
            return
        file, width = self._file, _ENTRY.itemsize
        for bucket in range(1 << self._bits if file is not None else 0):
            assert file is not None
            pieces = []
            for starts in self._chunks:
                first, last = int(starts[bucket]), int(starts[bucket + 1])
                if first < last:
                    file.seek(first * width)
                    pieces.append(np.frombuffer(file.read((last - first) * width), dtype=_ENTRY))
            if pieces:
                yield np.concatenate(pieces)


class Repeats:
    """Counts documents that equal an earlier one, without leaving them out.

    With more than `BUCKET` documents, only a share of digests is compared, chosen by their last bits. Equal documents
    have equal digests, so the count is scaled up from the share.

    Args:
        documents: total number, added or not.
    """

    def __init__(self, documents: int) -> None:
        self.share = max(1, -(-documents // BUCKET))
        """One in this many digests is compared; 1 counts exactly."""
        self._held: list[NDArray[np.uint64]] = []
        self._found: int | None = None

    @classmethod
    def counted(cls, documents: int, found: int) -> "Repeats":
        """The result of an earlier count."""
        out = cls(documents)
        out._found = found
        return out

    def add(self, digests: NDArray[np.uint64]) -> None:
        """Add the (K, 2) halves of packed documents' digests."""
        self._held.append(digests if self.share == 1 else digests[digests[:, 1] % np.uint64(self.share) == 0])

    def count(self) -> int:
        """Return how many added documents equal an earlier one. Nothing can be added afterwards."""
        if self._found is None:
            self._found = len(repeated_ones(np.concatenate(self._held))) * self.share if self._held else 0
            self._held = []
        return self._found


class MixtureSampler:
    """Finds how often each source's documents are packed, by `repeat` and `weight` of the configuration.

    1. `count` every chunk. 2. `set_target`. 3. If that returns true, `read_again` every chunk. 4. `quotas`.
    """

    def __init__(self, config: RunConfig, bounds: Sequence[tuple[int, int]]) -> None:
        self._config = config
        self._bounds = bounds
        self._draws = [Draw() for _ in bounds]
        self._again: list[bool] = []

    @staticmethod
    def needed(config: RunConfig) -> bool:
        """Whether the configuration uses `repeat` or `weight`."""
        return any(source.weight is not None or source.repeat is not None for source in config.sources)

    def count(self, chosen: Chosen, documents: NDArray[np.int64]) -> None:
        """Count a chunk without its duplicates: (N,) the documents' numbers in the run, ascending."""
        for number, places, tokens in mixed(chosen, documents, self._bounds):
            self._draws[number].count(draw_keys(places, self._config.seed, number), tokens)

    def set_target(self) -> bool:
        """Call after counting every chunk. Returns whether every chunk must be read again.

        Raises:
            ConfigError: a weight asks for too many copies.
        """
        sources = self._config.sources
        available = [draw.available for draw in self._draws]
        passes = passes_of(available, [s.weight for s in sources], [s.repeat for s in sources])
        for source, often in zip(sources, passes, strict=True):
            if often > MAX_PASSES:
                raise ConfigError(
                    f"sources.{source.name}.weight would repeat every example {float(often):,.0f} times; lower it, or "
                    f"limit it by `repeat` (at most {MAX_PASSES:,})"
                )
        self._again = [draw.set_target(often) for draw, often in zip(self._draws, passes, strict=True)]
        return any(self._again)

    def read_again(self, chosen: Chosen, documents: NDArray[np.int64]) -> None:
        """Take a chunk again, for the second pass."""
        for number, places, tokens in mixed(chosen, documents, self._bounds):
            if self._again[number]:
                self._draws[number].read_again(draw_keys(places, self._config.seed, number), places, tokens)

    def quotas(self) -> list[Quota]:
        """The quota of each source."""
        return [draw.quota() for draw in self._draws]


class Decisions:
    """The decisions that depend on all documents; those that the run does not need are None.

    Args:
        seed: of the configuration.
        bounds: (first document, one past the last) of each source.
    """

    def __init__(self, seed: int, bounds: Sequence[tuple[int, int]]) -> None:
        self._seed = seed
        self._bounds = bounds
        self.duplicates: NDArray[np.bool_] | None = None
        """(documents,) whether each is a duplicate."""
        self.quotas: list[Quota] | None = None
        """The quota of each source."""
        self.only: str | None = None
        """The split to pack if only one is packed; None for both."""

    def find(
        self, chunks: Callable[[], Iterator[DocumentChunk]], config: RunConfig, documents: int, scratch: Path
    ) -> None:
        """Make the decisions, in as many passes over all documents as needed.

        Only documents that would be packed count for duplicates: if the first of two equal documents is left out for
        another reason, the second is not a duplicate.

        Args:
            chunks: returns all chunks in order, with the decisions made so far applied.
            documents: total number.
            scratch: a folder for anonymous files.

        Raises:
            ConfigError: a weight asks for too many copies.
        """
        if config.duplicates == "drop":
            duplicates = DuplicateFinder(documents, scratch)
            for chunk in chunks():
                stays = chunk.chosen.selection.stays
                assert chunk.chosen.catalogue.digests is not None
                duplicates.add(chunk.documents[stays], chunk.chosen.catalogue.digests[stays])
            self.duplicates = duplicates.find()
        if MixtureSampler.needed(config):
            mixer = MixtureSampler(config, self._bounds)
            for chunk in chunks():
                mixer.count(chunk.chosen, chunk.documents)
            if mixer.set_target():
                for chunk in chunks():
                    mixer.read_again(chunk.chosen, chunk.documents)
            self.quotas = mixer.quotas()

    def apply(self, chunk: DocumentChunk) -> None:
        """Apply the decisions to a chunk. Repeating it changes nothing."""
        selection, held_out = chunk.chosen.selection, chunk.chosen.catalogue.held_out
        if self.duplicates is not None:
            selection.leave_out(self.duplicates[chunk.documents], "duplicate")
        if self.quotas is not None:
            self._set_copies(chunk, self.quotas)
        if self.only == "train":
            selection.leave_out(held_out, "holdout")
        elif self.only is not None:
            selection.leave_out(~held_out, "train")

    def _set_copies(self, chunk: DocumentChunk, quotas: Sequence[Quota]) -> None:
        documents, selection = chunk.documents, chunk.chosen.selection
        for number, places, tokens in mixed(chunk.chosen, documents, self._bounds):
            wanted = quotas[number].copies(draw_keys(places, self._seed, number), places, tokens)
            low, high = np.searchsorted(documents, self._bounds[number])
            takes_part = tokens > 0
            selection.copies[low:high] = np.where(takes_part, wanted, selection.copies[low:high])
            out = np.zeros(len(documents), dtype=np.bool_)
            out[low:high] = takes_part & (wanted == 0)
            selection.leave_out(out, "not_sampled")


def mixed(
    chosen: Chosen, documents: NDArray[np.int64], bounds: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (source, places in it, tokens) of a chunk's documents, source by source; 0 tokens for documents that are
    not mixed, such as held-out ones.
    """
    tokens = chosen.packed_tokens()
    tokens[~chosen.selection.stays | chosen.catalogue.held_out] = 0
    for number, (first, last) in enumerate(bounds):
        low, high = np.searchsorted(documents, (first, last))
        if low < high:
            yield number, documents[low:high] - first, tokens[low:high]


def decide(chosen: Chosen, config: RunConfig, scratch: Path) -> None:
    """Leave out duplicates and set copies, for a run whose documents are all in memory.

    Args:
        scratch: a folder for anonymous files.
    """
    catalogue = chosen.catalogue
    everything = DocumentChunk.of_all(chosen)
    owners = [part.source for part in catalogue.parts]
    decisions = Decisions(config.seed, source_bounds(catalogue.part_starts, owners, len(config.sources)))

    def chunks() -> Iterator[DocumentChunk]:
        decisions.apply(everything)
        yield everything

    decisions.find(chunks, config, len(catalogue), scratch)
    decisions.apply(everything)


def repeated_ones(digests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return which of (K, 2) digests equal an earlier one."""
    found = suspects(digests[:, 0], np.ones(len(digests), dtype=np.bool_))
    return found[later_ones(digests[found, 0], digests[found, 1])]
