"""Decides which tokens the length limits keep of N documents, and of N preference pairs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ...schemas.config.config import RunConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """Length limits in tokens."""

    max_length: int
    """Capacity of a row (C)."""
    overlong: Literal["truncate", "drop", "split", "whole"] = "truncate"
    """What happens to a longer document: it is cut, left out, or split into several; with `whole` it stays, because the
    packing strategy cuts it."""
    keep: Literal["start", "end"] = "start"
    """Which end of a truncated document is kept."""
    both: bool = False
    """Of preference pairs: whether both sides share a row, so that the limit is for the two together."""
    share_prompt: bool = False
    """Whether that row stores the prompt once, and repeats its last token alone; else it stands before both sides."""

    def repeated(self, prompt: NDArray[np.int32]) -> NDArray[np.int32]:
        """(N,) how many tokens of prompts of (N,) tokens a row of both sides stores a second time."""
        return np.minimum(prompt, 1) if self.share_prompt else prompt

    def stretch(self, lengths: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(N,) the first token kept of each document, and one past the last, even if it is dropped for another reason.

        Of 5 and 12 tokens, with a limit of 8, these are the tokens 0..5 and 0..8, or with `keep: end` 0..5 and 4..12.

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
    """(N,) tokens of the three parts of each pair: of its prompt, and of the chosen and the rejected completion."""

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
        """(N,) tokens of the prompt plus the longer completion, which is the longer side."""
        return self.prompt + np.maximum(self.chosen, self.rejected)

    def limited(self, limits: Limits) -> NDArray[np.int32]:
        """(N,) tokens of each pair that are compared with `limits.max_length`: of both sides, as their common row
        stores them, or of the longer side if pairs are not packed.
        """
        if not limits.both:
            return self.longest
        return self.all + limits.repeated(self.prompt)


@dataclass(frozen=True, slots=True, eq=False)
class PairCut:
    """The tokens kept of N pairs."""

    begins: PairLengths
    """(N,) how many tokens each part loses at its beginning."""
    kept: PairLengths
    """(N,) how many tokens of each part are kept."""


def limits_of_pairs(config: "RunConfig", max_length: int, row_length: int) -> Limits:
    """The limits of preference pairs for a length and a capacity, which need not be the configured ones; all else is as
    configured.

    Args:
        max_length: how many tokens a pair may have, or the longer side of it if pairs are not packed.
        row_length: capacity of a row in tokens.
    """
    pack = config.pack
    truncate = config.truncate
    if not pack.does.is_packing:  # no row holds several documents: each side is limited alone
        return Limits(max_length, truncate.overlong, truncate.keep)
    # Each side is padded by itself to a multiple (`alignment.document`), and rows have the length of such a multiple.
    # For rows of 64 and multiples of 8, a pair has 57 tokens at most: with padding of up to 7 for each side it takes 71
    # at most, and so, as a multiple of 8, no more than 64. A pair of 58, such as 25 and 33, would take 32 + 40.
    max_tokens = min(max_length, row_length - (pack.alignment.document - 1))
    return Limits(max_tokens, truncate.overlong, truncate.keep, both=True, share_prompt=pack.shares)


def is_without_labels(kept: PairLengths, limits: Limits) -> NDArray[np.bool_]:
    """(N,) whether a completion of each pair has nothing to train: it is empty; or, in a packed row without a prompt,
    it is one token, which nothing before it predicts, so that it has no label.
    """
    # How many first tokens of a completion have no label.
    untrained = np.where(limits.both & (kept.prompt == 0), 1, 0)
    without: NDArray[np.bool_] = (kept.chosen <= untrained) | (kept.rejected <= untrained)
    return without


def cut_pairs(lengths: PairLengths, limits: Limits) -> PairCut:
    """The tokens kept of each pair, even if the pair is dropped for another reason.

    The limit holds for both sides in their common row, or for each side if pairs are not packed. A pair has one prompt,
    so tokens cut from it are cut for both completions. With `keep: start`, completions lose their end. With `end`, the
    prompt loses its beginning; if the completions alone are too long, the prompt is removed and they lose their own
    beginning.

    Both completions have the same limit. If both sides are limited together, each completion has half of the room that
    the prompt leaves, and what the shorter one does not need of its half is for the other. So the length of a cut
    completion never tells whether it was chosen.
    """
    # Then nothing is cut here: a pair that is too long stays whole, or is left out by the caller (`drop`).
    if limits.overlong != "truncate":
        zeros = np.zeros_like(lengths.prompt)
        return PairCut(PairLengths(zeros, zeros, zeros), lengths)
    kept = _kept_together(lengths, limits) if limits.both else _kept_of_each(lengths, limits)
    if limits.keep == "start":
        zeros = np.zeros_like(lengths.prompt)
        return PairCut(PairLengths(zeros, zeros, zeros), kept)
    # What is not kept of a part is lost at its beginning.
    begins = (part - part_kept for part, part_kept in zip(lengths.parts, kept.parts, strict=True))
    return PairCut(PairLengths(*begins), kept)


def _kept_of_each(lengths: PairLengths, limits: Limits) -> PairLengths:
    """The tokens kept of each part if the limit holds for each side alone: for the prompt with one completion."""
    prompt, chosen, rejected = lengths.parts
    max_length = np.int32(limits.max_length)
    if limits.keep == "start":
        # A prompt longer than the limit leaves its completions empty; such a pair is dropped later.
        room = np.maximum(max_length - prompt, 0)
        return PairLengths(prompt, np.minimum(chosen, room), np.minimum(rejected, room))
    # With a limit of 100, a prompt of 80 and completions of 30 and 50, the last 50 tokens of the prompt are kept.
    kept_prompt = np.minimum(prompt, np.maximum(max_length - np.maximum(chosen, rejected), 0))
    return PairLengths(kept_prompt, np.minimum(chosen, max_length), np.minimum(rejected, max_length))


def _kept_together(lengths: PairLengths, limits: Limits) -> PairLengths:
    """The tokens kept of each part if the limit holds for a row with both sides."""
    prompt, chosen, rejected = lengths.parts
    max_length = np.int32(limits.max_length)
    kept_prompt = prompt
    if limits.keep == "end":
        # With a limit of 100 and completions of 30 and 50, there is room for 20 tokens of prompt: for its last 10
        # before each completion; or, if it is shared, for its last 19 before the chosen one, and the last of these
        # again before the rejected one.
        room_of_prompt = np.maximum(max_length - chosen - rejected, 0)
        max_prompt = np.maximum(room_of_prompt - 1, 0) if limits.share_prompt else room_of_prompt // 2
        kept_prompt = np.minimum(prompt, max_prompt)
    # Of the row, both completions have what the prompt, and what is repeated of it, leave.
    room = np.maximum(max_length - kept_prompt - limits.repeated(kept_prompt), 0)
    half = room // 2
    # In a room of 100, completions of 20 and 90 keep 20 and 80; completions of 60 and 90 keep 50 each.
    kept_chosen = np.minimum(chosen, np.maximum(room - rejected, half))
    kept_rejected = np.minimum(rejected, np.maximum(room - chosen, half))
    return PairLengths(kept_prompt, kept_chosen, kept_rejected)
