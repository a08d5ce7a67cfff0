"""The preference pairs for which lengths are compared: lengths of their parts, and what a length keeps of them.

A length limits both sides together, which stand in one row: `2 P + C + R` tokens of a prompt of P and completions of C
and R tokens, or `P + C + R + 1` where the prompt is stored once. With `pack.strategy: none` it limits the longer side.

Legend: `N` pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ..select.truncate import PairLengths, cut_pairs, is_without_labels, limits_of_pairs
from .length_stats import Kept


@dataclass(frozen=True, eq=False)
class PairStats:
    """Lengths of the pairs that passed the filters, before `max_length` is applied."""

    parts: PairLengths
    """(N,) tokens of the prompt and of both completions of each pair."""
    lengths: NDArray[np.int32]
    """(N,) the `max_length` that surely keeps each pair whole, with the configured keys. Where sides are padded, a
    slightly smaller one may do."""
    are_packed: bool
    """Whether both sides stand in a row with other pairs; else each pair is a row of three columns."""
    longest: Sequence[tuple[str, int]] = ()
    """(id, tokens) of the few longest pairs by `lengths`, the longest first; empty if the ids are unknown."""
    in_all: int = 0
    """About how many pairs there are; more than N if these are a sample."""
    texts: bool = False
    """Whether they are plain texts, which could be cut anywhere: completions are not."""
    documents_of_piece: int = 2
    """How many documents each counts for `pack.max_docs`: both sides."""

    @cached_property
    def tokens(self) -> int:
        """Tokens of all pairs if nothing is cut or shared: a packed pair has its prompt twice."""
        tokens = int(self.parts.all.sum(dtype=np.int64))
        if self.are_packed:
            tokens += int(self.parts.prompt.sum(dtype=np.int64))
        return tokens

    @cached_property
    def labels(self) -> int:
        """Labels trained in all pairs together, if nothing is cut."""
        return int(_labels_of(self.parts).sum())

    def kept_at(self, config: RunConfig, limit: int, row_length: int, strategy: str) -> Kept:
        """What a length keeps of each pair. A pair whose completions are the same once they are cut is left out by a
        run, but counted here: of real pairs, less than one in a hundred.

        Args:
            limit: the most tokens of a pair, as the module says.
            strategy: not used; documents need it.
        """
        limits = limits_of_pairs(config, limit, row_length)
        kept = cut_pairs(self.parts, limits).kept
        # What is compared with the limit: tokens of both sides in their row, or of the longer side.
        is_long = self.parts.limited(limits) > limits.max_length
        is_left_out = is_without_labels(kept, limits)
        if limits.overlong == "drop":
            is_left_out |= is_long
        if not self.are_packed:
            tokens = np.where(is_left_out, 0, kept.all).astype(np.int64)
            return Kept(tokens=tokens, in_row=tokens, labels=_labels_of(kept), is_long=is_long)
        # Each side is padded by itself. The rejected one has the prompt again, or where it is shared, its last token.
        align = config.pack.alignment.document
        chosen = (kept.prompt + kept.chosen).astype(np.int64)
        rejected = (limits.repeated(kept.prompt) + kept.rejected).astype(np.int64)
        chosen_padded = -(-chosen // align) * align
        rejected_padded = -(-rejected // align) * align
        in_row = np.where(is_left_out, 0, chosen_padded + rejected_padded)
        # If nothing is shared, the prompt stands before both completions.
        tokens = np.where(is_left_out, 0, kept.all.astype(np.int64) + kept.prompt)
        saved = None
        if config.pack.can_share:
            # A shared prompt stands there once, and its last token a second time.
            saved = int(np.maximum(kept.prompt - 1, 0)[~is_left_out].sum())
        return Kept(tokens=tokens, in_row=in_row, labels=_labels_of(kept), is_long=is_long, saved=saved)


def _labels_of(parts: PairLengths) -> NDArray[np.int64]:
    """(N,) trained labels of each pair: all tokens of both completions. Without a prompt, nothing predicts the first
    token of either.
    """
    return parts.completions.astype(np.int64) - np.where(parts.prompt == 0, 2, 0)
