"""Looks up kinds of runs for many documents at once."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import begins_of
from ...schemas.rows import (
    ASSISTANT_KINDS,
    COMPLETION_KINDS,
    END_KINDS,
    MIXED_KINDS,
    NEXT_STOP_KINDS,
    PART_KINDS,
    UNPROVED_KINDS,
    RunKind,
)

_KINDS = max(RunKind) + 1
NO_COMPLETION = -1
"""Stands for the completion start of a plain text, which has no completion."""


def kind_table(kinds: Iterable[RunKind]) -> NDArray[np.bool_]:
    """Return a table that tells, for each kind, whether it is one of `kinds`."""
    table = np.zeros(_KINDS, dtype=np.bool_)
    table[list(kinds)] = True
    return table


IS_ASSISTANT = kind_table(ASSISTANT_KINDS)
IS_COMPLETION = kind_table(COMPLETION_KINDS)
IS_END = kind_table(END_KINDS)
IS_UNPROVED = kind_table(UNPROVED_KINDS)
IS_NEXT_STOP = kind_table(NEXT_STOP_KINDS)
IS_MIXED = kind_table(MIXED_KINDS)
IS_SAID = kind_table((RunKind.HISTORY, RunKind.ASSISTANT, *PART_KINDS))
"""Assistant turns without end-of-turn tokens."""


def parts_of_turn(kind: NDArray[np.int8], turn: NDArray[np.integer[Any]], train: NDArray[Any]) -> NDArray[np.bool_]:
    """(runs,) whether each run and the next one are two parts of a turn with the same flag or weight; false for the
    last."""
    out = np.zeros(len(kind), dtype=np.bool_)
    said = IS_SAID[kind]
    out[:-1] = said[:-1] & said[1:] & (turn[:-1] == turn[1:]) & (train[:-1] == train[1:]) & (kind[:-1] != kind[1:])
    return out


def completion_starts(
    kind: NDArray[np.int8], ends: NDArray[np.int32], offsets: NDArray[np.integer[Any]]
) -> NDArray[np.int32]:
    """Return (N,) the first token of each document's completion; the document's length if all of it is prompt;
    NO_COMPLETION for a plain text.

    Args:
        kind, ends: (runs,) what each run is, and where it ends in its document.
        offsets: (N + 1,) where each document's runs begin. A document has at least one run.
    """
    if len(offsets) < 2:
        return np.zeros(0, dtype=np.int32)
    first = offsets[:-1]
    begins = begins_of(ends, offsets)
    nowhere = np.iinfo(np.int32).max
    found = np.minimum.reduceat(np.where(IS_COMPLETION[kind], begins, nowhere), first)
    text = np.logical_or.reduceat(kind == RunKind.TEXT, first)
    out: NDArray[np.int32] = np.where(found == nowhere, ends[offsets[1:] - 1], found).astype(np.int32)
    out[text] = NO_COMPLETION
    return out
