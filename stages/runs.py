"""From runs over characters to runs over tokens, for a batch of documents at once.

A token that stands on both sides of a boundary belongs to what the assistant says, if one side is that; else to the
later side.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.rows import ENCODED, Kind
from .arrays import lists, numbers
from .rendered import Runs, solid
from .spans import Boundaries

_SAID = np.zeros(max(Kind) + 1, dtype=np.bool_)
_SAID[[Kind.HISTORY, Kind.HISTORY_END, Kind.ASSISTANT, Kind.END]] = True
_MAX_TURN = int(np.iinfo(np.int16).max)


@dataclass(slots=True)
class RunBatch:
    """The runs of N documents, one after another: each ends before character `ends` of its document."""

    ends: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    trains: list[bool] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """(N,) runs of each document; at least one."""

    def add(self, runs: Runs) -> None:
        """Append a document. Runs that are empty are left out, if it has others."""
        if not runs.ends[0] or len(set(runs.ends)) < len(runs.ends):
            runs = solid(runs)
        self.ends += runs.ends
        self.kinds += runs.kinds
        self.turns += runs.turns
        self.trains += runs.trains
        self.counts.append(len(runs.ends))

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(B,) places where a run ends and another begins, in characters, and (N + 1,) whose they are."""
        counts = np.array(self.counts, dtype=np.int64)
        inner = np.ones(len(self.ends), dtype=np.bool_)
        inner[np.cumsum(counts) - 1] = False
        offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts - 1, out=offsets[1:])
        return np.array(self.ends, dtype=np.int64)[inner], offsets

    def tokens(
        self, found: Boundaries, lengths: NDArray[np.int64], prefix: NDArray[np.int64]
    ) -> tuple[pa.ListArray, NDArray[np.int64]]:
        """The runs over tokens, and (N,) how many tokens of each document stand on both sides of a boundary.

        Args:
            found: the boundaries, in tokens of the texts.
            lengths: (N,) tokens of each document, those included that were put around the text.
            prefix: (N,) how many of these stand before it; they get a run of their own.
        """
        counts = np.array(self.counts, dtype=np.int64)
        kinds = np.array(self.kinds, dtype=np.int8)
        total, last = len(kinds), np.cumsum(counts) - 1
        inner = np.ones(total, dtype=np.bool_)
        inner[last] = False
        owner = np.repeat(np.arange(len(counts)), counts)

        crossing = np.zeros(total, dtype=np.bool_)
        crossing[inner] = found.straddles
        straddles = np.bincount(owner[crossing], minlength=len(counts))

        places = np.zeros(total, dtype=np.int64)
        places[inner] = found.tokens
        said = _SAID[kinds]
        leaving = np.zeros(total, dtype=np.bool_)
        leaving[:-1] = said[:-1] & ~said[1:]
        places += crossing & leaving
        places += prefix[owner]
        places[last] = lengths
        # What one boundary gave away cannot be given away again by the next.
        base = np.zeros(len(counts), dtype=np.int64)
        np.cumsum(lengths[:-1], out=base[1:])
        places = np.maximum.accumulate(places + base[owner]) - base[owner]

        turns, trains = np.minimum(self.turns, _MAX_TURN), np.array(self.trains, dtype=np.bool_)
        if prefix.any():
            first = np.cumsum(counts) - counts
            has = prefix > 0
            at = first[has]
            places = np.insert(places, at, prefix[has])
            kinds = np.insert(kinds, at, Kind.SPECIAL)
            turns = np.insert(turns, at, -1)
            trains = np.insert(trains, at, True)
            counts = counts + has
        return _lists(places, kinds, turns, trains, counts), straddles


def _lists(
    places: NDArray[np.int64],
    kinds: NDArray[np.int8],
    turns: NDArray[np.int64],
    trains: NDArray[np.bool_],
    counts: NDArray[np.int64],
) -> pa.ListArray:
    """Runs as Arrow lists. Empty ones are left out; an empty document keeps its last."""
    ends = np.cumsum(counts)
    begins = np.zeros_like(places)
    begins[1:] = places[:-1]
    begins[ends - counts] = 0
    keep = places > begins
    kept = np.add.reduceat(keep, ends - counts, dtype=np.int64)
    keep[(ends - 1)[kept == 0]] = True
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(np.maximum(kept, 1), out=offsets[1:])
    structs = pa.StructArray.from_arrays(
        [
            numbers(places[keep].astype(np.int32)),
            numbers(kinds[keep]),
            numbers(turns[keep].astype(np.int16)),
            numbers(trains[keep]),
        ],
        fields=list(ENCODED.field("runs").type.value_type),
    )
    return lists(offsets, structs, ENCODED.field("runs").type)


def token_lists(trained: list[list[bool] | None], lengths: NDArray[np.int64]) -> pa.ListArray:
    """The runs of N documents that came as tokens, from which of these are trained (None: all of them)."""
    places: list[NDArray[np.int64]] = []
    kinds: list[NDArray[np.int8]] = []
    for flags, length in zip(trained, lengths.tolist(), strict=True):
        if flags is None or not length:
            places.append(np.array([length], dtype=np.int64))
            kinds.append(np.array([Kind.COMPLETION], dtype=np.int8))
            continue
        values = np.array(flags, dtype=np.bool_)
        ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, length)
        places.append(ends)
        kinds.append(np.where(values[ends - 1], Kind.COMPLETION, Kind.PROMPT).astype(np.int8))
    counts = np.fromiter(map(len, places), np.int64, len(places))
    flat = np.concatenate(places)
    return _lists(flat, np.concatenate(kinds), np.full(len(flat), -1), np.ones(len(flat), np.bool_), counts)
