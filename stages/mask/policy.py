"""Decides which spans a mask trains, from kinds, turns and weights, never from tokens."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import (
    ASSISTANT_KINDS,
    CALL_KINDS,
    COMPLETION_KINDS,
    END_KINDS,
    NEXT_STOP_KINDS,
    THOUGHT_KINDS,
    SpanKind,
)
from ...schemas.tables.masks import POLICIES
from ..tokenize.token_spans import IS_ASSISTANT, IS_END, IS_NEXT_STOP

if TYPE_CHECKING:  # workers import this, and should not import pydantic
    from ...schemas.config.source import MaskConfig, Stop, Thoughts, ToolCalls

TRAINED_KINDS: dict[str, tuple[SpanKind, ...]] = {
    "completion": (SpanKind.TEXT, *COMPLETION_KINDS),
    "assistant": (SpanKind.TEXT, *ASSISTANT_KINDS),
    "last_assistant": (SpanKind.TEXT, *ASSISTANT_KINDS),
    "all": tuple(SpanKind),
}
"""The kinds that each policy trains, before the other keys of the mask take some out."""
_IN_LAST_TURN = 2
"""The value in `Mask.table` of kinds that are trained in the last turn of the assistant."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which tokens are trained: the keys of `MaskConfig` that decide it, with their defaults."""

    policy: str = "completion"
    """A key of `TRAINED_KINDS`."""
    train_end: bool = True
    """Whether the end-of-turn token is trained with its turn."""
    thoughts: "Thoughts" = "train"
    """`train` as the rest of their turn, `mask`, or `last`: only in the last turn of the assistant."""
    tool_calls: "ToolCalls" = "train"
    """`train` as the rest of their turn, or `mask`."""
    stop: "Stop" = "turn"
    """`auto` also trains a stop token in the next message's header, with the turn before it; `turn` does not."""

    @classmethod
    def of(cls, config: "MaskConfig") -> "Mask":
        """The mask that the configuration describes."""
        return cls(**{key.name: getattr(config, key.name) for key in fields(cls)})

    @property
    def ends_in_next_headers(self) -> bool:
        """Whether a stop token in the next message's header counts as the end of the turn before it, not as a part of
        the header.
        """
        return self.stop == "auto" and self.train_end and not POLICIES[self.policy].trains_every_token

    @property
    def needs_turns(self) -> bool:
        """Whether the mask cannot be applied to a conversation whose turns were not located. `completion` can, if it
        treats ends, thoughts and calls like the rest; so can `all`, which trains ends in any case.
        """
        policy = POLICIES[self.policy]
        treats_ends_apart = not self.train_end and not policy.trains_every_token
        treats_parts_apart = self.thoughts != "train" or self.tool_calls != "train"
        return policy.trains_turns or treats_ends_apart or treats_parts_apart

    def table(self) -> NDArray[np.int8]:
        """(kinds,) whether spans of a kind are trained: 0 no, 1 yes, 2 in the last turn of the assistant."""
        policy = POLICIES[self.policy]
        table = np.zeros(max(SpanKind) + 1, np.int8)
        table[list(TRAINED_KINDS[self.policy])] = 1
        if self.ends_in_next_headers:
            table[list(NEXT_STOP_KINDS)] = 1
            # The end of a turn before the completion, which some policies do not train.
            table[SpanKind.HISTORY_STOP_IN_NEXT_HEADER] = SpanKind.HISTORY in TRAINED_KINDS[self.policy]
        if policy.trains_last_turn_only:
            table[(IS_ASSISTANT | IS_NEXT_STOP) & (table > 0)] = _IN_LAST_TURN
        # From here on, keys only take out what is trained so far.
        if not self.train_end and not policy.trains_every_token:
            table[list(END_KINDS)] = 0
        if self.tool_calls == "mask":
            table[list(CALL_KINDS)] = 0
        thoughts = list(THOUGHT_KINDS)
        if self.thoughts == "mask":
            table[thoughts] = 0
        if self.thoughts == "last":
            # Not where the policy does not train thoughts at all.
            table[thoughts] = np.where(table[thoughts] > 0, _IN_LAST_TURN, 0)
        return table


