"""Decides which range of each document is kept: first the limits of prompt and completion, then the limit of the row.

N documents. The kept range is contiguous, because a prompt loses its beginning and a completion its end.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..tokenize.token_runs import NO_COMPLETION


class Overlong(StrEnum):
    """What happens to a document longer than a row."""

    TRUNCATE = "truncate"
    DROP = "drop"
    SPLIT = "split"
    """Cut into pieces at natural places, before packing."""
    ERROR = "error"
    WHOLE = "whole"
    """Kept whole here; the packing strategy cuts it."""


class Keep(StrEnum):
    """Which end of a truncated document is kept."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """The kept range of each of N documents."""

    low: NDArray[np.int32]
    """(N,) first token kept."""
    high: NDArray[np.int32]
    """(N,) end of the range: one past the last token kept."""
    prompt_cut: NDArray[np.int32] | None
    """(N,) tokens removed by the prompt's own limit; None without such a limit."""
    completion_cut: NDArray[np.int32] | None
    """(N,) tokens removed by the completion's own limit; None without such a limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Length limits in tokens."""

    max_length: int
    """Capacity of a row (C)."""
    overlong: Overlong = Overlong.TRUNCATE
    keep: Keep = Keep.START
    max_prompt: int | None = None
    """Maximum tokens of a prompt; a longer one loses its beginning."""
    max_completion: int | None = None
    """Maximum tokens of a completion; a longer one loses its end."""

    @property
    def needs_boundaries(self) -> bool:
        """Whether `stretch` needs to know where completions begin."""
        return self.max_prompt is not None or self.max_completion is not None

    def stretch(self, lengths: NDArray[np.int32], boundaries: NDArray[np.int32] | None) -> Stretch:
        """Return the kept range of each document, even if the document is dropped for another reason.

        Args:
            lengths: (N,) tokens of each document.
            boundaries: (N,) the first token of each completion, from `completion_starts`. May be None if not
                `needs_boundaries`.
        """
        low, high = np.zeros_like(lengths), lengths.copy()
        prompt_cut = completion_cut = None
        if boundaries is not None:
            paired = boundaries != NO_COMPLETION
            if self.max_prompt is not None:
                prompt_cut = np.where(paired, np.maximum(boundaries - np.int32(self.max_prompt), 0), 0).astype(np.int32)
                low = prompt_cut.copy()
            if self.max_completion is not None:
                # In 64 bits: a boundary plus a limit may overflow 32.
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
