"""How often each example of a source is packed: repeats, and weights that mix sources to shares of tokens."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..schemas.splitmix import GOLDEN, mix


def passes_of(stocks: Sequence[int], weights: Sequence[float | None], repeats: Sequence[int | None]) -> list[Fraction]:
    """How many times each source goes into the mix: 2.5 is every example twice, and half of the tokens once more.

    Without weights, `repeat` times. With them, the tokens of the sources are to each other as their weights, and the
    mix is as large as no `repeat` is exceeded; the source whose `repeat` binds is used exactly so often. If no source
    has a `repeat`, the one with the most tokens for its weight is used once, and the others as often as that asks.

    Args:
        stocks: tokens of each source. One without any stays without.
    """
    if all(weight is None for weight in weights):
        return [Fraction(repeat or 1) for repeat in repeats]
    shares = [Fraction(weight) if weight is not None else Fraction(0) for weight in weights]
    # Scale: tokens of the mix for a weight of 1.
    full = [
        (Fraction(stock) / share, repeat)
        for stock, share, repeat in zip(stocks, shares, repeats, strict=True)
        if stock and share
    ]
    bounds = [scale * repeat for scale, repeat in full if repeat is not None]
    scale = min(bounds) if bounds else max((scale for scale, _ in full), default=Fraction(0))
    return [share * scale / stock if stock else Fraction(0) for share, stock in zip(shares, stocks, strict=True)]


def copies_of(tokens: NDArray[np.int64], passes: Fraction, seed: int, source: int) -> NDArray[np.int32]:
    """(N,) how often each document of a source is packed, for `passes` through its tokens.

    Whole passes take every document. Of what is left, documents are taken in an order that only the seed and their
    places in the source decide, until the sum is as near to it as one document allows.

    Args:
        tokens: (N,) what one copy of each document brings into the rows; 0 for one that does not take part.
        source: the number of the source, so that sources of one size are not drawn alike.
    """
    whole = passes.numerator // passes.denominator
    copies = np.where(tokens > 0, whole, 0).astype(np.int32)
    target = float((passes - whole) * int(tokens.sum()))
    if target <= 0:
        return copies
    places = np.flatnonzero(tokens)
    with np.errstate(over="ignore"):
        key = np.uint64(seed % 2**64) ^ mix(np.array([source + 1], dtype=np.uint64) * GOLDEN)[0]
        hashes = mix((places.astype(np.uint64) + np.uint64(1)) * GOLDEN + key)
    order = places[np.argsort(hashes, kind="stable")]
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(tokens[order])])
    count = int(np.argmin(np.abs(sums - target)))
    copies[order[:count]] += 1
    return copies