def supervised_spans(
    kind: NDArray[np.int8],
    turn: NDArray[np.int16],
    weights: NDArray[np.float32],
    offsets: NDArray[np.integer],
    mask: Mask,
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """(spans,) whether the mask trains a span's tokens; and (spans,) their loss weight, if it does.

    A weight of 0, as of `train: false`, overrides every policy. A stop token in the next message's header has the
    weight of the turn that it ends, if the mask trains it as that end. If not, it is a part of the header like any
    other, and has the smaller weight of the two messages.

    Args:
        kind, turn, weights: (spans,) of `schemas.rows.SPAN`.
        offsets: (N + 1,) where each document's spans begin. A document has at least one span.
    """
    is_next_stop = IS_NEXT_STOP[kind[:-1]]
    if is_next_stop.any() and not mask.ends_in_next_headers:
        # Such a token comes with the weight of the turn before it; the next span, the rest of the header, has its own.
        weights = weights.copy()
        weights[:-1][is_next_stop] = np.minimum(weights[:-1], weights[1:])[is_next_stop]
    trains = mask.table()[kind]
    if POLICIES[mask.policy].trains_turns:
        # A plain-text completion counts as the assistant's, but has no turn.
        trains[(kind == SpanKind.COMPLETION) & (turn < 0)] = 1
    supervised: NDArray[np.bool_] = (trains > 0) & (weights > 0)
    only_in_last_turn = trains == _IN_LAST_TURN
    if only_in_last_turn.any():
        # (N,) of each document. Documents whose spans have the turns 1 3 and 1 1 have the last turns 3 and 1, which are
        # repeated for each of their spans: 3 3 1 1.
        last_turns = np.maximum.reduceat(np.where(IS_ASSISTANT[kind], turn, -1), offsets[:-1])
        supervised &= ~only_in_last_turn | (turn == np.repeat(last_turns, np.diff(offsets)))
    return supervised, weights


def supervised_turns(
    kind: NDArray[np.int8],
    turn: NDArray[np.int16],
    supervised: NDArray[np.bool_],
    offsets: NDArray[np.integer],
    next_stops: NDArray[np.bool_],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (N,) the number of trained assistant turns of each document, and (N,) how many of them lack an end-of-turn
    token.

    Args:
        kind, turn, offsets: as `supervised_spans` takes them.
        supervised: (spans,) from `supervised_spans`.
        next_stops: (spans,) whether each is a token of the next header that is trained as the end of a turn.
    """
    document_count = len(offsets) - 1
    begins = _turn_begins(kind, turn, offsets)
    # Each turn reaches here to the begin of the next one. So a stop in the header after a turn counts as its end; other
    # spans in between are of users and headers, and are neither the assistant's nor ends.
    is_trained = np.logical_or.reduceat(supervised & IS_ASSISTANT[kind], begins)
    has_stop = np.logical_or.reduceat(IS_END[kind] | next_stops, begins)
    document = np.searchsorted(offsets, begins, side="right") - 1
    return (
        np.bincount(document[is_trained], minlength=document_count).astype(np.int32),
        np.bincount(document[is_trained & ~has_stop], minlength=document_count).astype(np.int32),
    )


def _turn_begins(kind: NDArray[np.int8], turn: NDArray[np.int16], offsets: NDArray[np.integer]) -> NDArray[np.int64]:
    """(turns,) the first span of each assistant turn, of spans and offsets as in `supervised_turns`.

    Of the spans PROMPT, THOUGHT, ASSISTANT, END, PROMPT, ASSISTANT, with the turns 0 1 1 1 2 3: 1 and 5.
    """
    in_turn = IS_ASSISTANT[kind]
    begins_turn = in_turn.copy()
    if len(begins_turn) > 1:
        begins_turn[1:] &= ~in_turn[:-1] | (turn[1:] != turn[:-1])
    # The span before a document's first one is another document's, whose turn may have the same number.
    begins_turn[offsets[:-1]] = in_turn[offsets[:-1]]
    return np.flatnonzero(begins_turn)
