"""Decides which tokens of N preference pairs are kept. A pair has one prompt, so tokens cut from it are cut for both
completions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .truncate import Keep, Limits, Overlong


@dataclass(frozen=True, slots=True, eq=False)
class PairLengths:
    """(N,) tokens of the three parts of each pair."""

    prompt: NDArray[np.int32]
    chosen: NDArray[np.int32]
    rejected: NDArray[np.int32]

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
    overlong: NDArray[np.bool_]
    """(N,) whether prompt and longer completion were longer than `max_length`."""


def cut_pairs(lengths: PairLengths, limits: Limits) -> PairCut:
    """Return the tokens kept of each pair, even if the pair is dropped for another reason.

    The limit of a row holds for the prompt and the longer completion together. With `keep: start`, completions lose
    their end. With `end`, the prompt loses its beginning; if a completion alone is too long, the prompt is removed and
    the completion loses its own beginning.
    """
    prompt, chosen, rejected = lengths.prompt, lengths.chosen, lengths.rejected
    overlong = lengths.longest > limits.max_length
    chosen_begin, rejected_begin = np.zeros_like(chosen), np.zeros_like(rejected)
    if limits.overlong is Overlong.TRUNCATE and limits.keep is Keep.START:
        room = np.maximum(np.int32(limits.max_length) - prompt, 0)
        chosen, rejected = np.minimum(chosen, room), np.minimum(rejected, room)
    elif limits.overlong is Overlong.TRUNCATE:
        prompt = np.minimum(prompt, np.maximum(np.int32(limits.max_length) - np.maximum(chosen, rejected), 0))
        chosen_begin = np.maximum(chosen - np.int32(limits.max_length), 0)
        rejected_begin = np.maximum(rejected - np.int32(limits.max_length), 0)
        chosen, rejected = chosen - chosen_begin, rejected - rejected_begin
    begins = PairLengths(lengths.prompt - prompt, chosen_begin, rejected_begin)
    return PairCut(begins, PairLengths(prompt, chosen, rejected), overlong)
