"""pass@k, its intervals, and whether two evaluations differ by more than chance.

The estimator is that of Chen et al. (2021), "Evaluating Large Language Models Trained on Code". Intervals are
percentiles of a bootstrap over problems. Where no sample passes, or all do, resamples are all alike and say nothing:
there the bound is that of Clopper and Pearson (1934), "The Use of Confidence or Fiducial Limits Illustrated in the
Case of the Binomial", for a proportion of problems. Random numbers are those of `schemas.splitmix`, so results never
change.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.splitmix import GOLDEN, mix

RESAMPLES = 4_000
"""Resamples of a bootstrap, and random sign flips of a test."""
LEVEL = 0.95
_EXACT_UP_TO = 12
"""Problems that differ, up to which all sign flips are tried."""
_CHUNK = 1 << 20
"""Numbers drawn at a time."""
_TIE = 1e-12
"""Sums of differences that are closer than this are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its interval."""

    value: float
    low: float
    high: float
    problems: int


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean difference between two evaluations over the problems that both have."""

    value: float
    """This one minus the other."""
    low: float
    high: float
    p: float
    """Two-sided p-value of a sign-flip test: how often a difference at least this large arises by chance."""
    problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """The share of subsets of k among n samples, c of them correct, that hold a correct one: 1 − C(n−c, k) / C(n, k).

    Raises:
        ValueError: not 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {n} samples, {c} of them correct, is not defined")
    if n - c < k:
        return 1.0
    failing = 1.0
    for i in range(n - c + 1, n + 1):
        failing *= 1.0 - k / i
    return 1.0 - failing


def estimate(values: NDArray[np.float64]) -> Estimate:
    """The mean of (N,) values, one a problem, N > 0, with an interval of `LEVEL`."""
    low, high = _interval(values)
    end = ((1 - LEVEL) / 2) ** (1 / len(values))
    if not values.any():
        high = _rounded(1 - end)
    elif (values == 1).all():
        low = _rounded(end)
    return Estimate(_rounded(values.mean()), low, high, len(values))


def paired_difference(differences: NDArray[np.float64]) -> PairedDifference:
    """The mean of (N,) differences between two evaluations, one a problem, N > 0."""
    low, high = _interval(differences)
    p = _sign_flip_p(differences[differences != 0])
    return PairedDifference(_rounded(differences.mean()), low, high, p, len(differences))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    n = len(values)
    rows = max(1, _CHUNK // n)
    means = np.concatenate(
        [
            values[_indices(start * n, min(rows, RESAMPLES - start) * n, n)].reshape(-1, n).mean(axis=1)
            for start in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _rounded(low), _rounded(high)


def _sign_flip_p(differences: NDArray[np.float64]) -> float:
    """The share of sign flips whose sum is at least as far from 0; of all 2^N of them where N (nonzero) is small."""
    n = len(differences)
    seen = abs(differences.sum()) - _TIE
    if n <= _EXACT_UP_TO:
        signs = 1.0 - 2.0 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
        return _rounded(float(np.mean(abs(signs @ differences) >= seen)))
    rows = max(1, _CHUNK // n)
    found = 0
    for start in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - start)
        flips = 1.0 - 2.0 * _indices(start * n, count * n, 2).reshape(count, n)
        found += int((abs(flips @ differences) >= seen).sum())
    return _rounded((found + 1) / (RESAMPLES + 1))


def _indices(start: int, count: int, n: int) -> NDArray[np.int64]:
    """(count,) whole numbers from 0 to n − 1, those at positions `start` and after of one fixed sequence."""
    with np.errstate(over="ignore"):
        drawn = mix(np.arange(start + 1, start + count + 1, dtype=np.uint64) * GOLDEN) >> np.uint64(32)
        return ((drawn * np.uint64(n)) >> np.uint64(32)).astype(np.int64)


def _rounded(value: float) -> float:
    """Without the last digits, which may depend on the order in which a version of numpy adds numbers."""
    return round(float(value), 10)
