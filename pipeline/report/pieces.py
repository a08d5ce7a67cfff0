"""The pieces of documents that are split before packing, at several lengths, cut just as a run at that length would.

Only here does the sweep read tokens, because they show where lines and paragraphs end. They are read once.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stages.forecast.length_stats import SplitPieceLengths
from ...stages.mask.policy import Mask
from ..encode.parts import EncodedPart
from ..pack.segments import Segments
from ..pack.split import Splitter, breaks_for, cut_documents, places_of
from ..pack.table import Documents


class PieceTable:
    """Cuts long documents.

    Args:
        splitter: how to split; its capacity is ignored.
        capacities: the lengths to cut at.
    """

    def __init__(self, splitter: Splitter, capacities: Sequence[int]) -> None:
        self._splitter, self._breaks = splitter, breaks_for(splitter)
        self._made: dict[int, list[tuple[NDArray[np.int32], ...]]] = {one: [] for one in capacities}

    def add(
        self, path: Path, mask: Mask, some: Documents, taken: NDArray[np.bool_], numbers: NDArray[np.int32]
    ) -> None:
        """Cut the taken documents of a part that are too long for at least one length.

        Args:
            path, mask: of the part.
            some: (N,) its documents.
            numbers: (N,) each document's number in `pieces`, ascending among the taken ones.
        """
        rows = np.flatnonzero(taken & (some.high - some.low > min(self._made)))
        if not len(rows):
            return
        segments = Segments([path], [len(EncodedPart(path).batches)], [0], [mask])
        some = replace(some, segment=some.segment - some.segment[0])
        for number in np.unique(some.segment[rows]).tolist():
            mine = rows[some.segment[rows] == number]
            long = some.at(mine)
            runs, tokens = segments.index(long), segments.tokens(long, np.zeros(1, np.int32), long.length)
            places = places_of(runs, np.concatenate(tokens), self._splitter, self._breaks)
            low, high = runs.bases[:-1] + long.low, runs.bases[:-1] + long.high
            for capacity, made in self._made.items():
                over = np.flatnonzero(high - low > capacity)
                if not len(over):
                    continue
                # A run refuses an overlap of more than half the length; the sweep uses half instead.
                how = replace(self._splitter, capacity=capacity, overlap=min(self._splitter.overlap, capacity // 2))
                found = cut_documents(runs, low[over], high[over], places, how)
                cut, stays = found.cut, found.stays
                columns = (numbers[mine[over]][cut.document], cut.end - cut.start, found.labels, cut.fresh - cut.start)
                made.append(tuple(column[stays].astype(np.int32) for column in columns))

    def pieces(self) -> dict[int, SplitPieceLengths]:
        """Length → pieces, for the lengths that some document exceeds."""
        out = {}
        for capacity, made in self._made.items():
            if made:
                owners, lengths, labels, overlap = (np.concatenate(column) for column in zip(*made, strict=True))
                out[capacity] = SplitPieceLengths(owners, lengths, labels, overlap if self._splitter.overlap else None)
        return out
