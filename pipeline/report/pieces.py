"""What documents are cut into where they are split before packing: at each of several lengths, as a run at it would.

Only here does the sweep need tokens, because lines and paragraphs end where they say. They are read once, and documents
are cut a few millions of tokens at a time: all of them in step, so that the longest of a batch decides how many steps.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...stages.runindex import RunIndex
from ...stages.split import Places
from ...stages.stock import Pieces
from ..catalogue import Catalogue
from ..closeup import close_up
from ..splitting import Splitter, breaks_for, cut_documents, places_of

AT_ONCE = 1 << 25
"""Tokens of the documents that are cut together: some 100 MB with the places where they may be."""


class PieceTable:
    """Cuts what is too long, lot by lot.

    Args:
        splitter: how; its capacity does not matter.
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

    def add(self, catalogue: Catalogue, taken: NDArray[np.bool_], numbers: NDArray[np.int32]) -> None:
        """Add those documents of a catalogue that are taken and too long for any of the lengths.

        Args:
            taken: (N,)
            numbers: (N,) what each is called in `pieces`, rising among the taken ones.
        """
        documents = np.flatnonzero(taken & (catalogue.high - catalogue.low > self._least))
        for close in close_up(catalogue, documents, self._splitter.mask):
            mine = documents[close.first : close.last]
            places, bases = places_of(close, self._splitter, self._breaks), close.runs.bases[:-1] + self._size
            self._owners.append(numbers[mine])
            self._stretches.append((bases + catalogue.low[mine], bases + catalogue.high[mine]))
            self._runs.append(close.runs)
            self._places.append(_moved(places, self._size))
            self._size += int(close.runs.bases[-1])
            if self._size >= AT_ONCE:
                self._cut()

    def pieces(self) -> dict[int, Pieces]:
        """By length; only of those that some document is longer than."""
        self._cut()
        out = {}
        for capacity, made in self._made.items():
            if made:
                owners, lengths, labels, overlap = (np.concatenate(column) for column in zip(*made, strict=True))
                out[capacity] = Pieces(owners, lengths, labels, overlap if self._splitter.overlap else None)
        return out

    def _cut(self) -> None:
        """Cut what is held, at every length."""
        if not self._owners:
            return
        owners, runs = np.concatenate(self._owners), RunIndex.join(self._runs)
        low, high = (np.concatenate(column) for column in zip(*self._stretches, strict=True))
        places = _joined(self._places)
        for capacity, made in self._made.items():
            long = np.flatnonzero(high - low > capacity)
            if not len(long):
                continue
            # A run at a length refuses more overlap than half of it; the sweep does with as much as that.
            how = replace(self._splitter, capacity=capacity, overlap=min(self._splitter.overlap, capacity // 2))
            found = cut_documents(runs, low[long], high[long], places, how)
            cut, stays = found.cut, found.stays
            columns = (owners[long][cut.document], cut.end - cut.start, found.labels, cut.fresh - cut.start)
            made.append(tuple(column[stays].astype(np.int32) for column in columns))
        self._owners, self._stretches, self._runs, self._places, self._size = [], [], [], [], 0


def _moved(places: Places, shift: int) -> Places:
    return Places([one + shift for one in places.turns], [one + shift for one in places.lines])


def _joined(several: Sequence[Places]) -> Places:
    """Of stretches that lie end to end; every one has the same kinds."""
    turns, lines = (zip(*(getattr(one, kind) for one in several), strict=True) for kind in ("turns", "lines"))
    return Places([np.concatenate(one) for one in turns], [np.concatenate(one) for one in lines])
