"""Decides which runs a mask policy trains, from kinds, turns and flags, never from tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import begins_of
from ...schemas.rows import (
    ASSISTANT_KINDS,
    CALL_KINDS,
    COMPLETION_KINDS,
    END_KINDS,
    NEXT_STOP_KINDS,
    THOUGHT_KINDS,
    RunKind,
)
from ..tokenize.token_runs import IS_ASSISTANT, IS_END, IS_MIXED, IS_NEXT_STOP, IS_UNPROVED, kind_table

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig
    from ...schemas.config.mask import MaskConfig


class Policy(StrEnum):
    """What is trained. A plain text is trained whole; for a plain prompt and completion, only the completion is
    trained.

    `train: false` in the data overrides every policy.
    """

    COMPLETION = "completion"
    """Everything after the prompt."""
    ASSISTANT = "assistant"
    """Every assistant turn: its content, tool calls and end of turn, but no header."""
    LAST_ASSISTANT = "last_assistant"
    """The last assistant turn."""
    ALL = "all"
    """Every token."""


class Thoughts(StrEnum):
    """Which thoughts are trained, of those that the policy selects."""

    TRAIN = "train"
    MASK = "mask"
    LAST = "last"
    """Those of the last assistant turn."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A policy and its switches."""

    policy: Policy = Policy.COMPLETION
    train_end: bool = True
    """Whether end-of-turn tokens are trained with their turns. `all` always trains them."""

    thoughts: Thoughts = Thoughts.TRAIN
    tool_calls: bool = True
    """Whether tool calls are trained with their turns."""
    next_stops: bool = False
    """Whether a stop token in the next message's header is trained with the turn that it ends."""

    @classmethod
    def of(cls, config: "MaskConfig") -> "Mask":
        """The mask that the configuration describes."""
        thoughts, calls = Thoughts(config.thoughts), config.tool_calls == "train"
        return cls(Policy(config.policy), config.train_end, thoughts, calls, config.stop == "auto")

    @classmethod
    def of_sources(cls, config: "RunConfig") -> "tuple[Mask, ...]":
        """The mask of each source, in their order."""
        return tuple(cls.of(config.mask_of(source)) for source in config.sources)

    @classmethod
    def of_plan(cls, config: Mapping[str, Any]) -> "dict[str, Mask]":
        """The mask of each source of a finished run, from the configuration in its plan."""
        masks = {source["name"]: source.get("mask", config["mask"]) for source in config["sources"]}
        return {
            name: cls(
                Policy(mask["policy"]),
                mask["train_end"],
                Thoughts(mask["thoughts"]),
                mask["tool_calls"] == "train",
                mask["stop"] == "auto",
            )
            for name, mask in masks.items()
        }

    @property
    def needs_parts(self) -> bool:
        """Whether the mask treats parts of a turn differently, so that it needs to know where they are."""
        return self.thoughts is not Thoughts.TRAIN or not self.tool_calls

    @property
    def ends_in_next_headers(self) -> bool:
        """Whether a stop token in a header counts as the end of the turn before it, not as a part of the header."""
        return self.next_stops and self.train_end and self.policy is not Policy.ALL

    @property
    def needs_turns(self) -> bool:
        """Whether the policy cannot be applied to a conversation whose turns were not located. `completion` can, if it
        trains ends; parts that the mask treats differently are `needs_parts`.
        """
        if self.policy is Policy.ALL:
            return self.needs_parts
        return self.policy is not Policy.COMPLETION or not self.train_end


_SUPERVISED: dict[Policy, tuple[RunKind, ...]] = {
    Policy.COMPLETION: (RunKind.TEXT, *COMPLETION_KINDS),
    Policy.ASSISTANT: (RunKind.TEXT, *ASSISTANT_KINDS),
    Policy.LAST_ASSISTANT: (RunKind.TEXT, *ASSISTANT_KINDS),
    Policy.ALL: tuple(RunKind),
}


def supervised_runs(
    kind: NDArray[np.int8],
    turn: NDArray[np.int16],
    train: NDArray[np.bool_],
    offsets: NDArray[np.integer],
    mask: Mask,
) -> NDArray[np.bool_]:
    """(runs,) whether the mask trains a run's tokens.

    `train: false` in the data overrides every policy.

    Args:
        kind, turn, train: (runs,) of `schemas.rows.RUN`.
        offsets: (N + 1,) where each document's runs begin. A document has at least one run.
    """
    table = kind_table(_SUPERVISED[mask.policy])
    if (borrowed := IS_NEXT_STOP[kind]).any():
        if mask.ends_in_next_headers:
            table[list(NEXT_STOP_KINDS)] = True
            table[RunKind.HISTORY_STOP_IN_NEXT_HEADER] = mask.policy is not Policy.COMPLETION
        else:  # it is a header like any other, so the next message's flag counts too
            train = train.copy()
            train[:-1] &= ~borrowed[:-1] | train[1:]
    if not mask.train_end and mask.policy is not Policy.ALL:
        table[list(END_KINDS)] = False
    if not mask.tool_calls:
        table[list(CALL_KINDS)] = False
    if mask.thoughts is Thoughts.MASK:
        table[list(THOUGHT_KINDS)] = False
    supervised: NDArray[np.bool_] = table[kind] & train
    if mask.policy in (Policy.ASSISTANT, Policy.LAST_ASSISTANT):
        # A plain-text completion counts as the assistant's, but has no turn.
        supervised |= (kind == RunKind.COMPLETION) & (turn < 0) & train
    by_last = kind_table(THOUGHT_KINDS if mask.thoughts is Thoughts.LAST else ())
    if mask.policy is Policy.LAST_ASSISTANT:
        by_last = IS_ASSISTANT | IS_NEXT_STOP
    if by_last.any() and len(offsets) > 1:
        last = np.maximum.reduceat(np.where(IS_ASSISTANT[kind], turn, -1), offsets[:-1])
        supervised &= ~by_last[kind] | (turn == np.repeat(last, np.diff(offsets)))
    return supervised


