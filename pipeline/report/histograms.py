"""Histograms of whole numbers and of shares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.report import Histogram

_QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}
_BINS = 60


def length_histogram(lengths: NDArray[Any]) -> Histogram:
    """A histogram of whole numbers whose bins grow by a factor, with whole-number edges and a separate bin for 0."""
    most = int(lengths.max(initial=0))
    grown = np.unique(np.rint(np.geomspace(1, max(most + 1, 2), _BINS)).astype(np.int64))
    return _histogram(lengths, np.array([0, *grown.tolist()], dtype=np.float64), 1)


def fill_histogram(tokens: NDArray[Any], capacity: int) -> Histogram:
    """A histogram of rows by the share of `capacity` that they hold, with up to 50 bins of equal width."""
    bins = min(50, max(capacity, 1))
    edges = np.arange(bins + 1) * (max(capacity, 1) / bins)
    return _histogram(tokens, edges, max(capacity, 1))


def _histogram(values: NDArray[Any], edges: NDArray[np.floating[Any]], scale: int) -> Histogram:
    """Count values between edges; divide edges, sums and quantiles by `scale`."""
    found, often = np.unique(values, return_counts=True)
    counts, _ = np.histogram(found, bins=edges, weights=often)
    quantiles = dict[str, float]()
    if len(values):
        # The smallest value with at least that share of all at or below it.
        ranks = [max(1, -(-int(share * 10_000) * len(values) // 10_000)) for share in _QUANTILES.values()]
        at = found[np.searchsorted(np.cumsum(often), ranks)]
        quantiles = dict(zip(_QUANTILES, (at / scale).tolist(), strict=True))
    total = float(values.sum(dtype=np.float64)) / scale
    return Histogram((edges / scale).tolist(), counts.astype(np.int64).tolist(), len(values), total, quantiles)
