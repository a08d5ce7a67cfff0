"""Decides which range of each of N documents is kept."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Overlong(StrEnum):
    """What happens to a document longer than a row."""

    TRUNCATE = "truncate"
    DROP = "drop"
    SPLIT = "split"
    """Cut into pieces at natural places, before packing."""
    WHOLE = "whole"
    """Kept whole here; the packing strategy cuts it."""


class Keep(StrEnum):
    """Which end of a truncated document is kept."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Limits:
    """Length limits in tokens."""

    max_length: int
    """Capacity of a row (C)."""
    overlong: Overlong = Overlong.TRUNCATE
    keep: Keep = Keep.START

    def stretch(self, lengths: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the first token kept of each document, and one past the last, even if the document is dropped for
        another reason.

        Args:
            lengths: (N,) tokens of each document.
        """
        low, high = np.zeros_like(lengths), lengths.copy()
        if self.overlong is Overlong.TRUNCATE:
            excess = np.maximum(lengths - np.int32(self.max_length), 0)
            if self.keep is Keep.END:
                low += excess
            else:
                high -= excess
        return low, high
