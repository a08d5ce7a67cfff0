"""The spans of several documents laid end to end, for queries about any token.

K documents, T tokens in all. A *place* is a number from 0 to T: a token, or a cut before it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from ...schemas.rows import SpanKind
from ..tokenize.token_spans import IS_ASSISTANT, IS_NEXT_STOP


@dataclass(frozen=True, slots=True, eq=False)
class SpanIndex:
    """Spans without gaps from 0 to T, in order."""

    bases: NDArray[np.int64]
    """(K + 1,) the place where each document begins."""
    ends: NDArray[np.int64]
    """(spans,) the place where each span ends."""
    kind: NDArray[np.int8]
    """(spans,) what each span is, as `schemas.rows.SpanKind`."""
    turn: NDArray[np.int16]
    """(spans,) the turn that each span belongs to."""
    supervised: NDArray[np.bool_]
    """(spans,) whether the mask trains the span."""
    before: NDArray[np.int64]
    """(spans + 1,) supervised tokens before each span."""
    begins: NDArray[np.int64]
    """(spans + 1,) the place where each span begins, then T."""

    @classmethod
    def of(
        cls,
        lengths: NDArray[np.integer[Any]],
        span_counts: NDArray[np.integer[Any]],
        ends: NDArray[np.int32],
        kind: NDArray[np.int8],
        turn: NDArray[np.int16],
        supervised: NDArray[np.bool_],
    ) -> "SpanIndex":
        """Lay the spans of documents end to end.

        Args:
            lengths: (K,) tokens of each document.
            span_counts: (K,) spans of each.
            ends: (spans,) where each span ends within its document.
        """
        bases = offsets_of(lengths)
        places = np.repeat(bases[:-1], span_counts) + ends
        begins = np.zeros(len(places) + 1, dtype=np.int64)
        begins[1:] = places
        before = offsets_of(np.where(supervised, np.diff(begins), 0))
        return cls(bases, places, kind, turn, supervised, before, begins)

    def supervised_before(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the supervised tokens before each place."""
        span = np.searchsorted(self.ends, places, side="left")  # the span that ends at or after it
        inside = np.append(self.supervised, False)[span]
        return self.before[span] + np.where(inside, places - self.begins[span], 0)

    def supervised_at(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the token at each place is supervised; T has none."""
        return np.append(self.supervised, False)[np.searchsorted(self.ends, places, side="right")]

    def through_turn(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a cut at each place goes through a trained turn: the tokens on both sides belong to it and are
        trained.

        A plain text has no turns. Places must not be the first of a document.
        """
        left = np.searchsorted(self.ends, places - 1, side="right")
        right = np.searchsorted(self.ends, places, side="right")
        one, other = self.kind[left], self.kind[right]
        same = (self.turn[left] == self.turn[right]) & ((one == other) | (IS_ASSISTANT[one] & IS_ASSISTANT[other]))
        out: NDArray[np.bool_] = same & self.supervised[left] & self.supervised[right] & (other != SpanKind.TEXT)
        return out

    def turn_places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places where a conversation may be cut: before user messages, and after assistant turns.

        Both are ascending. A line end that the template writes after a turn is not skipped yet.
        """
        begins = self.begins[:-1]
        inner = (np.diff(self.begins) > 0) & ~np.isin(begins, self.bases)
        after = np.zeros(len(self.ends), dtype=np.bool_)
        after[1:] = IS_ASSISTANT[self.kind[:-1]] & ~IS_ASSISTANT[self.kind[1:]]
        user = self.kind == SpanKind.USER
        stop = np.append(IS_NEXT_STOP[self.kind[:-1]] & user[1:], False)  # such a message begins with this token
        user[1:] &= ~stop[:-1]
        user |= stop
        return begins[inner & user], begins[inner & after]
