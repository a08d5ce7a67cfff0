"""pass@k by difficulty, its intervals, and how two evaluations differ.

The estimator of pass@k is from Chen et al. (2021), "Evaluating Large Language Models Trained on Code". An interval is
the mean over problems, plus and minus 1.96 standard errors. Where no sample passes, or all do, the standard error is 0,
which says nothing. There the interval is for a proportion of problems, from Clopper and Pearson (1934), "The Use of
Confidence or Fiducial Limits Illustrated in the Case of the Binomial".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_KS = (1, 5, 10, 50, 100)
_Z = 1.959964
"""Standard errors on each side of an interval of 95 %."""
_TAIL = 0.025
"""The probability beyond each end of an interval of 95 %."""


class Tally(NamedTuple):
    """The samples of one problem."""

    samples: int
    passed: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its interval of 95 %."""

    value: float
    low: float
    high: float
    problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """The share of subsets of k among n samples that hold one of the c correct ones: 1 − C(n−c, k) / C(n, k).

    Of 4 samples with 2 correct ones, it is 1 − (1 − 1/3) · (1 − 1/4) = 0.5 for k = 1.
    """
    if n - c < k:
        return 1.0
    # The quotient as a product, because the binomials themselves may be beyond any float.
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def estimate_mean(values: Sequence[float]) -> Estimate:
    """The mean of values from 0 to 1, one a problem, at least one."""
    normal = _normal_estimate(values)
    low = max(0.0, normal.low)
    high = min(1.0, normal.high)
    # If each of n problems passes with probability p, all n pass with probability p ** n. The bound is the p for which
    # this is 2.5 %: 0.832 for n = 20.
    bound = _TAIL ** (1 / len(values))
    if not any(values):
        high = 1 - bound
    elif all(value == 1 for value in values):
        low = bound
    return Estimate(normal.value, low, high, normal.problems)


def pass_at_k_scores(tallies: Mapping[int, Tally]) -> dict[int, Estimate]:
    """k → pass@k, for each k of 1, 5, 10, 50 and 100 for which every problem has enough samples.

    Args:
        tallies: row → its tally.
    """
    fewest_samples = min(tally.samples for tally in tallies.values())
    estimates: dict[int, Estimate] = {}
    for k in _KS:
        if k <= fewest_samples:
            estimates[k] = estimate_mean([pass_at_k(tally.samples, tally.passed, k) for tally in tallies.values()])
    return estimates


def pass_at_k_differences(
    left: Mapping[int, Tally], right: Mapping[int, Tally], ks: Iterable[int]
) -> dict[int, Estimate]:
    """k → mean difference in pass@k, left minus right, over the problems of which both have at least k samples."""
    pairs = [(tally, right[row]) for row, tally in left.items() if row in right]
    estimates: dict[int, Estimate] = {}
    for k in ks:
        differences = [
            pass_at_k(left_tally.samples, left_tally.passed, k) - pass_at_k(right_tally.samples, right_tally.passed, k)
            for left_tally, right_tally in pairs
            if left_tally.samples >= k and right_tally.samples >= k
        ]
        if differences:
            estimates[k] = _normal_estimate(differences)
    return estimates


def _normal_estimate(values: Sequence[float]) -> Estimate:
    """The mean with 1.96 standard errors."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    error = _Z * math.sqrt(variance / n)
    # What sums of floats have beyond ten digits is rounding.
    return Estimate(round(mean, 10), round(mean - error, 10), round(mean + error, 10), n)
