"""The pieces of documents that are split before packing, at several lengths, cut just as a run at that length would.

Only here does the sweep read tokens, because they show where lines and paragraphs end. They are read once. Documents
are cut in batches of some million tokens, all in step, so the longest document of a batch decides the number of steps.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stages.forecast.length_stats import SplitPieceLengths
from ...stages.mask.policy import Mask
from ...stages.mask.run_index import RunIndex
from ...stages.select.split import Places
from ..encode.parts import EncodedPart
from ..pack.segments import Segments
from ..pack.split import Splitter, breaks_for, cut_documents, places_of
from ..pack.table import Documents

AT_ONCE = 1 << 25
"""Tokens of the documents that are cut together; about 100 MB with the possible places of cuts."""


class PieceTable:
    """Cuts long documents, chunk by chunk.

    Args:
        splitter: how to split; its capacity is ignored.
        capacities: the lengths to cut at.
    """

    def __init__(self, splitter: Splitter, capacities: Sequence[int]) -> None:
        self._splitter = splitter
        self._breaks = breaks_for(splitter)
        self._made: dict[int, list[tuple[NDArray[np.int32], ...]]] = {one: [] for one in capacities}
        self._least = min(capacities)
        self._owners: list[NDArray[np.int32]] = []
        self._stretches: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._runs: list[RunIndex] = []
        self._places: list[Places] = []
        self._size = 0

    def add(
        self, path: Path, mask: Mask, some: Documents, taken: NDArray[np.bool_], numbers: NDArray[np.int32]
    ) -> None:
        """Add the taken documents of a part that are too long for at least one length.

        Args:
            path, mask: of the part.
            some: (N,) its documents.
            numbers: (N,) each document's number in `pieces`, ascending among the taken ones.
        """
        rows = np.flatnonzero(taken & (some.high - some.low > self._least))
        if not len(rows):
            return
        segments = Segments([path], [len(EncodedPart(path).batches)], [mask])
        some = replace(some, segment=some.segment - some.segment[0])
        for number in np.unique(some.segment[rows]).tolist():
            mine = rows[some.segment[rows] == number]
            long = some.at(mine)
            runs, tokens = segments.index(long), segments.tokens(long, np.zeros(1, np.int32), long.length)
            places = places_of(runs, np.concatenate(tokens), self._splitter, self._breaks)
            bases = runs.bases[:-1] + self._size
            self._owners.append(numbers[mine])
            self._stretches.append((bases + long.low, bases + long.high))
            self._runs.append(runs)
            self._places.append(_moved(places, self._size))
            self._size += int(runs.bases[-1])
            if self._size >= AT_ONCE:
                self._cut()

    def pieces(self) -> dict[int, SplitPieceLengths]:
        """Length → pieces, for the lengths that some document exceeds."""
        self._cut()
        out = {}
        for capacity, made in self._made.items():
            if made:
                owners, lengths, labels, overlap = (np.concatenate(column) for column in zip(*made, strict=True))
                out[capacity] = SplitPieceLengths(owners, lengths, labels, overlap if self._splitter.overlap else None)
        return out

    def _cut(self) -> None:
        """Cut the collected documents at every length."""
        if not self._owners:
            return
        owners, runs = np.concatenate(self._owners), RunIndex.join(self._runs)
        low, high = (np.concatenate(column) for column in zip(*self._stretches, strict=True))
        places = _joined(self._places)
        for capacity, made in self._made.items():
            long = np.flatnonzero(high - low > capacity)
            if not len(long):
                continue
            # A run refuses an overlap of more than half the length; the sweep uses half instead.
            how = replace(self._splitter, capacity=capacity, overlap=min(self._splitter.overlap, capacity // 2))
            found = cut_documents(runs, low[long], high[long], places, how)
            cut, stays = found.cut, found.stays
            columns = (owners[long][cut.document], cut.end - cut.start, found.labels, cut.fresh - cut.start)
            made.append(tuple(column[stays].astype(np.int32) for column in columns))
        self._owners, self._stretches, self._runs, self._places, self._size = [], [], [], [], 0


def _moved(places: Places, shift: int) -> Places:
    return Places([one + shift for one in places.turns], [one + shift for one in places.lines])


def _joined(several: Sequence[Places]) -> Places:
    """Join the places of consecutive stretches. All stretches have the same kinds of places."""
    turns, lines = (zip(*(getattr(one, kind) for one in several), strict=True) for kind in ("turns", "lines"))
    return Places([np.concatenate(one) for one in turns], [np.concatenate(one) for one in lines])
