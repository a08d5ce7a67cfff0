"""The programs to be judged, each for a problem of the data: from a model's samples, or the data's own."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import ConfigError, InputError
from ...schemas.samples import Sample
from ...schemas.units import plural
from ...stages.judge.extraction import Extraction, extract
from .problem_file import ProblemFile

_SHOWN = 60
"""Characters of an id in a message."""
DEFAULT_KS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One program."""

    row: int
    """Row of its problem in the data."""
    sample: int
    """Number of the sample; of the data's own programs, the index in the row's list."""
    code: str
    """Empty if the answer holds no program."""
    extraction: Extraction

    @property
    def key(self) -> tuple[int, int]:
        """(row, sample), which is unique."""
        return self.row, self.sample


def attempts_of_samples(samples: Iterable[Sample], path: Path, problems: ProblemFile) -> list[Attempt]:
    """The programs in a model's answers, in order of (row, sample); without those for problems that are unusable.

    Raises:
        InputError: there are none, or a sample is of another problem than the data has in this row.
    """
    found, count = [], 0
    for sample in samples:
        count += 1
        head = problems.heads.get(sample.row)
        if head is None or head.id != sample.id:
            there = f"{head.id[:_SHOWN]!r} in row {sample.row}" if head else f"no row {sample.row}"
            raise InputError(
                f"{path}: the sample with row {sample.row} and sample {sample.sample} is of the problem "
                f"{sample.id[:_SHOWN]!r}, but {problems.path} has {there}; give the data that the samples were made "
                "from"
            )
        if head.unusable is None:
            code = extract(sample.text)
            found.append(Attempt(sample.row, sample.sample, code.code, code.rule))
    if not count:
        raise InputError(f"{path} holds no samples")
    if not found:
        raise InputError(f"{path}: none of its problems has tests in {problems.path}; give data with tests")
    return sorted(found, key=lambda one: one.key)


def attempts_of_references(problems: ProblemFile) -> list[Attempt]:
    """The data's own programs, in order of (row, index).

    Raises:
        InputError: there are none.
    """
    found = [
        Attempt(problem.row, at, code, Extraction.reference)
        for problem in problems.problems(problems.heads)
        for at, code in enumerate(problem.solutions)
    ]
    if not found:
        raise InputError(f"--references: no problem of {problems.path} has both tests and solutions")
    return found


def check_ks(asked: tuple[int, ...] | None, attempts: Iterable[Attempt]) -> tuple[int, ...]:
    """The k of pass@k: those asked for, else those of `DEFAULT_KS` for which each problem has enough samples.

    Raises:
        ConfigError: one is less than 1, or larger than the number of samples of some problem.
    """
    counts = Counter(one.row for one in attempts)
    row, least = min(counts.items(), key=lambda item: (item[1], item[0]))
    if asked is None:
        return tuple(k for k in DEFAULT_KS if k <= least)
    for k in asked:
        if k < 1:
            raise ConfigError(f"-k {k}: must be at least 1")
        if k > least:
            raise ConfigError(
                f"-k {k}: pass@{k} needs {plural(k, 'sample')} of each problem, but the one in row {row} has {least}; "
                f"choose at most {least}, or sample more"
            )
    return tuple(sorted(set(asked)))
