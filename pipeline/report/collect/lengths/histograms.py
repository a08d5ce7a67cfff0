"""Histograms of whole numbers and of shares, filled in chunks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....schemas.report import Histogram

BINS = 60
_LOT = 1 << 18
QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Tally:
    """Exact counts of whole numbers. Memory grows with the number of distinct values only."""

    def __init__(self) -> None:
        self._known = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._waiting: list[NDArray[np.int64]] = []
        self._size = 0

    def add(self, values: NDArray[Any]) -> None:
        """Add (N,) whole numbers, none negative."""
        # Sorting a few large chunks is cheaper than many small ones.
        self._waiting.append(values.astype(np.int64))
        self._size += len(values)
        if self._size >= _LOT:
            self._settle()

    def _settle(self) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """(values,) ascending, and (values,) how often each occurs."""
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
        """How many numbers were added."""
        return int(self._counts.sum())

    @property
    def total(self) -> int:
        """Sum of the bins."""
        return int((self._values * self._counts).sum())

    @property
    def most(self) -> int:
        """The largest number; 0 if there is none."""
        return int(self._values[-1]) if len(self._values) else 0

    def logarithmic(self, *, exact: bool = True, most: int = 0) -> Histogram:
        """A histogram whose bins grow by a factor, with whole-number edges and a separate bin for 0.

        Args:
            exact: whether all numbers were added, not a sample.
            most: the bins reach at least to this, so that two histograms can share them.
        """
        return self._binned(log_edges(max(most, self.most)), exact)

    def even(self, *, exact: bool = True) -> Histogram:
        """A histogram with bins of equal, whole-number width."""
        first = int(self._values[0]) if len(self._values) else 0
        last = int(self._values[-1]) if len(self._values) else 0
        width = max(1, -(-(last + 1 - first) // BINS))
        return self._binned([float(edge) for edge in range(first, last + 1 + width, width)], exact)

    def shares(self, whole: int, *, exact: bool = True) -> Histogram:
        """A histogram of the numbers as shares of `whole`, from 0 to 1, with bins of equal width."""
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
        """The smallest value with at least that share of all numbers at or below it."""
        if not self.count:
            return {}
        sums = np.cumsum(self._counts)
        ranks = [max(1, -(-int(share * 10_000) * self.count // 10_000)) for share in QUANTILES.values()]
        found = self._values[np.searchsorted(sums, ranks)]
        return dict(zip(QUANTILES, found.astype(float).tolist(), strict=True))


def log_edges(most: int) -> list[float]:
    """Whole-number edges from 0 to above `most`, each larger than the one before by about the same factor."""
    grown = np.unique(np.rint(np.geomspace(1, max(most + 1, 2), BINS)).astype(np.int64))
    return [0.0, *grown.astype(float).tolist()]


def spearman(left: "NDArray[Any] | Sequence[float]", right: "NDArray[Any] | Sequence[float]") -> float | None:
    """Spearman's rank correlation, with ties at their mean rank; None if either side has a single value."""
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
