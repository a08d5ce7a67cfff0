"""Which tokens of a preference pair stay: limits of prompt and completions first, then that of the whole.

N pairs. The prompt of a pair is one, so what is cut from it is cut for both completions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .truncate import Keep


@dataclass(frozen=True, slots=True, eq=False)
class PairLengths:
    """(N,) tokens of the three parts of each pair."""

    prompt: NDArray[np.int32]
    chosen: NDArray[np.int32]
    rejected: NDArray[np.int32]

    @property
    def completions(self) -> NDArray[np.int32]:
        """(N,) of both completions."""
        return self.chosen + self.rejected

    @property
    def all(self) -> NDArray[np.int32]:
        """(N,) of the whole pair, its prompt once."""
        return self.prompt + self.completions

    @property
    def longest(self) -> NDArray[np.int32]:
        """(N,) of the prompt and the longer completion: what limits of length are about."""
        return self.prompt + np.maximum(self.chosen, self.rejected)


@dataclass(frozen=True, slots=True, eq=False)
class PairCut:
    """What stays of N pairs."""

    begins: PairLengths
    """(N,) how many tokens each part loses at its beginning."""
    kept: PairLengths
    """(N,) how many stay of it."""
    prompt_cut: NDArray[np.int32]
    """(N,) tokens that the prompt's own limit takes."""
    completion_cut: NDArray[np.int32]
    """(N,) tokens that the completions' own limit takes, of both."""
    overlong: NDArray[np.bool_]
    """(N,) whether more than `max_length` was left of the prompt and the longer completion."""


@dataclass(frozen=True, slots=True)
class PairLimits:
    """How long the parts of a pair may be, in tokens."""

    max_length: int
    """Of the prompt and the longer completion."""
    keep: Keep = Keep.START
    """With `start`, completions lose their end to `max_length`; with `end`, the prompt loses its beginning, and where
    a completion alone is too long, there is no prompt and it loses its own beginning."""
    truncate: bool = True
    """Whether what is too long is cut to `max_length`."""
    max_prompt: int | None = None
    """A longer prompt loses its beginning."""
    max_completion: int | None = None
    """A longer completion loses its end."""

    def cut(self, lengths: PairLengths) -> PairCut:
        """What stays of each pair, whether or not it is dropped for another reason."""
        prompt = _at_most(lengths.prompt, self.max_prompt)
        chosen = _at_most(lengths.chosen, self.max_completion)
        rejected = _at_most(lengths.rejected, self.max_completion)
        prompt_cut = lengths.prompt - prompt
        completion_cut = lengths.completions - chosen - rejected
        overlong = prompt + np.maximum(chosen, rejected) > self.max_length
        chosen_begin, rejected_begin = np.zeros_like(chosen), np.zeros_like(rejected)
        if self.truncate and self.keep is Keep.START:
            room = np.maximum(np.int32(self.max_length) - prompt, 0)
            chosen, rejected = np.minimum(chosen, room), np.minimum(rejected, room)
        elif self.truncate:
            prompt = np.minimum(prompt, np.maximum(np.int32(self.max_length) - np.maximum(chosen, rejected), 0))
            # The end of a completion that its own limit has left.
            chosen_begin = np.maximum(chosen - np.int32(self.max_length), 0)
            rejected_begin = np.maximum(rejected - np.int32(self.max_length), 0)
            chosen, rejected = chosen - chosen_begin, rejected - rejected_begin
        begins = PairLengths(lengths.prompt - prompt, chosen_begin, rejected_begin)
        return PairCut(begins, PairLengths(prompt, chosen, rejected), prompt_cut, completion_cut, overlong)


def _at_most(lengths: NDArray[np.int32], limit: int | None) -> NDArray[np.int32]:
    return lengths if limit is None else np.minimum(lengths, np.int32(min(limit, np.iinfo(np.int32).max)))
