"""Converts runs over characters to runs over tokens, for a batch of documents at once.

A token that spans a boundary belongs to the assistant's side if one side is the assistant's, else to the later side; so
it belongs to the later of two parts of a turn. Those between parts of one turn are not counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.ragged import begins_of, offsets_of, starts_of
from ...schemas.rows import (
    ASSISTANT_KINDS,
    ENCODED,
    END_KINDS,
    NEXT_STOP_KINDS,
    PART_KINDS,
    RUN,
    UNPROVED_KINDS,
    RunKind,
)
from ..arrays import lists, numbers
from ..template.rendered import Runs, solid
from .token_spans import Boundaries

_KINDS = max(RunKind) + 1


def kind_table(kinds: Iterable[RunKind]) -> NDArray[np.bool_]:
    """Return a table that tells, for each kind, whether it is one of `kinds`."""
    table = np.zeros(_KINDS, dtype=np.bool_)
    table[list(kinds)] = True
    return table


IS_ASSISTANT = kind_table(ASSISTANT_KINDS)
IS_END = kind_table(END_KINDS)
IS_UNPROVED = kind_table(UNPROVED_KINDS)
IS_NEXT_STOP = kind_table(NEXT_STOP_KINDS)
IS_SAID = kind_table((RunKind.HISTORY, RunKind.ASSISTANT, *PART_KINDS))
"""Assistant turns without end-of-turn tokens."""


def parts_of_turn(kind: NDArray[np.int8], turn: NDArray[np.integer[Any]], train: NDArray[Any]) -> NDArray[np.bool_]:
    """(runs,) whether each run and the next one are two parts of a turn with the same flag or weight; false for the
    last."""
    out = np.zeros(len(kind), dtype=np.bool_)
    said = IS_SAID[kind]
    out[:-1] = said[:-1] & said[1:] & (turn[:-1] == turn[1:]) & (train[:-1] == train[1:]) & (kind[:-1] != kind[1:])
    return out


_MAX_TURN = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, slots=True, eq=False)
class TextRuns:
    """The runs over characters of N documents, one after another. Only the only run of a document may be empty."""

    ends: NDArray[np.int64]
    """(runs,) each ends before this character of its document."""
    kinds: NDArray[np.int8]
    turns: NDArray[np.int64]
    weights: NDArray[np.float32]
    counts: NDArray[np.int64]
    """(N,) number of runs of each document, at least one."""
    inner: NDArray[np.bool_]
    """(runs,) whether another run of the document follows."""

    @classmethod
    def of(cls, documents: Sequence[Runs]) -> "TextRuns":
        """The runs of N documents. Empty runs are left out if the document has others."""
        runs = [solid(one) if not one.ends[0] or len(set(one.ends)) < len(one.ends) else one for one in documents]
        counts = np.fromiter((len(one.ends) for one in runs), np.int64, len(runs))
        total = int(counts.sum())
        inner = np.ones(total, np.bool_)
        inner[np.cumsum(counts) - 1] = False
        return cls(
            np.fromiter(chain.from_iterable(one.ends for one in runs), np.int64, total),
            np.fromiter(chain.from_iterable(one.kinds for one in runs), np.int8, total),
            np.minimum(np.fromiter(chain.from_iterable(one.turns for one in runs), np.int64, total), _MAX_TURN),
            np.fromiter(chain.from_iterable(one.trains for one in runs), np.float32, total),
            counts,
            inner,
        )

    def lists(self) -> pa.ListArray:
        """The runs as Arrow lists, for documents whose `ends` are in tokens."""
        return run_lists(self.ends, self.kinds, self.turns, self.weights, offsets_of(self.counts))

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (B,) the places, in characters, where one run ends and the next begins, and (N + 1,) where each
        document's places begin in that array.
        """
        return self.ends[self.inner], offsets_of(self.counts - 1)

    def tokens(
        self, found: Boundaries, lengths: NDArray[np.int64], prefix: NDArray[np.int64]
    ) -> tuple[pa.ListArray, NDArray[np.int64]]:
        """Return the runs over tokens, and (N,) how many tokens of each document span a boundary.

        Args:
            found: the boundaries, in tokens of the texts.
            lengths: (N,) tokens of each document, including those added around the text.
            prefix: (N,) how many tokens were added before the text; they form a separate run.
        """
        counts, inner, kinds, turns, weights = self.counts, self.inner, self.kinds, self.turns, self.weights
        total = len(kinds)
        owner = np.repeat(np.arange(len(counts)), counts)

        crossing = np.zeros(total, dtype=np.bool_)
        crossing[inner] = found.straddles
        counted = crossing & ~(parts_of_turn(kinds, turns, weights) & inner)
        straddles = np.bincount(owner[counted], minlength=len(counts))

        places = np.zeros(total, dtype=np.int64)
        places[inner] = found.tokens
        said = IS_ASSISTANT[kinds]
        leaving = np.zeros(total, dtype=np.bool_)
        leaving[:-1] = said[:-1] & ~said[1:]
        places += crossing & leaving
        places += prefix[owner]
        places[~inner] = lengths
        # A token that one boundary moved must not be moved again by the next.
        base = starts_of(lengths)[owner]
        places = np.maximum.accumulate(places + base) - base

        if prefix.any():
            has = prefix > 0
            at = starts_of(counts)[has]
            places = np.insert(places, at, prefix[has])
            kinds = np.insert(kinds, at, RunKind.SPECIAL)
            turns = np.insert(turns, at, -1)
            weights = np.insert(weights, at, weights[at])
            counts = counts + has
        return _lists(places, kinds, turns, weights, counts), straddles


def _lists(
    places: NDArray[np.int64],
    kinds: NDArray[np.int8],
    turns: NDArray[np.int64],
    weights: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> pa.ListArray:
    """Runs as Arrow lists, without empty ones; an empty document keeps its last run."""
    offsets = offsets_of(counts)
    keep = places > begins_of(places, offsets)
    kept = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
    keep[(offsets[1:] - 1)[kept == 0]] = True
    return run_lists(places[keep], kinds[keep], turns[keep], weights[keep], offsets_of(np.maximum(kept, 1)))


def run_lists(
    ends: NDArray[np.integer[Any]],
    kinds: NDArray[np.integer[Any]],
    turns: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    offsets: NDArray[np.int64],
) -> pa.ListArray:
    """(runs,) runs and (N + 1,) where those of each document begin as Arrow lists of `schemas.rows.RUN`."""
    columns = (ends.astype(np.int32), kinds.astype(np.int8), turns.astype(np.int16), weights.astype(np.float32))
    structs = pa.StructArray.from_arrays([numbers(one) for one in columns], fields=list(RUN))
    return lists(offsets, structs, ENCODED.field("runs").type)
