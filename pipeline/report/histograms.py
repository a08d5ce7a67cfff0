"""Histograms of whole numbers and of shares, put together a lot at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.report import Histogram

BINS = 60
_LOT = 1 << 18
QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Tally:
    """How often each whole number occurs: exact, and no larger than there are different numbers."""

    def __init__(self) -> None:
        self._known = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._waiting: list[NDArray[np.int64]] = []
        self._size = 0

    def add(self, values: NDArray[Any]) -> None:
        """Add (N,) whole numbers, none below 0."""
        # Sorting a few large lots is cheaper than many small ones.
        self._waiting.append(values.astype(np.int64))
        self._size += len(values)
        if self._size >= _LOT:
            self._settle()

    def _settle(self) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """(values,) rising, and (values,) how often each occurs."""
        if self._waiting:
            found, often = np.unique(np.concatenate(self._waiting), return_counts=True)
            values, counts = self._known
            joined, place = np.unique(np.concatenate([values, found]), return_inverse=True)
            sums = np.zeros(len(joined), np.int64)
            np.add.at(sums, place, np.concatenate([counts, often]))
            self._known, self._waiting, self._size = (joined, sums), [], 0
        return self._known

    @property
    def _values(self) -> NDArray[np.int64]:
        return self._settle()[0]

    @property
    def _counts(self) -> NDArray[np.int64]:
        return self._settle()[1]

    @property
    def count(self) -> int:
        """Numbers in all."""
        return int(self._counts.sum())

    @property
    def total(self) -> int:
        """Their sum."""
        return int((self._values * self._counts).sum())

    @property
    def most(self) -> int:
        """The largest; 0 where there is none."""
        return int(self._values[-1]) if len(self._values) else 0

    def logarithmic(self, *, exact: bool = True, most: int = 0) -> Histogram:
        """Bins that grow by a factor, each of whole numbers; 0 has a bin of its own.

        Args:
            exact: whether all numbers there are were added.
            most: what the bins reach to in any case, so that two histograms have the same.
        """
        return self._binned(log_edges(max(most, self.most)), exact)

    def even(self, *, exact: bool = True) -> Histogram:
        """Bins of equal width, of whole numbers."""
        first = int(self._values[0]) if len(self._values) else 0
        last = int(self._values[-1]) if len(self._values) else 0
        width = max(1, -(-(last + 1 - first) // BINS))
        return self._binned([float(edge) for edge in range(first, last + 1 + width, width)], exact)

    def shares(self, whole: int, *, exact: bool = True) -> Histogram:
        """Of the numbers as shares of `whole`, 0 to 1, in bins of equal width."""
        bins = min(50, max(whole, 1))
        edges = [number / bins for number in range(bins + 1)]
        place = np.minimum(self._values * bins // max(whole, 1), bins - 1)
        counts = np.bincount(place, weights=self._counts, minlength=bins).astype(np.int64)
        quantiles = {name: value / max(whole, 1) for name, value in self._quantiles().items()}
        return Histogram(edges, counts.tolist(), self.count, self.total / max(whole, 1), quantiles, exact)

    def _binned(self, edges: list[float], exact: bool) -> Histogram:
        counts, _ = np.histogram(self._values, bins=np.array(edges), weights=self._counts)
        whole = counts.astype(np.int64).tolist()
        return Histogram(edges, whole, self.count, float(self.total), self._quantiles(), exact)

    def _quantiles(self) -> dict[str, float]:
        """The value at or below which such a share of all lies: always one that occurs."""
        if not self.count:
            return {}
        sums = np.cumsum(self._counts)
        ranks = [max(1, -(-int(share * 10_000) * self.count // 10_000)) for share in QUANTILES.values()]
        found = self._values[np.searchsorted(sums, ranks)]
        return dict(zip(QUANTILES, found.astype(float).tolist(), strict=True))


def log_edges(most: int, bins: int = BINS) -> list[float]:
    """Whole numbers from 0 to above `most`, each about as many times the one before."""
    grown = np.unique(np.rint(np.geomspace(1, max(most + 1, 2), bins)).astype(np.int64))
    return [0.0, *grown.astype(float).tolist()]


def spearman(left: "NDArray[Any] | Sequence[float]", right: "NDArray[Any] | Sequence[float]") -> float | None:
    """Spearman's rank correlation, ties counted at their mean rank; None where either side has one value only."""
    a, b = _ranks(np.asarray(left)), _ranks(np.asarray(right))
    if len(a) < 2:
        return None
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else None


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    _, place, often = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(often)
    ranks: NDArray[np.float64] = (last - (often - 1) / 2.0)[place]
    return ranks
