"""pass@k by difficulty, from the verdicts of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .passk import Estimate, PairedDifference, estimate, paired_difference, pass_at_k

ALL = "all"
"""The group of all problems."""
_ORDER = ("introductory", "interview", "competition")
"""The difficulties of APPS, the easiest first; others come after them, by name."""


@dataclass(slots=True)
class ProblemTally:
    """How many samples of one problem count, and how many of these passed."""

    difficulty: str
    samples: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class GroupScore:
    """pass@k of one group of problems."""

    name: str
    problems: int
    """Problems with at least one sample that counts."""
    samples: int
    passed: int
    estimates: Mapping[int, Estimate] = field(default_factory=dict)
    """k → pass@k; without a k for which no problem has enough samples."""


def scores(tallies: Mapping[int, ProblemTally], ks: Sequence[int]) -> list[GroupScore]:
    """The scores of all problems, then of each difficulty.

    Args:
        tallies: row → its tally. For a k, problems with fewer samples that count are left out.
    """
    counted = [one for one in tallies.values() if one.samples]
    return [_group(name, members, ks) for name, members in _grouped(counted).items()]


def compare(
    ours: Mapping[int, ProblemTally], others: Mapping[int, ProblemTally], ks: Sequence[int]
) -> dict[str, dict[int, PairedDifference]]:
    """Paired differences in pass@k, ours minus theirs, by group and k, over problems with k samples in both."""
    both = {row: one for row, one in ours.items() if row in others}
    found: dict[str, dict[int, PairedDifference]] = {}
    for name in _grouped(list(both.values())):
        rows = [row for row, one in both.items() if name in (ALL, one.difficulty)]
        for k in ks:
            differences = [
                _of(ours[row], k) - _of(others[row], k)
                for row in rows
                if min(ours[row].samples, others[row].samples) >= k
            ]
            if differences:
                found.setdefault(name, {})[k] = paired_difference(np.array(differences))
    return found


def difficulties(names: Sequence[str]) -> list[str]:
    """The difficulties among these names, in the order in which they are shown."""
    return sorted(set(names), key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def _grouped(tallies: Sequence[ProblemTally]) -> dict[str, list[ProblemTally]]:
    groups = {ALL: list(tallies)}
    for name in difficulties([one.difficulty for one in tallies if one.difficulty != ALL]):
        groups[name] = [one for one in tallies if one.difficulty == name]
    return groups


def _group(name: str, members: Sequence[ProblemTally], ks: Sequence[int]) -> GroupScore:
    estimates = {}
    for k in ks:
        values = [_of(one, k) for one in members if one.samples >= k]
        if values:
            estimates[k] = estimate(np.array(values))
    samples, passed = sum(one.samples for one in members), sum(one.passed for one in members)
    return GroupScore(name, len(members), samples, passed, estimates)


def _of(tally: ProblemTally, k: int) -> float:
    return pass_at_k(tally.samples, tally.passed, k)
