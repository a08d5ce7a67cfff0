"""`packtrain eval-apps` from top to bottom: check everything, run what has no result yet, write the numbers.

The programs come from a model's samples, or are the data's own references. They run in threads
around the sandbox; those that are the same text for the same problem run once. A failure of the machine ends the
evaluation, and the same command continues it.
"""

import os
import platform
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

from ...schemas.errors import ConfigError, InputError
from ...schemas.jsontext import indented_json
from ...schemas.units import plural
from ...stages.judge.comparators import Verdict
from ...stages.judge.extraction import ExtractedCode, Extraction, extract
from ..observer import Observer, Silent
from ..samples.samples_file import read_samples
from ..store.appended import differences, read_record
from ..store.local import LocalStore, hash_file
from .judging import Judgement, Judging, judge
from .problem_file import ProblemFile, open_problems
from .results import NAME, Results, SampleResult, encoded, open_results, read_results
from .sandbox import Sandbox, open_sandbox
from .summary import summarise

SUMMARY = "summary.json"
REFERENCES = "the data's own solutions"
"""What stands in place of the hash of a samples file."""
DEFAULT_KS = (1, 5, 10)
_FORMAT = 3
"""Raised when the same program may get another verdict."""
_AHEAD = 4
"""Programs waiting for each thread, so that it never waits for the data."""
_SHOWN = 60
"""Characters of an id in a message."""

Programs = dict[tuple[int, int], ExtractedCode]
"""(row, sample) → its program; of the data's own programs, the second is the index in the row's list."""


