"""Decides which tokens the length limits keep of N documents, and of N preference pairs."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Limits:
    """Length limits in tokens."""

    max_length: int
    """Capacity of a row (C)."""
    overlong: Literal["truncate", "drop", "split", "whole"] = "truncate"
    """What happens to a longer document: see `truncate.overlong`; `whole` if the packing strategy cuts it."""
    keep: Literal["start", "end"] = "start"
    """Which end of a truncated document is kept."""

    def stretch(self, lengths: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the first token kept of each document, and one past the last, even if the document is dropped for
        another reason.

        Args:
            lengths: (N,) tokens of each document.
        """
        low = np.zeros_like(lengths)
        high = lengths.copy()
        if self.overlong == "truncate":
            excess = np.maximum(lengths - np.int32(self.max_length), 0)
            if self.keep == "end":
                low += excess
            else:
                high -= excess
        return low, high


@dataclass(frozen=True, slots=True, eq=False)
class PairLengths:
    """(N,) tokens of the three parts of each pair."""

    prompt: NDArray[np.int32]
    chosen: NDArray[np.int32]
    rejected: NDArray[np.int32]

    @property
    def parts(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """The three, in the order in which a pair's tokens are stored."""
        return self.prompt, self.chosen, self.rejected

    @property
    def completions(self) -> NDArray[np.int32]:
        """(N,) tokens of both completions."""
        return self.chosen + self.rejected

    @property
    def all(self) -> NDArray[np.int32]:
        """(N,) tokens of the whole pair, counting the prompt once."""
        return self.prompt + self.completions

    @property
    def longest(self) -> NDArray[np.int32]:
        """(N,) tokens of the prompt plus the longer completion; length limits apply to this sum."""
        return self.prompt + np.maximum(self.chosen, self.rejected)


@dataclass(frozen=True, slots=True, eq=False)
class PairCut:
    """The tokens kept of N pairs."""

    begins: PairLengths
    """(N,) how many tokens each part loses at its beginning."""
    kept: PairLengths
    """(N,) how many tokens of each part are kept."""


def cut_pairs(lengths: PairLengths, limits: Limits) -> PairCut:
    """Return the tokens kept of each pair, even if the pair is dropped for another reason.

    The limit of a row holds for the prompt and the longer completion together. A pair has one prompt, so tokens cut
    from it are cut for both completions. With `keep: start`, completions lose their end. With `end`, the prompt loses
    its beginning; if a completion alone is too long, the prompt is removed and the completion loses its own beginning.
    """
    prompt, chosen, rejected = lengths.parts
    max_length = np.int32(limits.max_length)
    zeros = np.zeros_like(prompt)
    from_the_start = PairLengths(zeros, zeros, zeros)
    if limits.overlong != "truncate":
        return PairCut(from_the_start, lengths)
    if limits.keep == "start":
        # A prompt longer than the limit leaves its completions empty; such a pair is dropped later.
        room = np.maximum(max_length - prompt, 0)
        return PairCut(from_the_start, PairLengths(prompt, np.minimum(chosen, room), np.minimum(rejected, room)))
    # With a limit of 100, a prompt of 80 and completions of 30 and 50, the last 50 tokens of the prompt are kept.
    kept_prompt = np.minimum(prompt, np.maximum(max_length - np.maximum(chosen, rejected), 0))
    kept = PairLengths(kept_prompt, np.minimum(chosen, max_length), np.minimum(rejected, max_length))
    return PairCut(PairLengths(prompt - kept.prompt, chosen - kept.chosen, rejected - kept.rejected), kept)
