"""Which runs a mask policy trains. It looks at kinds, turns and flags, never at tokens."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..schemas.rows import Kind


class Mask(StrEnum):
    """What is trained."""

    COMPLETION = "completion"
    """Everything after the prompt where there is one, and all of a text."""
    ALL = "all"
    """Every token."""


_ASKED = {
    Mask.COMPLETION: frozenset({Kind.COMPLETION, Kind.TEXT}),
    Mask.ALL: frozenset(Kind),
}


def asked_runs(kind: NDArray[np.int8], train: NDArray[np.bool_], policy: Mask) -> NDArray[np.bool_]:
    """(runs,) whether the policy asks for a run's tokens.

    A person's `train: false` always wins: no policy trains what they took out.
    """
    table = np.zeros(max(Kind) + 1, dtype=np.bool_)
    table[[int(one) for one in _ASKED[policy]]] = True
    asked: NDArray[np.bool_] = table[kind] & train
    return asked


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
