"""A closer look at some documents: their runs and tokens, a segment of the cache at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..stages.arrays import view
from ..stages.mask import Mask
from ..stages.runindex import RunIndex
from .catalogue import PartPlace
from .parts import EncodedPart, Segment


class Placed(Protocol):
    """N documents of some parts, and where in them they stand."""

    @property
    def parts(self) -> Sequence[PartPlace]: ...
    @property
    def part_starts(self) -> NDArray[np.int64]:
        """(parts + 1,) over documents."""
        ...

    @property
    def part_segments(self) -> NDArray[np.int64]:
        """(parts + 1,) over segments."""
        ...

    @property
    def segment_starts(self) -> NDArray[np.int64]:
        """(segments + 1,) over documents."""
        ...

    @property
    def lengths(self) -> NDArray[np.int32]: ...
    @property
    def begins(self) -> NDArray[np.int32]: ...
    @property
    def run_begins(self) -> NDArray[np.int32]: ...
    @property
    def run_counts(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True, eq=False)
class CloseUp:
    """K documents of one segment, whole."""

    first: int
    """Where they stand in the list of documents that was asked for: at `first` and the K - 1 after it."""
    runs: RunIndex
    segment: Segment
    begins: NDArray[np.int32]
    """(K,) first token of each within the segment."""
    lengths: NDArray[np.int32]
    """(K,) tokens of each."""

    @property
    def last(self) -> int:
        """One past the last of them in that list."""
        return self.first + len(self.lengths)

    def tokens(self) -> NDArray[np.int32]:
        """(T,) their tokens, end to end."""
        ends = self.begins + self.lengths
        return np.concatenate(
            [self.segment.tokens[a:b] for a, b in zip(self.begins.tolist(), ends.tolist(), strict=True)]
        )


def close_up(catalogue: Placed, documents: NDArray[np.int64], mask: Mask) -> Iterator[CloseUp]:
    """The documents of the list, which rises, segment by segment. Segments with none of them are not opened."""
    at = np.searchsorted(documents, catalogue.segment_starts)
    first_segments = catalogue.part_segments
    for part, place in enumerate(catalogue.parts):
        segments = range(int(first_segments[part]), int(first_segments[part + 1]))
        if not len(segments) or at[segments.start] == at[segments.stop]:
            continue
        encoded = EncodedPart(place.path)
        for number, batch, segment in zip(segments, encoded.batches, encoded.segments(mask), strict=True):
            here = documents[at[number] : at[number + 1]]
            if not len(here):
                continue
            counts = catalogue.run_counts[here]
            index = np.repeat(catalogue.run_begins[here] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            coded = segment.runs[index]
            structs = batch.column("runs").values
            lengths = catalogue.lengths[here]
            runs = RunIndex.of(
                lengths,
                counts,
                ends=np.where(coded >= 0, coded, ~coded),
                kind=view(structs.field("kind"))[index],
                turn=view(structs.field("turn"))[index],
                asked=coded >= 0,
            )
            yield CloseUp(int(at[number]), runs, segment, catalogue.begins[here], lengths)
