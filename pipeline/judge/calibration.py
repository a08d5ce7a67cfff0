"""What the data's own programs say about its tests: problems whose references fail are kept apart."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import ConfigError
from ...schemas.jsontext import parse_json
from ...stages.judge.verdicts import Verdict
from ..store.local import LocalStore
from .evaluation import CALIBRATION, IDENTITY, OWN_SOLUTIONS, SUMMARY, difference
from .problem_file import ProblemFile
from .results_file import SampleResult, read_results


@dataclass(frozen=True, slots=True)
class References:
    """What became of the references of one problem."""

    row: int
    id: str
    difficulty: str
    references: int
    """Programs that the machine did not fail to run."""
    passed: int
    reason: str
    """Of a problem without a reference that passed: the most frequent verdict; else empty."""
    example: SampleResult | None
    """The first reference with that verdict."""

    @property
    def usable(self) -> bool:
        """Whether a reference passes, so that the tests can be passed."""
        return self.passed > 0


def references(results: Iterable[SampleResult], problems: ProblemFile) -> dict[int, References]:
    """Row → what became of its references, in order of rows; of problems that have some."""
    by_row: dict[int, list[SampleResult]] = {}
    for one in sorted(results, key=lambda one: one.key):
        if one.outcome.verdict is not Verdict.machine_failure:
            by_row.setdefault(one.about.row, []).append(one)
    return {row: _of(row, members, problems) for row, members in by_row.items()}


def _of(row: int, results: list[SampleResult], problems: ProblemFile) -> References:
    head = problems.heads[row]
    verdicts = Counter(one.outcome.verdict for one in results)
    passed = verdicts[Verdict.passed]
    if passed:
        return References(row, head.id, head.difficulty, len(results), passed, "", None)
    reason = verdicts.most_common(1)[0][0]
    example = next(one for one in results if one.outcome.verdict is reason)
    return References(row, head.id, head.difficulty, len(results), 0, reason.value, example)


def read_finished(folder: Path, option: str, problems: ProblemFile) -> dict[tuple[int, int], SampleResult]:
    """The results of a finished evaluation of the same data.

    Args:
        option: names the option in messages.

    Raises:
        ConfigError: the folder holds none, or one of other data.
        OutputError: a line of its results is damaged.
    """
    store = LocalStore(folder)
    identity = store.read(IDENTITY) if folder.is_dir() else None
    if identity is None or not store.exists(SUMMARY):
        what = "holds an evaluation that is not finished" if identity is not None else "holds no evaluation"
        raise ConfigError(f"{option} {folder} {what}; give the --out of a finished `packtrain eval-apps`")
    if _read_identity(identity, folder, option).get("data") != problems.hash:
        what = "a calibration" if option == "--calibration" else "an evaluation"
        raise ConfigError(f"{option} {folder} is {what} of other data; give one that was made with the same --data")
    return read_results(folder, problems.ids)


def find_calibration(folder: Path) -> Path:
    """The folder of a calibration: this one, or the one in the folder of an evaluation with --calibrate.

    Raises:
        ConfigError: it holds a model's samples, and no finished calibration.
    """
    store = LocalStore(folder)
    identity = store.read(IDENTITY) if folder.is_dir() else None
    if identity is not None and _read_identity(identity, folder, "--calibration").get("samples") == OWN_SOLUTIONS:
        return folder
    if store.exists(f"{CALIBRATION}/{SUMMARY}"):
        return folder / CALIBRATION
    if identity is not None:
        raise ConfigError(
            f"--calibration {folder} holds samples of a model, not the data's own programs; give the --out of "
            "`packtrain eval-apps --calibrate`"
        )
    return folder  # reading it says what is wrong


def other_options(folder: Path, option: str, identity: Mapping[str, object]) -> str:
    """The options that decide verdicts and that a finished evaluation has otherwise, with both values."""
    noted = _read_identity(LocalStore(folder).read(IDENTITY) or b"", folder, option)
    differ = [name for name in identity if name not in ("data", "samples") and noted.get(name) != identity[name]]
    return difference(noted, identity, differ)


def _read_identity(data: bytes, folder: Path, option: str) -> Mapping[str, object]:
    try:
        found = parse_json(data)
        if isinstance(found, dict):
            return found
        raise ValueError("it is no object")
    except ValueError as error:
        raise ConfigError(f"{option}: {folder / IDENTITY} is damaged ({error})") from None
