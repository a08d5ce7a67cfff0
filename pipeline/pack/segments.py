"""Tokens and spans of documents, from the mapped parts that hold them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.arrays import view
from ...schemas.ragged import offsets_of
from ...stages.mask.policy import Mask
from ...stages.mask.span_index import SpanIndex
from ..encode.parts import EncodedPart, Spans
from .table import Documents, Table


class Segments:
    """Tokens and spans of documents of the table; the second reading of parts.

    Parts are mapped when they are first needed, and keep one byte per span in memory: whether the mask trains it.
    Segments with other weights than 1 keep four bytes per span.

    Args:
        paths: the files of all parts, in order.
        counts: (parts,) segments of each.
        sources: (parts,) the source of each.
        masks: the mask of each source.
    """

    def __init__(
        self, paths: Sequence[Path], counts: Sequence[int], sources: Sequence[int], masks: Sequence[Mask]
    ) -> None:
        self._paths = paths
        self._masks = masks
        self._part_of_segment = np.repeat(np.arange(len(counts)), counts)
        self._first_segments = offsets_of(counts).tolist()  # of each part
        self.sources: NDArray[np.int64] = np.array(sources, np.int64)[self._part_of_segment]
        """(segments,) the source of each."""
        self._tokens: dict[int, NDArray[np.int32]] = {}
        """Number of a segment, counted over all parts → its tokens; only of parts that are mapped."""
        self._spans: dict[int, Spans] = {}
        """Number of a segment → its spans; of the same segments."""

    @classmethod
    def of(cls, table: Table) -> "Segments":
        """The segments of a table."""
        origins = table.origins
        return cls([place.path for place in table.places], origins.segments, origins.sources, table.masks)

    def _open(self, segments: NDArray[np.int32]) -> None:
        """Map the parts that hold some segments. A part is mapped as a whole, with its other segments, too.

        Args:
            segments: numbers of segments, any number of times.
        """
        for segment in np.unique(segments).tolist():
            if segment in self._tokens:
                continue
            part = int(self._part_of_segment[segment])
            mask = self._masks[self.sources[segment]]
            for number, batch in enumerate(EncodedPart(self._paths[part]).batches, self._first_segments[part]):
                self._tokens[number] = view(batch.column("input_ids").values)
                self._spans[number] = Spans.of(batch, mask)

    def tokens(
        self, documents: Documents, starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
    ) -> list[NDArray[np.int32]]:
        """K views of tokens, a stretch of each document.

        Args:
            starts: (K,) the first token of the stretch in its document; or (1,) for all.
            lengths: (K,) tokens of the stretch.
        """
        self._open(documents.segment)
        # Tokens 2 to 4 of a document that begins at 40 are tokens 42 to 44 of its segment.
        begins = documents.begin + starts
        slices = zip(documents.segment.tolist(), begins.tolist(), (begins + lengths).tolist(), strict=True)
        return [self._tokens[segment][begin:end] for segment, begin, end in slices]

    def spans(self, documents: Documents) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(spans,) where the spans of K documents end, and (spans,) whether the mask trains them; K is at least 1."""
        slices = self._slices(documents)
        return self._column(slices, "ends"), self._column(slices, "supervised")

    def weights(self, documents: Documents) -> NDArray[np.float32]:
        """(spans,) the loss weight of the spans of K documents; that of an untrained span has no effect."""
        weights_of_documents = []
        # The spans from `begin` to `end` of a segment are a document's. `_slices` also maps the segments.
        for segment, begin, end in self._slices(documents):
            weights = self._spans[segment].weights
            if weights is None:
                weights_of_documents.append(np.ones(end - begin, np.float32))
            else:
                weights_of_documents.append(weights[begin:end])
        return np.concatenate(weights_of_documents)

    def index(self, documents: Documents) -> SpanIndex:
        """The spans of K documents, with their kinds, laid end to end."""
        slices = self._slices(documents)
        return SpanIndex.of(
            documents.length,
            documents.span_count,
            ends=self._column(slices, "ends"),
            kind=self._column(slices, "kind"),
            turn=self._column(slices, "turn"),
            supervised=self._column(slices, "supervised"),
        )

    def _column(self, slices: list[tuple[int, int, int]], name: str) -> NDArray[Any]:
        """(spans,) a field of `Spans`, such as `ends`, of the spans of K documents, end to end.

        Args:
            slices: from `_slices`.
        """
        return np.concatenate([getattr(self._spans[segment], name)[begin:end] for segment, begin, end in slices])

    def _slices(self, documents: Documents) -> list[tuple[int, int, int]]:
        """(number of its segment, first span in it, one past the last span) of each document. Maps their parts."""
        self._open(documents.segment)
        ends = (documents.span_begin + documents.span_count).tolist()
        return list(zip(documents.segment.tolist(), documents.span_begin.tolist(), ends, strict=True))
