"""Which runs a mask policy trains. It looks at kinds, turns and flags, never at tokens."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..schemas.rows import Kind


class Policy(StrEnum):
    """What is trained. Of a text, all is; of a prompt and completion that are texts, the completion.

    A person's `train: false` wins over every policy.
    """

    COMPLETION = "completion"
    """Everything after the prompt."""
    ASSISTANT = "assistant"
    """Every turn of the assistant: all that it says and calls, and the end of its turn; never a header."""
    LAST_ASSISTANT = "last_assistant"
    """The last one of these turns."""
    ALL = "all"
    """Every token."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A policy and its switches."""

    policy: Policy = Policy.COMPLETION
    train_end: bool = True
    """Whether the end-of-turn tokens are trained with their turns. `all` trains them in any case."""

    @property
    def needs_turns(self) -> bool:
        """Whether it can say nothing of a conversation whose turns are not proved."""
        if self.policy is Policy.ALL:
            return False
        return self.policy is not Policy.COMPLETION or not self.train_end


_TURNS = (Kind.HISTORY, Kind.HISTORY_END, Kind.ASSISTANT, Kind.END)
_ENDS = (Kind.HISTORY_END, Kind.END)
_ASKED: dict[Policy, tuple[Kind, ...]] = {
    Policy.COMPLETION: (Kind.COMPLETION, Kind.TEXT, Kind.ASSISTANT, Kind.END, Kind.UNPROVED_COMPLETION),
    Policy.ASSISTANT: (Kind.TEXT, *_TURNS),
    Policy.LAST_ASSISTANT: (Kind.TEXT, *_TURNS),
    Policy.ALL: tuple(Kind),
}


def _table(kinds: tuple[Kind, ...]) -> NDArray[np.bool_]:
    table = np.zeros(max(Kind) + 1, dtype=np.bool_)
    table[list(kinds)] = True
    return table


_IS_TURN = _table(_TURNS)
_IS_END = _table(_ENDS)
_IS_UNPROVED = _table((Kind.UNPROVED, Kind.UNPROVED_COMPLETION))


def asked_runs(
    kind: NDArray[np.int8],
    turn: NDArray[np.int16],
    train: NDArray[np.bool_],
    offsets: NDArray[np.integer],
    mask: Mask,
) -> NDArray[np.bool_]:
    """(runs,) whether the mask asks for a run's tokens.

    A person's `train: false` always wins: no policy trains what they took out.

    Args:
        kind, turn, train: (runs,) of `schemas.rows.RUN`.
        offsets: (N + 1,) where each document's runs begin. A document has at least one run.
    """
    table = _table(_ASKED[mask.policy])
    if not mask.train_end and mask.policy is not Policy.ALL:
        table[list(_ENDS)] = False
    asked: NDArray[np.bool_] = table[kind] & train
    if mask.policy in (Policy.ASSISTANT, Policy.LAST_ASSISTANT):
        # A completion that is a text is what an assistant would say; it has no turn.
        asked |= (kind == Kind.COMPLETION) & (turn < 0) & train
    if mask.policy is Policy.LAST_ASSISTANT and len(offsets) > 1:
        said = _IS_TURN[kind]
        last = np.maximum.reduceat(np.where(said, turn, -1), offsets[:-1])
        asked &= ~said | (turn == np.repeat(last, np.diff(offsets)))
    return asked


def unproved_documents(kind: NDArray[np.int8], offsets: NDArray[np.integer]) -> NDArray[np.bool_]:
    """(N,) whether each document is a conversation whose turns are not proved."""
    if len(offsets) < 2:
        return np.zeros(0, dtype=np.bool_)
    out: NDArray[np.bool_] = np.logical_or.reduceat(_IS_UNPROVED[kind], offsets[:-1])
    return out


def asked_turns(
    kind: NDArray[np.int8],
    turn: NDArray[np.int16],
    asked: NDArray[np.bool_],
    offsets: NDArray[np.integer],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(N,) how many turns of the assistant each document has that are asked for, and (N,) those without an end token.

    Args:
        asked: (runs,) from `asked_runs`.
    """
    documents = max(len(offsets) - 1, 0)
    said = _IS_TURN[kind]
    first = said.copy()
    if len(first) > 1:
        first[1:] &= ~said[:-1] | (turn[1:] != turn[:-1])
    first[offsets[:-1]] = said[offsets[:-1]]
    begins = np.flatnonzero(first)
    if not len(begins):
        return np.zeros(documents, dtype=np.int32), np.zeros(documents, dtype=np.int32)
    # The runs between one turn and the next are counted with the former: they are none of a turn's.
    wanted = np.logical_or.reduceat(asked & said, begins)
    ended = np.logical_or.reduceat(_IS_END[kind], begins)
    owner = np.searchsorted(offsets, begins, side="right") - 1
    return (
        np.bincount(owner[wanted], minlength=documents).astype(np.int32),
        np.bincount(owner[wanted & ~ended], minlength=documents).astype(np.int32),
    )


def asked_tokens(
    asked: NDArray[np.bool_],
    ends: NDArray[np.int32],
    offsets: NDArray[np.int64],
    low: NDArray[np.int32] | None = None,
    high: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """(N,) how many tokens of each document are asked for, and (N,) whether its first token is one of them.

    Args:
        asked: (runs,) from `asked_runs`.
        ends: (runs,) where each run ends, in tokens of its document.
        offsets: (N + 1,) where each document's runs begin. A document has at least one run.
        low, high: (N,) count only tokens low..high - 1 of each document; `first` is then of token low.
    """
    if len(offsets) < 2:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_)
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    starts[offsets[:-1]] = 0
    runs = np.diff(offsets)
    from_here = starts if low is None else np.maximum(starts, np.repeat(low, runs))
    to_here = ends if high is None else np.minimum(ends, np.repeat(high, runs))
    sizes = np.where(asked, np.maximum(to_here - from_here, 0), 0)
    first = asked & (from_here < to_here)
    first &= from_here == (0 if low is None else np.repeat(low, runs))
    return (
        np.add.reduceat(sizes, offsets[:-1]).astype(np.int32),
        np.logical_or.reduceat(first, offsets[:-1]),
    )
