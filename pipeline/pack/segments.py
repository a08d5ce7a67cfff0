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
    """Tokens and spans of documents of the table. Parts are mapped when they are first needed, and keep one byte
    per span in memory: whether the mask trains it. Segments with other weights than 1 keep four bytes per span.

    Args:
        paths: the files of all parts, in order.
        counts: (parts,) segments of each.
        sources: (parts,) the source of each.
        masks: the mask of each source.
    """

    def __init__(
        self, paths: Sequence[Path], counts: Sequence[int], sources: Sequence[int], masks: Sequence[Mask]
    ) -> None:
        self._paths, self._masks = paths, masks
        self._part = np.repeat(np.arange(len(counts)), counts)
        self._firsts = offsets_of(counts).tolist()
        self.sources: NDArray[np.int64] = np.array(sources, np.int64)[self._part]
        """(segments,) the source of each."""
        self._tokens: dict[int, NDArray[np.int32]] = {}
        self._spans: dict[int, Spans] = {}

    @classmethod
    def of(cls, table: Table) -> "Segments":
        """The segments of a table."""
        origins = table.origins
        return cls([place.path for place in table.places], origins.segments, origins.sources, table.masks)

    def _open(self, segments: NDArray[np.int32]) -> None:
        """Map the parts of some segments."""
        for number in np.unique(segments).tolist():
            if number in self._tokens:
                continue
            part, mask = int(self._part[number]), self._masks[self.sources[number]]
            for index, batch in enumerate(EncodedPart(self._paths[part]).batches, self._firsts[part]):
                self._tokens[index] = view(batch.column("input_ids").values)
                self._spans[index] = Spans.of(batch, mask)

    def tokens(
        self, some: Documents, starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
    ) -> list[NDArray[np.int32]]:
        """K views of `lengths` tokens, each from `starts` in its document."""
        self._open(some.segment)
        first, tokens = some.begin + starts, self._tokens
        slices = zip(some.segment.tolist(), first.tolist(), (first + lengths).tolist(), strict=True)
        return [tokens[number][a:b] for number, a, b in slices]

    def spans(self, some: Documents) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(spans,) where the spans of K documents end, and (spans,) whether the mask trains them; K is at least 1."""
        ends, supervised = self._columns(some, "ends", "supervised")
        return ends, supervised

    def weights(self, some: Documents) -> NDArray[np.float32]:
        """(spans,) the loss weight of the spans of K documents, if they are trained."""
        found = []
        for number, first, last in self._slices(some):
            weights = self._spans[number].weights
            found.append(np.ones(last - first, np.float32) if weights is None else weights[first:last])
        return np.concatenate(found)

    def index(self, some: Documents) -> SpanIndex:
        """The spans of K documents, with their kinds, laid end to end."""
        ends, kind, turn, supervised = self._columns(some, "ends", "kind", "turn", "supervised")
        return SpanIndex.of(some.length, some.span_count, ends, kind, turn, supervised)

    def _columns(self, some: Documents, *names: str) -> list[NDArray[Any]]:
        slices, spans = self._slices(some), self._spans
        return [np.concatenate([getattr(spans[number], name)[a:b] for number, a, b in slices]) for name in names]

    def _slices(self, some: Documents) -> list[tuple[int, int, int]]:
        self._open(some.segment)
        last = (some.span_begin + some.span_count).tolist()
        return list(zip(some.segment.tolist(), some.span_begin.tolist(), last, strict=True))
