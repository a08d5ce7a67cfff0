"""Which documents are copies of an earlier one, and how often each example of a source is packed: from repeats and
weights (shares of tokens).
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...schemas.fingerprint import mix64


def is_later_copy(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(K,) whether an earlier document has the same digest. Of the digests a, b, a, a, the last two are later copies.

    Args:
        first, second: (K,) the two halves of each digest, in the order of the documents.
    """
    # Stable: equal documents stay in order, so each but the first of them follows one with its digest: a, b, a, a are
    # sorted in the order 0, 2, 3, 1, in which 2 follows 0 and 3 follows 2.
    order = np.lexsort((second, first))
    document = order[1:]
    document_before = order[:-1]
    is_later = np.zeros(len(first), dtype=np.bool_)
    is_later[document] = (first[document_before] == first[document]) & (second[document_before] == second[document])
    return is_later


def passes_of(tokens: Sequence[int], weights: Sequence[float | None], repeats: Sequence[int | None]) -> list[Fraction]:
    """How many times each source goes into the mix: 2.5 means every example twice, and examples with half of the tokens
    a third time.

    Without weights, each source goes in `repeat` times, or once if it has no `repeat`. With weights, the sources'
    tokens are in the ratio of their weights, and the mix is as large as it can be without exceeding any `repeat`. If no
    source has a `repeat`, the source with the most tokens for its weight is used once, and the others as often as the
    weights require: sources of 600 and 100 tokens with weights 2 and 1 go in once and three times.

    Args:
        tokens: tokens of each source. A source without tokens gets 0.
        weights: `weight` of each source; all have one, or none.
        repeats: `repeat` of each source; None if it is not configured.
    """
    if all(weight is None for weight in weights):
        return [Fraction(repeat or 1) for repeat in repeats]
    # Exact numbers: rounded ones would move an example over the last pass, and differ between machines.
    shares = [Fraction(weight or 0) for weight in weights]  # none is None any more
    # How many tokens of the mix there are for a weight of 1: in `scales` if a source is used once (600 tokens of weight
    # 2 give 300), in `bounds` if it is used `repeat` times, which is the most that it allows.
    scales: list[Fraction] = []
    bounds: list[Fraction] = []
    for available, share, repeat in zip(tokens, shares, repeats, strict=True):
        if available and share:
            scales.append(Fraction(available) / share)
            if repeat is not None:
                bounds.append(scales[-1] * repeat)
    # The smallest bound, so that no source exceeds its `repeat`. Without bounds, the largest scale, so that every
    # source is used at least once.
    scale = min(bounds) if bounds else max(scales, default=Fraction(0))
    # A source has share * scale tokens of the mix: divided by its own tokens, that is how often it goes in.
    return [
        share * scale / available if available else Fraction(0) for share, available in zip(shares, tokens, strict=True)
    ]


def draw_keys(count: int, seed: int, source: int) -> NDArray[np.uint64]:
    """(N,) sort keys for the order in which a source's N documents are taken; they depend only on the seed.

    Args:
        source: the number of the source, so that sources of equal size are drawn differently.
    """
    # Hashed, because with the numbers themselves, source 2 under the seed 1 would be drawn like source 0 under the seed
    # 3: 1 ^ 2 = 3 ^ 0.
    (source_seed,) = mix64(np.array([source], dtype=np.uint64), seed=0).tolist()
    return mix64(np.arange(count, dtype=np.uint64), seed=seed ^ source_seed)
