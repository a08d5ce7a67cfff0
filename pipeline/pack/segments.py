"""The mapped parts that a shard is made from, and the counts of what is laid out."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.ragged import lengths_of, offsets_of, ranges
from ...stages.arrays import view
from ...stages.mask.policy import Mask
from ..encode.parts import EncodedPart, Segment
from ..store.open import Store, StoredFile

CHUNK_TOKENS = 1 << 18
"""Number of tokens laid out at once: three columns of 1 MiB fit into the processor's cache, and make a good record
batch.
"""


class Segments:
    """The segments of a window's parts. Tokens and runs stay in the mapped files; one bit per run says whether it is
    supervised. Segments with other weights than 1 keep four bytes per run."""

    def __init__(self, files: Iterable[Path], sources: Iterable[int], mask: Mask) -> None:
        owners: list[int] = []
        bits: list[NDArray[np.uint8]] = []
        self._tokens: list[NDArray[np.int32]] = []
        self._ends: list[NDArray[np.int32]] = []
        self._weights: list[NDArray[np.float32] | None] = []
        for file, source in zip(files, sources, strict=True):
            for batch in EncodedPart(file).batches:
                segment = Segment.of(batch, mask)
                self._tokens.append(segment.tokens)
                self._ends.append(view(batch.column("runs").values.field("end")))
                self._weights.append(segment.weights)
                bits.append(np.packbits(segment.runs >= 0, bitorder="little"))
                owners.append(source)
        self.sources = np.array(owners, dtype=np.int32)
        """(segments,) the source of each segment."""
        self._begins = 8 * offsets_of(lengths_of(bits))
        """(segments + 1,) index of the bit of each segment's first run."""
        self._bits = np.concatenate([np.zeros(0, np.uint8), *bits])

    def tokens(self, segments: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Return, for each piece, all tokens of its segment."""
        tokens = self._tokens
        return [tokens[n] for n in segments.tolist()]

    def runs(
        self, segments: NDArray[np.int32], begins: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return (runs,) where the runs of each piece's document end, and (runs,) whether they are supervised."""
        ends = self._ends
        spans = zip(segments.tolist(), begins.tolist(), (begins + counts).tolist(), strict=True)
        found = np.concatenate([np.zeros(0, np.int32), *(ends[n][a:b] for n, a, b in spans)])
        bit = ranges(self._begins[segments] + begins, counts)
        return found, (self._bits[bit >> 3] >> (bit & 7).astype(np.uint8) & 1).view(np.bool_)

    def weights(
        self, segments: NDArray[np.int32], begins: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return (runs,) the loss weight of the runs of each piece's document, if they are trained."""
        known, spans = self._weights, zip(segments.tolist(), begins.tolist(), counts.tolist(), strict=True)
        found = []
        for number, begin, count in spans:
            weights = known[number]
            found.append(np.ones(count, np.float32) if weights is None else weights[begin : begin + count])
        return np.concatenate([np.zeros(0, np.float32), *found])


@lru_cache(maxsize=1)
def segments_of(files: tuple[StoredFile, ...], sources: tuple[int, ...], cache: Store, mask: Mask) -> Segments:
    """Return the segments of a window; cached for the window's next shard."""
    return Segments((file.path(cache) for file in files), sources, mask)


def forget_segments() -> None:
    """Release the mapped parts."""
    segments_of.cache_clear()


class Account:
    """Counts what was laid out, by source."""

    def __init__(self) -> None:
        self.tokens = 0
        self.max_docs = 0
        self.totals: tuple[dict[int, int], ...] = ({}, {}, {}, {})
        self.weights: dict[int, float] = {}
        """Sums of loss weights."""

    @property
    def trained(self) -> int:
        """Total trained labels."""
        return sum(self.totals[0].values())

    def add(self, sources: NDArray[np.int32], *counts: NDArray[np.generic]) -> None:
        """Add the trained labels, the lost first labels, the padding and the total tokens of each piece."""
        for totals, values in zip(self.totals, counts, strict=True):
            sums = np.bincount(sources, weights=values)
            for source in np.flatnonzero(sums).tolist():
                totals[source] = totals.get(source, 0) + int(sums[source])

    def weigh(self, sources: NDArray[np.int32], weights: NDArray[np.float64]) -> None:
        """Add the sum of the loss weights of each piece."""
        sums = np.bincount(sources, weights=weights)
        for source in np.flatnonzero(sums).tolist():
            self.weights[source] = self.weights.get(source, 0.0) + float(sums[source])


def chunks(ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end (one past the last row) of each group that is laid out at once.

    Args:
        ends: (R,) running sum of the rows' tokens.
    """
    first = 0
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + CHUNK_TOKENS, side="right")))
        yield first, last
        first = last


def mapped(path: Path) -> pa.RecordBatch:
    """Return the single record batch of an Arrow file, memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).get_batch(0)
