"""Reads the runs and tokens of some documents, one segment of the cache at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import ranges
from ...stages.arrays import view
from ...stages.mask.policy import Mask
from ...stages.mask.run_index import RunIndex
from ..encode.parts import EncodedPart, PartPlace, Segment


class LocatedDocuments(Protocol):
    """N documents, and their positions in the parts."""

    @property
    def parts(self) -> Sequence[PartPlace]: ...
    @property
    def part_starts(self) -> NDArray[np.int64]:
        """(parts + 1,) first document of each part, then N."""
        ...

    @property
    def part_segments(self) -> NDArray[np.int64]:
        """(parts + 1,) first segment of each part, then the number of segments."""
        ...

    @property
    def segment_starts(self) -> NDArray[np.int64]:
        """(segments + 1,) first document of each segment, then N."""
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
class DocumentRuns:
    """K whole documents of one segment."""

    first: int
    """Position in the requested list of the first of these K documents; the others follow it."""
    runs: RunIndex
    segment: Segment
    begins: NDArray[np.int32]
    """(K,) where each document's tokens begin within the segment."""
    lengths: NDArray[np.int32]
    """(K,) number of tokens of each document."""

    @property
    def last(self) -> int:
        """End of these documents in the requested list: one past the last position."""
        return self.first + len(self.lengths)

    def tokens(self) -> NDArray[np.int32]:
        """(T,) the tokens of the K documents, concatenated."""
        ends = self.begins + self.lengths
        return np.concatenate(
            [self.segment.tokens[a:b] for a, b in zip(self.begins.tolist(), ends.tolist(), strict=True)]
        )


def read_runs(catalogue: LocatedDocuments, documents: NDArray[np.int64], mask: Mask) -> Iterator[DocumentRuns]:
    """Read the documents of an ascending list, segment by segment. Segments without such documents are not opened."""
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
            index = ranges(catalogue.run_begins[here], counts)
            coded = segment.runs[index]
            structs = batch.column("runs").values
            lengths = catalogue.lengths[here]
            runs = RunIndex.of(
                lengths,
                counts,
                ends=np.where(coded >= 0, coded, ~coded),
                kind=view(structs.field("kind"))[index],
                turn=view(structs.field("turn"))[index],
                supervised=coded >= 0,
            )
            yield DocumentRuns(int(at[number]), runs, segment, catalogue.begins[here], lengths)
