"""The runs of some documents laid end to end, to be asked about any token.

K documents, T tokens in all. A *place* is a number from 0 to T: that of a token, or of a cut before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.rows import Kind

_ASSISTANT = np.zeros(max(Kind) + 1, dtype=np.bool_)
_ASSISTANT[[Kind.HISTORY, Kind.HISTORY_END, Kind.ASSISTANT, Kind.END]] = True


@dataclass(frozen=True, slots=True, eq=False)
class RunIndex:
    """Runs without gaps from 0 to T, in order."""

    bases: NDArray[np.int64]
    """(K + 1,) the place where each document begins."""
    ends: NDArray[np.int64]
    """(runs,) the place where each run ends."""
    kind: NDArray[np.int8]
    """(runs,)"""
    turn: NDArray[np.int16]
    """(runs,)"""
    asked: NDArray[np.bool_]
    """(runs,) whether the mask asks for it."""
    before: NDArray[np.int64]
    """(runs + 1,) tokens asked for before each run."""
    begins: NDArray[np.int64]
    """(runs + 1,) the place where each run begins; at last T."""

    @classmethod
    def of(
        cls,
        lengths: NDArray[np.integer[Any]],
        run_counts: NDArray[np.integer[Any]],
        ends: NDArray[np.int32],
        kind: NDArray[np.int8],
        turn: NDArray[np.int16],
        asked: NDArray[np.bool_],
    ) -> "RunIndex":
        """Lay the runs of documents end to end.

        Args:
            lengths: (K,) tokens of each document.
            run_counts: (K,) runs of each.
            ends: (runs,) where each run ends within its document.
        """
        bases = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=bases[1:])
        places = np.repeat(bases[:-1], run_counts) + ends
        begins = np.zeros(len(places) + 1, dtype=np.int64)
        begins[1:] = places
        before = np.zeros(len(places) + 1, dtype=np.int64)
        np.cumsum(np.where(asked, np.diff(begins), 0), out=before[1:])
        return cls(bases, places, kind, turn, asked, before, begins)

    @classmethod
    def join(cls, indices: "Sequence[RunIndex]") -> "RunIndex":
        """Those of several stretches of documents, laid end to end."""
        shifts = np.cumsum([0, *(int(one.begins[-1]) for one in indices)])
        bases = [one.bases[:-1] + shift for one, shift in zip(indices, shifts[:-1], strict=True)]
        ends = np.concatenate([one.ends + shift for one, shift in zip(indices, shifts[:-1], strict=True)])
        asked = np.concatenate([one.asked for one in indices])
        begins = np.concatenate([np.zeros(1, np.int64), ends])
        before = np.zeros(len(ends) + 1, dtype=np.int64)
        np.cumsum(np.where(asked, np.diff(begins), 0), out=before[1:])
        return cls(
            np.append(np.concatenate(bases), shifts[-1]),
            ends,
            np.concatenate([one.kind for one in indices]),
            np.concatenate([one.turn for one in indices]),
            asked,
            before,
            begins,
        )

    def asked_before(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens before each place the mask asks for."""
        run = np.searchsorted(self.ends, places, side="left")  # the run that ends at or after it
        inside = np.append(self.asked, False)[run]
        return self.before[run] + np.where(inside, places - self.begins[run], 0)

    def asked_at(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the mask asks for the token of each place, which is below T."""
        return self.asked[np.searchsorted(self.ends, places, side="right")]

    def through_turn(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a cut at each place parts a trained turn: the tokens on both sides belong to it, and are trained.

        A text has no turns. No place is the first of its document.
        """
        left = np.searchsorted(self.ends, places - 1, side="right")
        right = np.searchsorted(self.ends, places, side="right")
        one, other = self.kind[left], self.kind[right]
        same = (self.turn[left] == self.turn[right]) & ((one == other) | (_ASSISTANT[one] & _ASSISTANT[other]))
        out: NDArray[np.bool_] = same & self.asked[left] & self.asked[right] & (other != Kind.TEXT)
        return out

    def turn_places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places where a conversation may be cut: before a user's message; after any of the assistant's turns.

        Both rise. They are those of the runs; a template's line end after the turn is still to be skipped.
        """
        begins = self.begins[:-1]
        inner = (np.diff(self.begins) > 0) & ~np.isin(begins, self.bases)
        after = np.zeros(len(self.ends), dtype=np.bool_)
        after[1:] = _ASSISTANT[self.kind[:-1]] & ~_ASSISTANT[self.kind[1:]]
        return begins[inner & (self.kind == Kind.USER)], begins[inner & after]
