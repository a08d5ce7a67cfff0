"""pass@k by difficulty, its intervals, and how two evaluations differ.

The estimator is that of Chen et al. (2021), "Evaluating Large Language Models Trained on Code". An interval is the
mean over problems with 1.96 standard errors. Where no sample passes, or all do, that says nothing: there the bound is
that of Clopper and Pearson (1934), "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial",
for a proportion of problems.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_KS = (1, 5, 10, 50, 100)
_Z = 1.959964
_TAIL = 0.025

Tally = tuple[int, int]
"""(samples of one problem, how many of these passed)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its interval of 95 %."""

    value: float
    low: float
    high: float
    problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """The share of subsets of k among n samples that hold one of the c correct ones: 1 − C(n−c, k) / C(n, k)."""
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values from 0 to 1, one a problem, at least one."""
    found = _normal(values)
    low, high = max(0.0, found.low), min(1.0, found.high)
    end = _TAIL ** (1 / len(values))
    if not any(values):
        high = 1 - end
    elif all(value == 1 for value in values):
        low = end
    return Estimate(found.value, low, high, found.problems)


def scores(tallies: Mapping[int, Tally]) -> dict[int, Estimate]:
    """k → pass@k, for each k of 1, 5, 10, 50 and 100 for which every problem has enough samples.

    Args:
        tallies: row → its tally.
    """
    least = min(n for n, _ in tallies.values())
    return {k: estimate([pass_at_k(n, c, k) for n, c in tallies.values()]) for k in _KS if k <= least}


def compare(ours: Mapping[int, Tally], theirs: Mapping[int, Tally], ks: Iterable[int]) -> dict[int, Estimate]:
    """k → mean difference in pass@k, ours minus theirs, over the problems with as many samples in both."""
    pairs = [(one, theirs[row]) for row, one in ours.items() if row in theirs]
    values = {
        k: [pass_at_k(*one, k) - pass_at_k(*other, k) for one, other in pairs if min(one[0], other[0]) >= k] for k in ks
    }
    return {k: _normal(those) for k, those in values.items() if those}


def _normal(values: Sequence[float]) -> Estimate:
    n = len(values)
    mean = math.fsum(values) / n
    spread = math.fsum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    error = _Z * math.sqrt(spread / n)
    return Estimate(round(mean, 10), round(mean - error, 10), round(mean + error, 10), n)
