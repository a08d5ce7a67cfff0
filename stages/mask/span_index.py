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
            kind, turn, supervised: (spans,) as the fields of the same names.
        """
        bases = offsets_of(lengths)
        # Documents of 5 and 4 tokens with spans that end at 2, 5 and 4: the places 2, 5 and 9.
        end_places = np.repeat(bases[:-1], span_counts) + ends
        begins = np.zeros(len(end_places) + 1, dtype=np.int64)
        begins[1:] = end_places
        # A running sum of the lengths of the supervised spans.
        before = offsets_of(np.where(supervised, np.diff(begins), 0))
        return cls(
            bases=bases,
            ends=end_places,
            kind=kind,
            turn=turn,
            supervised=supervised,
            before=before,
            begins=begins,
        )

    def supervised_before(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the supervised tokens before each place, of all documents before it.

        If the spans end at 2, 5 and 9, and the second and third are supervised, then before the place 7 there are
        3 + 2 = 5: all of the second, and the first two of the third.
        """
        span = np.searchsorted(self.ends, places, side="left")  # the first that ends at the place or after it
        # One more, not supervised: without documents there is no span that ends at the place 0.
        in_supervised = np.append(self.supervised, False)[span]
        return self.before[span] + np.where(in_supervised, places - self.begins[span], 0)

    def supervised_at(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the token at each place is supervised; False for T, the place after the last token."""
        # The span that ends behind the place. For T there is none: one more, not supervised, stands for it.
        return np.append(self.supervised, False)[np.searchsorted(self.ends, places, side="right")]

    def through_turn(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a cut at each place goes through a trained turn: the tokens on both sides belong to it and are
        trained.

        A plain text has no turns. No place may be the first of a document: the token before it is of another document.
        Of the spans ASSISTANT to 4 and END to 5, of one turn and both trained, a cut at 4 goes through the turn, and
        one at 5 does not.
        """
        left = np.searchsorted(self.ends, places - 1, side="right")
        right = np.searchsorted(self.ends, places, side="right")
        left_kind = self.kind[left]
        right_kind = self.kind[right]
        # Answer, thought and call are kinds of one turn.
        same_kind = (left_kind == right_kind) | (IS_ASSISTANT[left_kind] & IS_ASSISTANT[right_kind])
        same_turn = (self.turn[left] == self.turn[right]) & same_kind & (right_kind != SpanKind.TEXT)
        through: NDArray[np.bool_] = same_turn & self.supervised[left] & self.supervised[right]
        return through

    def turn_places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places where a conversation may be cut: before user messages, and after assistant turns.

        Both are ascending. A line end that the template writes after a turn still stands after the place; the caller
        skips it.
        """
        begins = self.begins[:-1]
        # An empty span holds no place, and where a document begins there is nothing to cut.
        may_cut = (np.diff(self.begins) > 0) & ~np.isin(begins, self.bases)
        after_assistant = np.zeros(len(self.ends), dtype=np.bool_)
        after_assistant[1:] = IS_ASSISTANT[self.kind[:-1]] & ~IS_ASSISTANT[self.kind[1:]]
        # Where a stop token stands in the header of a user's message, the message begins with it: of the spans
        # ASSISTANT, STOP_IN_NEXT_HEADER, USER, the cut is before the second.
        is_user = self.kind == SpanKind.USER
        is_stop_before_user = np.append(IS_NEXT_STOP[self.kind[:-1]] & is_user[1:], False)
        before_user = is_user.copy()
        before_user[1:] &= ~is_stop_before_user[:-1]
        before_user |= is_stop_before_user
        return begins[may_cut & before_user], begins[may_cut & after_assistant]