def unlocated_documents(
    kind: NDArray[np.int8], offsets: NDArray[np.integer], *, parts: bool = False
) -> NDArray[np.bool_]:
    """(N,) whether each document is a conversation whose turns were not located; with `parts`, whether it has thoughts
    or tool calls that were not located.
    """
    if len(offsets) < 2:
        return np.zeros(0, dtype=np.bool_)
    table = IS_MIXED if parts else IS_UNPROVED
    out: NDArray[np.bool_] = np.logical_or.reduceat(table[kind], offsets[:-1])
    return out


def supervised_turns(
    kind: NDArray[np.int8],
    turn: NDArray[np.int16],
    supervised: NDArray[np.bool_],
    offsets: NDArray[np.integer],
    *,
    next_stops: bool = False,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (N,) the number of trained assistant turns of each document, and (N,) how many of them lack an end-of-turn
    token.

    Args:
        asked: (runs,) from `supervised_runs`.
        next_stops: whether trained stop tokens in the next header are end-of-turn tokens.
    """
    documents = max(len(offsets) - 1, 0)
    said = IS_ASSISTANT[kind]
    first = said.copy()
    if len(first) > 1:
        first[1:] &= ~said[:-1] | (turn[1:] != turn[:-1])
    first[offsets[:-1]] = said[offsets[:-1]]
    begins = np.flatnonzero(first)
    if not len(begins):
        return np.zeros(documents, dtype=np.int32), np.zeros(documents, dtype=np.int32)
    # Runs between two turns are counted with the earlier one; they belong to no turn.
    wanted = np.logical_or.reduceat(supervised & said, begins)
    ends = IS_END[kind] | (IS_NEXT_STOP[kind] & supervised) if next_stops else IS_END[kind]
    ended = np.logical_or.reduceat(ends, begins)
    owner = np.searchsorted(offsets, begins, side="right") - 1
    return (
        np.bincount(owner[wanted], minlength=documents).astype(np.int32),
        np.bincount(owner[wanted & ~ended], minlength=documents).astype(np.int32),
    )


def run_weights(weights: NDArray[np.float32], kind: NDArray[np.int8], mask: Mask) -> NDArray[np.float32]:
    """(runs,) the loss weight of each run's tokens, if they are trained.

    A stop token in a header has the weight of the turn that it ends, unless it is a part of the header like any other:
    then it has the smaller weight of the two messages, as the rest of the header.

    Args:
        weights, kind: (runs,) of `schemas.rows.ENCODED`.
    """
    borrowed = IS_NEXT_STOP[kind[:-1]]
    if mask.ends_in_next_headers or not borrowed.any():
        return weights
    out = weights.copy()
    out[:-1][borrowed] = np.minimum(weights[:-1], weights[1:])[borrowed]
    return out


def supervised_tokens(
    supervised: NDArray[np.bool_],
    ends: NDArray[np.int32],
    offsets: NDArray[np.int64],
    low: NDArray[np.int32] | None = None,
    high: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return (N,) the number of supervised tokens of each document, and (N,) whether its first token is supervised.

    Args:
        asked: (runs,) from `supervised_runs`.
        ends: (runs,) where each run ends, in tokens of its document.
        offsets: (N + 1,) where each document's runs begin. A document has at least one run. low, high: (N,) count only
        tokens low..high - 1 of each document; the flag is then for token low.
    """
    if len(offsets) < 2:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_)
    starts = begins_of(ends, offsets)
    runs = np.diff(offsets)
    from_here = starts if low is None else np.maximum(starts, np.repeat(low, runs))
    to_here = ends if high is None else np.minimum(ends, np.repeat(high, runs))
    sizes = np.where(supervised, np.maximum(to_here - from_here, 0), 0)
    first = supervised & (from_here < to_here)
    first &= from_here == (0 if low is None else np.repeat(low, runs))
    return (
        np.add.reduceat(sizes, offsets[:-1]).astype(np.int32),
        np.logical_or.reduceat(first, offsets[:-1]),
    )
