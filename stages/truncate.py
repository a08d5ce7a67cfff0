"""Which stretch of each document stays: limits of prompt and completion first, then that of the row.

N documents. A stretch is contiguous, because a prompt loses its beginning and a completion its end.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.rows import Kind

NO_COMPLETION = -1
"""The boundary of a text, which has neither a prompt nor a completion."""

_COMPLETION_KINDS = (Kind.COMPLETION, Kind.ASSISTANT, Kind.END, Kind.UNPROVED_COMPLETION)


class Overlong(StrEnum):
    """What happens to a document of which more stays than a row holds."""

    TRUNCATE = "truncate"
    DROP = "drop"
    SPLIT = "split"
    """It is cut into pieces at natural places, before packing."""
    ERROR = "error"
    WHOLE = "whole"
    """It goes on as it is: the packing strategy cuts it."""


class Keep(StrEnum):
    """Which end of a truncated document stays."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """What stays of N documents."""

    low: NDArray[np.int32]
    """(N,) first token that stays."""
    high: NDArray[np.int32]
    """(N,) one past the last."""
    prompt_cut: NDArray[np.int32] | None
    """(N,) tokens that the prompt's own limit takes; None without one."""
    completion_cut: NDArray[np.int32] | None
    """(N,) tokens that the completion's own limit takes; None without one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may be, in tokens."""

    max_length: int
    """C, capacity of a row."""
    overlong: Overlong = Overlong.TRUNCATE
    keep: Keep = Keep.START
    max_prompt: int | None = None
    """A longer prompt loses its beginning."""
    max_completion: int | None = None
    """A longer completion loses its end."""

    @property
    def needs_boundaries(self) -> bool:
        """Whether `stretch` looks at where completions begin."""
        return self.max_prompt is not None or self.max_completion is not None

    def stretch(self, lengths: NDArray[np.int32], boundaries: NDArray[np.int32] | None) -> Stretch:
        """What stays of each document, whether or not it is dropped for another reason.

        Args:
            lengths: (N,) tokens of each document.
            boundaries: (N,) the first token of each completion, from `completion_starts`. May be None where
                `needs_boundaries` says no.
        """
        low, high = np.zeros_like(lengths), lengths.copy()
        prompt_cut = completion_cut = None
        if boundaries is not None:
            paired = boundaries != NO_COMPLETION
            if self.max_prompt is not None:
                prompt_cut = np.where(paired, np.maximum(boundaries - np.int32(self.max_prompt), 0), 0).astype(np.int32)
                low = prompt_cut.copy()
            if self.max_completion is not None:
                # In 64 bits: a boundary and a limit may add up to more than 32 hold.
                most = np.where(paired, boundaries.astype(np.int64) + self.max_completion, lengths)
                high = np.minimum(lengths, most).astype(np.int32)
                completion_cut = lengths - high
        if self.overlong is Overlong.TRUNCATE:
            excess = np.maximum(high - low - np.int32(self.max_length), 0)
            if self.keep is Keep.END:
                low += excess
            else:
                high -= excess
        return Stretch(low, high, prompt_cut, completion_cut)


def completion_starts(
    kind: NDArray[np.int8], ends: NDArray[np.int32], offsets: NDArray[np.integer[Any]]
) -> NDArray[np.int32]:
    """(N,) the first token of each document's completion; its length where all is prompt; NO_COMPLETION for a text.

    Args:
        kind, ends: (runs,) what each run is, and where it ends in its document.
        offsets: (N + 1,) where each document's runs begin. A document has at least one run.
    """
    if len(offsets) < 2:
        return np.zeros(0, dtype=np.int32)
    first = offsets[:-1]
    begins = np.empty_like(ends)
    begins[1:] = ends[:-1]
    begins[first] = 0
    nowhere = np.iinfo(np.int32).max
    found = np.minimum.reduceat(np.where(np.isin(kind, _COMPLETION_KINDS), begins, nowhere), first)
    text = np.logical_or.reduceat(kind == Kind.TEXT, first)
    out: NDArray[np.int32] = np.where(found == nowhere, ends[offsets[1:] - 1], found).astype(np.int32)
    out[text] = NO_COMPLETION
    return out
