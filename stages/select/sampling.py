"""Decides how often each example of a source is packed, from repeats and weights (shares of tokens)."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from ...schemas.splitmix import GOLDEN, mix

_DRAW_BITS = 12
"""Number of pieces into which the range of keys is divided. The counters take 32 KiB, and even with a billion documents
each piece holds few.
"""


def passes_of(tokens: Sequence[int], weights: Sequence[float | None], repeats: Sequence[int | None]) -> list[Fraction]:
    """Return how many times each source goes into the mix: 2.5 means every example twice, and examples with half of the
    tokens a third time.

    Without weights, `repeat` times. With weights, the sources' tokens are in the ratio of their weights, and the mix is
    as large as it can be without exceeding any `repeat`. Without any `repeat`, the source with the most tokens for its
    weight is used once, and the others as often as the weights require.

    Args:
        tokens: tokens of each source. A source without tokens gets 0.
    """
    if all(weight is None for weight in weights):
        return [Fraction(repeat or 1) for repeat in repeats]
    shares = [Fraction(weight) if weight is not None else Fraction(0) for weight in weights]
    # Tokens of the mix for a weight of 1.
    full = [
        (Fraction(n) / share, repeat) for n, share, repeat in zip(tokens, shares, repeats, strict=True) if n and share
    ]
    bounds = [scale * repeat for scale, repeat in full if repeat is not None]
    scale = min(bounds) if bounds else max((scale for scale, _ in full), default=Fraction(0))
    return [
        share * scale / available if available else Fraction(0) for share, available in zip(shares, tokens, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Quota:
    """How often each document of one source is packed, decided from the document alone.

    Each document is packed `whole` times. Documents are ordered by `draw_keys` and place; those before `border` are
    packed once more.
    """

    whole: int
    border: tuple[int, int]
    """(key, place) of the first document without the extra copy."""

    def copies(
        self, keys: NDArray[np.uint64], places: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """(N,) copies of each document; 0 for documents without tokens.

        Args:
            keys: (N,) from `draw_keys`.
            places: (N,) positions of the documents within their source.
        """
        key, place = self.border
        if key >> 64:
            more = np.ones(len(keys), dtype=np.bool_)
        else:
            more = (keys < np.uint64(key)) | ((keys == np.uint64(key)) & (places < place))
        return np.where(tokens > 0, self.whole + more, 0).astype(np.int32)


class Draw:
    """Finds the `Quota` of one source without holding all documents in memory.

    1. `count` every document: the sum of tokens, and how it spreads over the range of keys.
    2. `set_target` to a number of passes. If the number is not whole, the border lies in one small piece of the range.
    3. `read_again` every document; this keeps those in that piece. Then take the `quota`.

    For the fraction beyond whole passes, documents are taken in the order of their keys until the sum is as near to the
    target as possible.
    """

    def __init__(self) -> None:
        self.available = 0
        """Tokens of all documents."""
        self._spread = np.zeros(1 << _DRAW_BITS, dtype=np.int64)
        self._whole, self._target, self._before = 0, 0.0, 0
        self._piece: int | None = None
        self._kept: list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]] = []

    def count(self, keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> None:
        """Add documents: (N,) keys, and (N,) tokens, 0 for documents that do not take part."""
        piece = (keys >> np.uint64(64 - _DRAW_BITS)).astype(np.int64)
        np.add.at(self._spread, piece, tokens)
        self.available += int(tokens.sum())

    def set_target(self, passes: Fraction) -> bool:
        """Set how many passes to make through the counted tokens. Returns whether documents must be read again."""
        self._whole = passes.numerator // passes.denominator
        self._target = float((passes - self._whole) * self.available)
        if self._target <= 0:
            return False
        sums = np.cumsum(self._spread)
        self._piece = min(int(np.searchsorted(sums, self._target, side="right")), len(sums) - 1)
        self._before = int(sums[self._piece] - self._spread[self._piece])
        return True

    def read_again(self, keys: NDArray[np.uint64], places: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """Take the same documents again, with their (N,) places in the source."""
        if self._piece is None:
            return
        here = (keys >> np.uint64(64 - _DRAW_BITS) == np.uint64(self._piece)) & (tokens > 0)
        self._kept.append((keys[here], places[here], tokens[here]))

    def quota(self) -> Quota:
        """The result."""
        if self._piece is None:
            return Quota(self._whole, (0, 0))
        keys, places, tokens = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        order = np.lexsort((places, keys))
        sums = self._before + offsets_of(tokens[order])
        # Sums ascend and the target lies before the end of this piece, so the nearest sum is in this piece.
        count = int(np.argmin(np.abs(sums - self._target)))
        if count == len(order):
            return Quota(self._whole, ((self._piece + 1) << (64 - _DRAW_BITS), 0))
        return Quota(self._whole, (int(keys[order[count]]), int(places[order[count]])))


def draw_keys(places: NDArray[np.int64], seed: int, source: int) -> NDArray[np.uint64]:
    """Return (N,) sort keys for the order in which a source's documents are taken; they depend only on seed and place.

    Args:
        source: the number of the source, so that sources of equal size are drawn differently.
    """
    with np.errstate(over="ignore"):
        key = np.uint64(seed % 2**64) ^ mix(np.array([source + 1], dtype=np.uint64) * GOLDEN)[0]
        return mix((places.astype(np.uint64) + np.uint64(1)) * GOLDEN + key)
