"""The programs to be judged, each for a problem of the data: from a model's samples, or the data's own."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import ConfigError, InputError, PacktrainError
from ...schemas.jsontext import parse_json
from ...schemas.samples import Sample
from ...schemas.units import plural
from ...stages.judge.extraction import Extraction, extract
from ..samples.samples_file import RECORD
from ..store.local import LocalStore
from .problem_file import ProblemFile

_SHOWN = 60
"""Characters of an id in a message."""
_KEPT = 8_000
"""Characters of an answer without a program, for the page."""
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
    answer: str = ""
    """The start of an answer without a program."""

    @property
    def key(self) -> tuple[int, int]:
        """(row, sample), which is unique."""
        return self.row, self.sample


def attempts_of_samples(samples: Iterable[Sample], path: Path, problems: ProblemFile) -> list[Attempt]:
    """The programs in a model's answers, in order of (row, sample); without those for problems that are unusable.

    Raises:
        InputError: there are none, or a sample is of another problem than the data has in this row.
    """
    found = []
    ids = {head.id for head in problems.heads.values()}
    count = 0
    for sample in samples:
        count += 1
        head = problems.heads.get(sample.row)
        if head is None or head.id != sample.id:
            raise _mismatch(sample, head.id if head else None, path, problems, sample.id in ids)
        if head.unusable is None:
            code = extract(sample.text)
            answer = "" if code.code else sample.text[:_KEPT]
            found.append(Attempt(sample.row, sample.sample, code.code, code.rule, answer))
    if not count:
        raise InputError(f"{path} holds no samples")
    if not found:
        raise InputError(f"{path}: none of its problems has tests in {problems.path}; give data with tests")
    return sorted(found, key=lambda one: one.key)


def drawn_from(path: Path) -> str | None:
    """BLAKE3 of the data file from which `packtrain sample` drew these samples, as recorded beside them; else None."""
    try:
        found = parse_json(LocalStore(path.absolute().parent).read(path.name + RECORD) or b"")
        said = found["options"].get("data")
    except (PacktrainError, ValueError, KeyError, TypeError, AttributeError):
        return None  # of another program, or of none
    return said if isinstance(said, str) else None


def attempts_of_references(problems: ProblemFile) -> list[Attempt]:
    """The data's own programs, in order of (row, index).

    Raises:
        InputError: there are none.
    """
    rows = {head.row for head in problems.heads.values() if head.references}
    found = [
        Attempt(problem.row, at, code, Extraction.reference)
        for problem in problems.problems(rows)
        for at, code in enumerate(problem.solutions)
    ]
    if not found:
        raise InputError(f"--calibrate: no problem of {problems.path} has both tests and solutions; leave it out")
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


def _mismatch(sample: Sample, there: str | None, path: Path, problems: ProblemFile, elsewhere: bool) -> InputError:
    which = f"{path}: the sample with row {sample.row} and sample {sample.sample} is of the problem {_named(sample.id)}"
    if elsewhere:
        has = f"has {_named(there)} in row {sample.row}" if there is not None else f"has no row {sample.row}"
        return InputError(
            f"{which}, but {problems.path} {has}. The samples were made from another file, or its rows were moved: "
            "give the data that `packtrain sample` or `packtrain prep --prompt-only` read"
        )
    return InputError(f"{which}, which {problems.path} does not have; give the data that the samples were made from")


def _named(id: str) -> str:
    return repr(id) if len(id) <= _SHOWN else f"{id[:_SHOWN]!r}…"
