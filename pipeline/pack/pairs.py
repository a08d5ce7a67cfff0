"""Preference pairs as documents: three spans end to end, which are the prompt and both completions."""

import numpy as np
from numpy.typing import NDArray

from ...stages.select.truncate import PairCut, PairLengths
from .table import Documents


def pair_lengths(ends: NDArray[np.int32]) -> PairLengths:
    """The lengths of pairs, from where their three spans end."""
    parts = ends.reshape(-1, 3)
    return PairLengths(parts[:, 0].copy(), parts[:, 1] - parts[:, 0], parts[:, 2] - parts[:, 1])


def equal_completions(
    tokens: NDArray[np.int32], pairs: Documents, lengths: PairLengths, cut: PairCut
) -> NDArray[np.bool_]:
    """(N,) whether what is kept of both completions of each pair is the same.

    Args:
        tokens: those of the pairs' segment.
    """
    equal = np.zeros(len(pairs), dtype=np.bool_)
    same_length = np.flatnonzero(cut.kept.chosen == cut.kept.rejected)
    chosen = (pairs.begin + lengths.prompt + cut.begins.chosen)[same_length]
    rejected = (pairs.begin + lengths.prompt + lengths.chosen + cut.begins.rejected)[same_length]
    stretches = zip(chosen.tolist(), rejected.tolist(), cut.kept.chosen[same_length].tolist(), strict=True)
    equal[same_length] = [
        np.array_equal(tokens[left : left + length], tokens[right : right + length])
        for left, right, length in stretches
    ]
    return equal
