"""Evaluates programs: runs what has no result yet, over all cores, and writes down what became of it.

1. `evaluation.json` says what is evaluated, and how. A folder with another one is refused.
2. Programs run in threads around the sandbox; those that are the same text for the same problem run once.
3. Results are appended whole and synced, so that a killed evaluation continues where it stopped.
4. At the end, results are sorted by (row, sample), so that their order does not depend on threads or kills.
"""

import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any

from ...schemas.errors import BusyError, OutputError, SandboxError
from ...schemas.escape import escape_line
from ...schemas.files.lock import lock, own, release
from ...schemas.jsontext import indented_json, parse_json
from ...schemas.units import plural
from ...stages.judge.verdicts import Verdict
from ..observer import Observer
from ..store.local import LocalStore, explain
from .attempts import Attempt
from .judging import Judgement, Judging, judge
from .problem_file import ProblemFile
from .results_file import ResultsFile, SampleResult, read_results, result_of, write_sorted
from .sandbox.programs import Sandbox

IDENTITY = "evaluation.json"
SUMMARY = "summary.json"
PAGE = "page.html"
CALIBRATION = "calibration"
"""The folder in an output for a calibration that belongs to an evaluation of samples, and runs before it."""
OWN_SOLUTIONS = "the data's own solutions"
"""What a calibration has in place of the hash of a samples file."""
_LOCK = ".evaluation.lock"
_FORMAT = 1
"""Raised when the same program may get another verdict."""
_AHEAD = 4
"""Programs waiting for each thread, so that it never waits for the data."""
_FAILURES_IN_A_ROW = 8
"""Programs that the machine failed to run one after another, after which the evaluation ends."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is evaluated, how, and where."""

    out: Path
    problems: ProblemFile
    attempts: Sequence[Attempt]
    """In order of (row, sample)."""
    samples_hash: str | None
    """BLAKE3 of the samples file; None for the data's own programs."""
    judging: Judging
    sandbox: Sandbox
    jobs: int

    def identity(self) -> dict[str, Any]:
        """What decides the results, as `evaluation.json` has it."""
        return {
            "format": _FORMAT,
            "data": self.problems.hash,
            "samples": self.samples_hash or OWN_SOLUTIONS,
            "comparator": self.judging.comparator.value,
            "limits": {key: one for key, one in asdict(self.judging.limits).items() if key != "stop"},
            "all_tests": self.judging.all_tests,
            "sandbox": self.sandbox.name,
            "python": self.sandbox.version.rpartition("Python ")[2],
        }


def evaluate(evaluation: Evaluation, observer: Observer) -> dict[tuple[int, int], SampleResult]:
    """Run all attempts that have no result yet. Returns (row, sample) → result of all.

    Raises:
        OutputError: the folder holds something else, or another evaluation.
        SandboxError: the machine fails again and again.
        StoreError: results cannot be written.
    """
    with _held(evaluation.out):
        _claim(evaluation)
        found = read_results(evaluation.out, evaluation.problems.ids)
        keys = {one.key for one in evaluation.attempts}
        failed = Verdict.machine_failure
        done = {key: one for key, one in found.items() if key in keys and one.outcome.verdict is not failed}
        left = [one for one in evaluation.attempts if one.key not in done]
        observer.begin("judge", len(evaluation.attempts), "samples")
        observer.advance(len(evaluation.attempts) - len(left))
        with ResultsFile(evaluation.out) as file, closing(_results(evaluation, left)) as made:
            for results in made:
                file.append(results)
                done.update((one.key, one) for one in results)
                observer.advance(len(results), rows=len(results))
        observer.end()
        write_sorted(evaluation.out, done.values())
    return done


def _results(evaluation: Evaluation, attempts: Sequence[Attempt]) -> Generator[list[SampleResult], None, None]:
    """The results of attempts as they come, those of equal programs together."""
    heads = evaluation.problems.heads
    without = [one for one in attempts if not one.code]
    if without:
        none = Judgement(Verdict.no_code)
        yield [result_of(one, heads[one.row].id, none) for one in without]
    programs: dict[int, dict[str, list[Attempt]]] = {}
    for one in attempts:
        if one.code:
            programs.setdefault(one.row, {}).setdefault(one.code, []).append(one)
    failures: deque[bool] = deque(maxlen=_FAILURES_IN_A_ROW)
    for same, outcome in _judged(evaluation, programs):
        yield [result_of(one, heads[one.row].id, outcome) for one in same]
        failures.append(outcome.verdict is Verdict.machine_failure)
        if len(failures) == _FAILURES_IN_A_ROW and all(failures):
            raise SandboxError(
                f"the sandbox failed for {plural(len(failures), 'program')} in a row: {outcome.detail}; fix that, and "
                "run the same command again: it continues where it stopped"
            )


