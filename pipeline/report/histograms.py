"""Histograms of a report: of lengths of documents, and of how full rows are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.report.length_choice import Histogram

_BINS = 60


def length_histogram(lengths: NDArray[Any]) -> Histogram:
    """A histogram of whole numbers whose bins grow by a factor, with whole-number edges and a separate bin for 0."""
    longest = int(lengths.max(initial=0))
    grown = np.unique(np.rint(np.geomspace(1, max(longest + 1, 2), _BINS)))
    return _histogram(lengths, np.r_[0, grown])


def fill_histogram(tokens: NDArray[Any], capacity: int) -> Histogram:
    """A histogram of rows by the share of `capacity` that they hold, with up to 50 bins of equal width."""
    bins = min(50, capacity)
    return _histogram(tokens / capacity, np.arange(bins + 1) / bins)  # an edge is the same number as a row's share


def _histogram(values: NDArray[Any], edges: NDArray[np.floating[Any]]) -> Histogram:
    counts, _ = np.histogram(values, bins=edges)
    return Histogram(edges.tolist(), counts.tolist())
