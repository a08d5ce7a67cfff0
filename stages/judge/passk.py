"""pass@k by difficulty, its intervals, and how two evaluations differ.

The estimator is that of Chen et al. (2021), "Evaluating Large Language Models Trained on Code". An interval is the
mean over problems with 1.96 standard errors. Where no sample passes, or all do, that says nothing: there the bound is
that of Clopper and Pearson (1934), "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial",
for a proportion of problems.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALL = "all"
"""The group of all problems."""
_ORDER = ("introductory", "interview", "competition")
"""The difficulties of APPS, the easiest first; others come after them, by name."""
_Z = 1.959964
_TAIL = 0.025


@dataclass(slots=True)
class ProblemTally:
    """How many samples of one problem there are, and how many of these passed."""

    difficulty: str
    samples: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its interval of 95 %."""

    value: float
    low: float
    high: float
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


def scores(tallies: Mapping[int, ProblemTally], ks: Sequence[int]) -> dict[str, dict[int, Estimate]]:
    """Group → k → pass@k: of all problems, then of each difficulty.

    Args:
        tallies: row → its tally. For a k, problems with fewer samples are left out.
    """
    found: dict[str, dict[int, Estimate]] = {}
    for name, rows in groups(tallies).items():
        for k in ks:
            values = [_of(tallies[row], k) for row in rows if tallies[row].samples >= k]
            if values:
                found.setdefault(name, {})[k] = estimate(values)
    return found


def compare(
    ours: Mapping[int, ProblemTally], others: Mapping[int, ProblemTally], ks: Sequence[int]
) -> dict[str, dict[int, Estimate]]:
    """Group → k → mean difference in pass@k, ours minus theirs, over problems with k samples in both."""
    found: dict[str, dict[int, Estimate]] = {}
    for name, rows in groups({row: one for row, one in ours.items() if row in others}).items():
        for k in ks:
            both = [row for row in rows if min(ours[row].samples, others[row].samples) >= k]
            if both:
                found.setdefault(name, {})[k] = _normal([_of(ours[row], k) - _of(others[row], k) for row in both])
    return found


def groups(tallies: Mapping[int, ProblemTally]) -> dict[str, list[int]]:
    """Group → its rows: all, then each difficulty, the easiest first."""
    names = {one.difficulty for one in tallies.values()} - {ALL}
    ordered = sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    return {ALL: list(tallies)} | {
        name: [row for row, one in tallies.items() if one.difficulty == name] for name in ordered
    }


def _of(tally: ProblemTally, k: int) -> float:
    return pass_at_k(tally.samples, tally.passed, k)


def _normal(values: Sequence[float]) -> Estimate:
    n = len(values)
    mean = math.fsum(values) / n
    spread = math.fsum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    error = _Z * math.sqrt(spread / n)
    return Estimate(round(mean, 10), round(mean - error, 10), round(mean + error, 10), n)