def run_evaluation(
    data: Path,
    out: Path,
    samples: Path | None,
    *,
    judging: Judging | None = None,
    unsafe: bool = False,
    jobs: int | None = None,
    ks: tuple[int, ...] | None = None,
    calibration: Path | None = None,
    compare: Path | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Evaluate, or continue to. Returns what `summary.json` then holds; see `summary.summarise`.

    Args:
        samples: None: run the data's own programs, which calibrates.
        jobs: programs at once; None for one per core.
        ks: the k of pass@k; None for `DEFAULT_KS` up to the number of samples.
        calibration: an evaluation of the data's own programs.
        compare: an evaluation to compare with.

    Raises:
        ConfigError, InputError, OutputError: something is wrong with the options or files.
        SandboxError, StoreError: the machine failed; the same call continues.
    """
    observer, judging = observer or Silent(), judging or Judging()
    with open_problems(data) as problems:
        programs = _references(problems) if samples is None else _answers(samples, problems)
        ks = () if samples is None else _ks(ks, programs)
        sandbox = open_sandbox(unsafe=unsafe)
        if unsafe:
            observer.note("programs run WITHOUT a sandbox, with all rights of this user")
        identity = {
            "format": _FORMAT,
            "data": problems.hash,
            "samples": hash_file(samples).hash if samples is not None else REFERENCES,
            "comparator": judging.comparator.value,
            "limits": asdict(judging.limits),
            "sandbox": sandbox.name,
            "python": platform.python_version(),
        }
        ids = {row: head.id for row, head in problems.heads.items()}
        calibrated = _other("--calibration", calibration, identity, ids, observer)
        compared = _other("--compare", compare, identity, ids, observer)
        file, done = open_results(out, identity, ids)
        left = {key: code for key, code in programs.items() if key not in done}
        jobs = jobs or len(os.sched_getaffinity(0))
        with file, closing(_judged(problems, left, judging, sandbox, jobs)) as judged:
            observer.begin("judge", len(programs), "samples")
            observer.advance(len(programs) - len(left))
            for some in judged:
                file.append(encoded(some))
                done.update(((one.row, one.sample), one) for one in some)
                observer.advance(len(some), rows=len(some))
            observer.end()
            results = {key: done[key] for key in programs}
            summary = summarise(problems, results, ks, identity, calibrated, compared)
            LocalStore(out).replace_bytes(SUMMARY, indented_json(summary, 2) + b"\n")
        return summary


def _answers(path: Path, problems: ProblemFile) -> Programs:
    """The programs in a model's answers, in order of (row, sample); without those for problems that are unusable.

    Raises:
        InputError: there are none, or a sample is of another problem than the data has in this row.
    """
    found: Programs = {}
    samples = list(read_samples(path))
    for sample in samples:
        head = problems.heads.get(sample.row)
        if head is None or head.id != sample.id:
            there = f"{head.id[:_SHOWN]!r} in row {sample.row}" if head else f"no row {sample.row}"
            raise InputError(
                f"{path}: the sample with row {sample.row} and sample {sample.sample} is of the problem "
                f"{sample.id[:_SHOWN]!r}, but {problems.path} has {there}; give the data that the samples were made "
                "from"
            )
        if head.unusable is None:
            found[sample.key] = extract(sample.text)
    if not samples:
        raise InputError(f"{path} holds no samples")
    if not found:
        raise InputError(f"{path}: none of its problems has tests in {problems.path}; give data with tests")
    return dict(sorted(found.items()))


def _references(problems: ProblemFile) -> Programs:
    """The data's own programs, in order of (row, index).

    Raises:
        InputError: there are none.
    """
    found = {
        (problem.row, at): ExtractedCode(code, Extraction.reference)
        for problem in problems.problems(problems.heads)
        for at, code in enumerate(problem.solutions)
    }
    if not found:
        raise InputError(f"--references: no problem of {problems.path} has both tests and solutions")
    return found


def _ks(asked: tuple[int, ...] | None, programs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The k of pass@k: those asked for, else those of `DEFAULT_KS` for which each problem has enough samples.

    Raises:
        ConfigError: one is less than 1, or larger than the number of samples of some problem.
    """
    counts = Counter(row for row, _ in programs)
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


def _other(
    option: str, folder: Path | None, identity: dict[str, Any], ids: dict[int, str], observer: Observer
) -> Results | None:
    """The results of another evaluation of the same data."""
    if folder is None:
        return None
    results, theirs = read_results(folder, ids), read_record(folder / NAME)
    if option == "--calibration" and theirs.get("samples") != REFERENCES:
        raise ConfigError(
            f"{option} {folder} holds samples of a model, not the data's own programs; give the --out of `packtrain "
            "eval-apps --references`"
        )
    if theirs.get("data") != identity["data"]:
        raise ConfigError(f"{option} {folder} is of other data; give one that was made with the same --data")
    same = {"samples": None}
    if differs := differences(theirs | same, identity | same):
        observer.note(f"{option} {folder} was judged with other options: {differs}")
    return results


def _judged(
    problems: ProblemFile, programs: Programs, judging: Judging, sandbox: Sandbox, jobs: int
) -> Generator[list[SampleResult], None, None]:
    """Run programs; those that are the same text for the same problem run once, and their results come together."""
    same: dict[int, dict[str, list[tuple[int, Extraction]]]] = {}
    for (row, sample), program in programs.items():
        same.setdefault(row, {}).setdefault(program.code, []).append((sample, program.rule))

    def results(row: int, samples: Sequence[tuple[int, Extraction]], outcome: Judgement) -> list[SampleResult]:
        common: dict[str, Any] = asdict(outcome) | {"row": row, "id": problems.heads[row].id}
        return [SampleResult(**common, sample=sample, extraction=rule) for sample, rule in samples]

    stop = Event()
    running: dict[Future[Judgement], tuple[int, list[tuple[int, Extraction]]]] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="judge") as pool:
        try:
            for problem in problems.problems(same):
                for code, samples in same[problem.row].items():
                    if not code:
                        yield results(problem.row, samples, Judgement(verdict=Verdict.no_code))
                        continue
                    running[pool.submit(judge, sandbox, problem, code, judging, stop)] = problem.row, samples
                    while len(running) >= _AHEAD * jobs:
                        for job in wait(running, return_when=FIRST_COMPLETED).done:
                            yield results(*running.pop(job), job.result())
            for job in as_completed(list(running)):
                yield results(*running.pop(job), job.result())
        finally:
            stop.set()
            for job in running:
                job.cancel()