def _judged(
    evaluation: Evaluation, programs: Mapping[int, Mapping[str, list[Attempt]]]
) -> Iterator[tuple[list[Attempt], Judgement]]:
    """(attempts with the same program, its judgement), as they come."""
    stop = Event()
    running: dict[Future[Judgement], list[Attempt]] = {}
    with ThreadPoolExecutor(evaluation.jobs, thread_name_prefix="judge") as pool:
        try:
            for problem in evaluation.problems.problems(programs):
                for code, same in programs[problem.row].items():
                    job = pool.submit(judge, evaluation.sandbox, problem, code, evaluation.judging, stop)
                    running[job] = same
                    if len(running) >= _AHEAD * evaluation.jobs:
                        yield from _finished(running)
            while running:
                yield from _finished(running)
        except BaseException:
            stop.set()
            for job in running:
                job.cancel()
            raise


def _finished(running: dict[Future[Judgement], list[Attempt]]) -> list[tuple[list[Attempt], Judgement]]:
    """Wait for at least one program, and take out those that are done."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    return [(running.pop(job), job.result()) for job in done]


# The folder


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other evaluations out of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise explain(error, folder) from error
    own(descriptor)
    try:
        if lock(descriptor, wait=False) is False:
            raise BusyError(f"another evaluation is writing to {folder}; wait for it, or choose another --out")
        yield
    finally:
        release(descriptor)


def check_out(evaluation: Evaluation) -> None:
    """Refuse a folder that holds something else or another evaluation, before anything is written.

    Raises:
        OutputError: as said.
    """
    folder = evaluation.out
    if not (there := next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))).is_dir():
        what = "a link to nothing" if there.is_symlink() and not there.exists() else "a file, not a folder"
        raise OutputError(f"--out {folder}: {there} is {what}; choose another place")
    if not folder.exists():
        return
    noted = LocalStore(folder).read(IDENTITY)
    if noted is None:
        others = sorted(set(LocalStore(folder).top()) - {_LOCK, CALIBRATION})
        if others:
            raise OutputError(f"--out {folder} holds something else ({others[0]}); choose another folder")
        return
    try:
        before = parse_json(noted)
        if not isinstance(before, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise OutputError(f"{folder / IDENTITY} is damaged ({error}); choose another folder") from None
    wanted = evaluation.identity()
    differ = [name for name in wanted if before.get(name) != wanted[name]]
    if differ:
        raise OutputError(
            f"--out {folder} holds another evaluation: {difference(before, wanted, differ)}. "
            "Choose another folder, or give the same files and options to continue it"
        )


def _claim(evaluation: Evaluation) -> None:
    """Check the folder again, now that it is locked, and write down what it is for."""
    check_out(evaluation)
    LocalStore(evaluation.out).put_bytes(IDENTITY, indented_json(evaluation.identity(), 2) + b"\n")


def difference(before: Mapping[str, Any], wanted: Mapping[str, Any], names: Sequence[str]) -> str:
    """Two identities' values of these names, in the words of the command line."""
    words = []
    for name in names:
        old, new = before.get(name), wanted[name]
        if name in ("data", "samples"):
            words.append(f"other {name}")
        elif name == "limits" and isinstance(old, dict):
            changed = {key for key in new if old.get(key) != new[key]}
            if "cpu_seconds" in changed:
                words.append(f"--timeout {_shown(old.get('cpu_seconds'))}s, not {_shown(new['cpu_seconds'])}s")
                changed.discard("wall_seconds")  # follows from it
            words += [
                f"{key} {_shown(old.get(key))}, not {_shown(new[key])}" for key in sorted(changed - {"cpu_seconds"})
            ]
        else:
            words.append(f"{name} {_shown(old)}, not {_shown(new)}")
    return "; ".join(words)


def _shown(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else escape_line(str(value))
