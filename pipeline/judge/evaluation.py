"""`packtrain eval-apps` from top to bottom: check everything, run what has no result yet, write the numbers.

The programs come from a model's samples, or are the data's own references. They run in threads around the sandbox. A
failure of the machine ends the evaluation, and the same command continues it.
"""

import os
import platform
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from ...schemas.errors import ConfigError, InputError
from ...schemas.jsontext import indented_json
from ...stages.judge.comparators import Verdict
from ...stages.judge.extraction import extract
from ...stages.judge.problems import Problem
from ..observer import Observer
from ..samples.samples_file import read_samples
from ..store.appended import differences, read_record
from ..store.local import LocalStore, hash_file
from .comparison import is_right
from .problem_file import ProblemFile
from .results import NAME, PAGE, SUMMARY, Results, SampleResult, open_results, read_results
from .sandbox import ProgramLimits, Sandbox, open_sandbox
from .summary import REFERENCES, evaluation_page, summarise

_FORMAT = 5
"""Raised when the same program may get another verdict."""
_AHEAD = 64
"""Programs that wait or are done for each thread, so that one that takes long does not hold up the others."""
_SHOWN, _CLIP = 60, 2_000
"""Characters of an id in a message; and of an output or an error that are kept."""

Programs = dict[tuple[int, int], str]
"""(row, sample) → its program, or ""; of the data's own programs, the second is the index in the row's list."""


def run_evaluation(
    data: Path,
    out: Path,
    samples: Path | None,
    *,
    limits: ProgramLimits | None = None,
    unsafe: bool = False,
    jobs: int | None = None,
    compare: Path | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Evaluate, or continue to. Returns what `summary.json` then holds; see `summary.summarise`.

    Args:
        samples: None: run the data's own programs, which calibrates.
        jobs: programs at once; None for one per core.
        compare: an evaluation to compare with.

    Raises:
        ConfigError, InputError, OutputError: something is wrong with the options or files.
        SandboxError, StoreError: the machine failed; the same call continues.
    """
    observer, limits = observer or Observer(), limits or ProgramLimits()
    problems = ProblemFile(data, references=samples is None)
    programs = _references(problems) if samples is None else _answers(samples, problems)
    sandbox = open_sandbox(unsafe=unsafe)
    if unsafe:
        observer.note("programs run WITHOUT a sandbox, with all rights of this user")
    identity = {
        "format": _FORMAT,
        "data": problems.hash,
        "samples": hash_file(samples).hash if samples is not None else REFERENCES,
        "limits": asdict(limits),
        "sandbox": sandbox.name,
        "python": platform.python_version(),
    }
    ids = {row: head.id for row, head in problems.heads.items()}
    compared = _compared(compare, identity, ids) if compare is not None else None
    file, done = open_results(out, identity, ids)
    left = {key: code for key, code in programs.items() if key not in done}
    jobs = jobs or len(os.sched_getaffinity(0))
    with closing(file), closing(_judged(problems, left, limits, sandbox, jobs)) as judged:
        observer.begin("judge", len(programs), "samples")
        observer.advance(len(programs) - len(left))
        for one in judged:
            file.append(msgspec.json.encode(one) + b"\n")
            done[one.row, one.sample] = one
            observer.advance(1, rows=1)
        observer.end()
        results = {key: done[key] for key in programs}
        summary = summarise(problems, results, identity, compared)
        store = LocalStore(out)
        store.replace_bytes(PAGE, evaluation_page(data.name, summary, results, programs))
        store.replace_bytes(SUMMARY, indented_json(summary, 2) + b"\n")
    return summary


def _answers(path: Path, problems: ProblemFile) -> Programs:
    """The programs in a model's answers, in order of (row, sample); without those for problems that are unusable.

    Raises:
        InputError: there are none, or a sample is of another problem than the data has in this row.
    """
    found: Programs = {}
    for sample in read_samples(path):
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
    if not found:
        raise InputError(f"{path} holds no samples of problems that have tests in {problems.path}")
    return dict(sorted(found.items()))


def _references(problems: ProblemFile) -> Programs:
    """The data's own programs, in order of (row, index).

    Raises:
        InputError: there are none.
    """
    found = {
        (problem.row, at): code
        for problem in problems.problems(problems.heads)
        for at, code in enumerate(problem.solutions)
    }
    if not found:
        raise InputError(f"--references: no problem of {problems.path} has both tests and solutions")
    return found


def _compared(folder: Path, identity: dict[str, Any], ids: dict[int, str]) -> Results:
    """The results of another evaluation of the same data, judged in the same way.

    Raises:
        ConfigError: it is another one.
    """
    results, theirs = read_results(folder, ids), read_record(folder / NAME)
    if differs := differences(theirs | {"samples": None}, identity | {"samples": None}):
        raise ConfigError(f"--compare {folder} was judged with other data or options ({differs}); evaluate it again")
    return results


def _judged(
    problems: ProblemFile, programs: Programs, limits: ProgramLimits, sandbox: Sandbox, jobs: int
) -> Generator[SampleResult, None, None]:
    """Run programs; their results come in order."""
    samples: dict[int, list[int]] = {}
    for row, sample in programs:
        samples.setdefault(row, []).append(sample)
    stop, running = Event(), deque[Future[SampleResult]]()
    with ThreadPoolExecutor(jobs, thread_name_prefix="judge") as pool:
        try:
            for problem in problems.problems(samples):
                for sample in samples[problem.row]:
                    program = programs[problem.row, sample]
                    running.append(pool.submit(judge, sandbox, problem, sample, program, limits, stop))
                    if len(running) == _AHEAD * jobs:
                        yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def judge(
    sandbox: Sandbox, problem: Problem, sample: int, code: str, limits: ProgramLimits, stop: Event
) -> SampleResult:
    """Run a program on its problem's tests, up to the first that fails.

    Args:
        code: its text; empty if an answer has none.
        stop: set when the result is no longer needed.

    Raises:
        SandboxError: the machine failed.
    """
    result = SampleResult(row=problem.row, sample=sample, id=problem.id, verdict=Verdict.no_code)
    if not code:
        return result
    seconds = 0.0
    for at, test in enumerate(problem.inputs):
        execution = sandbox.run(code, problem.function, test, limits, stop)
        seconds = round(seconds + execution.wall_seconds, 6)
        failed = execution.failed or (None if is_right(problem, at, execution.output) else Verdict.wrong)
        if failed is not None:
            said, detail = _clipped(execution.output), execution.stderr[-_CLIP:]
            return replace(result, verdict=failed, failed_test=at, actual=said, detail=detail, seconds=seconds)
    return replace(result, verdict=Verdict.passed, seconds=seconds)


def _clipped(data: bytes) -> str:
    text = data[: 4 * _CLIP].decode("utf-8", "replace")
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}… ({len(data):,} bytes)"
