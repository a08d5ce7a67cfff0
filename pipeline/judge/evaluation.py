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
from ...stages.judge.extraction import extract_program
from ...stages.judge.problems import Problem
from ..observer import Observer
from ..samples.samples_file import read_samples
from ..store.appended import describe_differences, read_options
from ..store.local import LocalStore, hash_file
from .comparison import is_correct
from .problem_file import ProblemFile
from .results import PAGE_FILE, RESULTS_FILE, SUMMARY_FILE, Results, SampleResult, open_results, read_results
from .sandbox import ProgramLimits, Sandbox, open_sandbox
from .summary import REFERENCES, evaluation_page, summarise

_FORMAT = 5
"""Raised when the same program may get another verdict."""
_QUEUED_PER_THREAD = 64
"""Programs, waiting or finished, that are queued for each thread. Results are taken in order, so with a shorter queue,
one program that runs long would leave the other threads without work."""
_ID_LENGTH = 60
"""Characters of an id that a message shows."""
_OUTPUT_LENGTH = 2_000
"""Characters of an output, or of an error, that a result keeps."""

Programs = dict[tuple[int, int], str]
"""(row, sample) → its program, or "" if the answer has none. Of the data's own programs, `sample` is the index in the
row's list of solutions."""


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
    """Evaluate, or continue an evaluation. Returns what `summary.json` then holds; see `summary.summarise`.

    Args:
        data: a file of APPS problems.
        out: the folder for results, summary and page.
        samples: a file of a model's answers; None runs the data's own programs, which shows what the tests are worth.
        unsafe: run programs without a sandbox.
        jobs: programs at once; None for one per core.
        compare: the folder of another evaluation to compare with; None compares with none.

    Raises:
        ConfigError, InputError, OutputError: something is wrong with the options or files.
        SandboxError, StoreError: the machine failed; the same call continues.
    """
    observer = observer or Observer()
    limits = limits or ProgramLimits()
    jobs = jobs or len(os.sched_getaffinity(0))
    # 1. What is judged.
    problems = ProblemFile(data, references=samples is None)
    programs = _read_references(problems) if samples is None else _read_answers(samples, problems)
    # 2. How it is judged.
    sandbox = open_sandbox(unsafe=unsafe)
    if unsafe:
        observer.note("programs run WITHOUT a sandbox, with all rights of this user")
    identity = _identity(problems, samples, limits, sandbox)
    ids = {row: entry.id for row, entry in problems.entries.items()}
    # 3. The files. The one to compare with is read first: a mistake in it must not show after hours of work.
    compared_results = _read_compared(compare, identity, ids) if compare is not None else None
    file, results = open_results(out, identity, ids)
    with closing(file):
        # 4. What has no result yet.
        pending = {key: program for key, program in programs.items() if key not in results}
        observer.begin("judge", len(programs), "samples")
        observer.advance(len(programs) - len(pending))
        with closing(_judge_programs(problems, pending, limits, sandbox, jobs)) as new_results:
            for result in new_results:
                file.append(msgspec.json.encode(result) + b"\n")
                results[result.row, result.sample] = result
                observer.advance(1, rows=1)
        observer.end()
        # 5. The numbers. Results are put into the order of the programs, so that a continued evaluation has the same
        # summary and page as one that was never interrupted.
        results = {key: results[key] for key in programs}
        summary = summarise(problems, results, identity, compared_results)
        store = LocalStore(out)
        store.replace_bytes(PAGE_FILE, evaluation_page(data.name, summary, results, programs))
        store.replace_bytes(SUMMARY_FILE, indented_json(summary, 2) + b"\n")
    return summary


def _identity(problems: ProblemFile, samples: Path | None, limits: ProgramLimits, sandbox: Sandbox) -> dict[str, Any]:
    """Everything that decides a verdict. Results under another identity are refused, not mixed with these."""
    return {
        "format": _FORMAT,
        "data": problems.hash,
        "samples": hash_file(samples).hash if samples is not None else REFERENCES,
        "limits": asdict(limits),
        "sandbox": sandbox.name,
        "python": platform.python_version(),
    }


def _read_answers(path: Path, problems: ProblemFile) -> Programs:
    """The programs in a model's answers, in order of (row, sample); without those for problems that are unusable.

    Raises:
        InputError: there are none, or a sample is of another problem than the data has in this row.
    """
    programs: Programs = {}
    for sample in read_samples(path):
        entry = problems.entries.get(sample.row)
        if entry is None or entry.id != sample.id:
            in_data = f"{entry.id[:_ID_LENGTH]!r} in row {sample.row}" if entry else f"no row {sample.row}"
            raise InputError(
                f"{path}: the sample with row {sample.row} and sample {sample.sample} is of the problem "
                f"{sample.id[:_ID_LENGTH]!r}, but {problems.path} has {in_data}; give the data that the samples were "
                "made from"
            )
        if entry.unusable is None:
            programs[sample.key] = extract_program(sample.text)
    if not programs:
        raise InputError(f"{path} holds no samples of problems that have tests in {problems.path}")
    return dict(sorted(programs.items()))


def _read_references(problems: ProblemFile) -> Programs:
    """The data's own programs, in order of (row, index).

    Raises:
        InputError: there are none.
    """
    programs: Programs = {}
    for problem in problems.read_problems(problems.entries):
        for index, program in enumerate(problem.solutions):
            programs[problem.row, index] = program
    if not programs:
        raise InputError(f"--references: no problem of {problems.path} has both tests and solutions")
    return programs


def _read_compared(folder: Path, identity: dict[str, Any], ids: dict[int, str]) -> Results:
    """The results of another evaluation of the same data, judged in the same way.

    Raises:
        ConfigError: it is of other data, or was judged in another way.
        OutputError: there is none, or it is damaged.
    """
    results = read_results(folder, ids)
    recorded = read_options(folder / RESULTS_FILE)
    # Two evaluations are compared because their samples differ; all else must be equal.
    if differences := describe_differences(recorded | {"samples": None}, identity | {"samples": None}):
        raise ConfigError(
            f"--compare {folder} was judged with other data or options ({differences}); evaluate it again"
        )
    return results


def _judge_programs(
    problems: ProblemFile, programs: Programs, limits: ProgramLimits, sandbox: Sandbox, jobs: int
) -> Generator[SampleResult, None, None]:
    """Run programs in `jobs` threads; their results come in the order of the data's rows.

    Threads, because each only waits for a sandbox's process.
    """
    samples_of_row: dict[int, list[int]] = {}
    for row, sample in programs:
        samples_of_row.setdefault(row, []).append(sample)
    stop = Event()
    queue = deque[Future[SampleResult]]()
    with ThreadPoolExecutor(jobs, thread_name_prefix="judge") as pool:
        try:
            for problem in problems.read_problems(samples_of_row):
                for sample in samples_of_row[problem.row]:
                    program = programs[problem.row, sample]
                    queue.append(pool.submit(judge_sample, sandbox, problem, sample, program, limits, stop))
                    if len(queue) == _QUEUED_PER_THREAD * jobs:
                        yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            # After a failure or an interruption: end what runs, and do not start what waits.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def judge_sample(
    sandbox: Sandbox, problem: Problem, sample: int, program: str, limits: ProgramLimits, stop: Event
) -> SampleResult:
    """Run a program on its problem's tests, up to the first that fails.

    Args:
        program: its text; empty if an answer has none.
        stop: set when the result is no longer needed.

    Raises:
        SandboxError: the machine failed.
    """
    result = SampleResult(row=problem.row, sample=sample, id=problem.id, verdict=Verdict.no_code)
    if not program:
        return result
    seconds = 0.0
    for test_index, test in enumerate(problem.inputs):
        execution = sandbox.run(program, problem.function, test, limits, stop)
        seconds = round(seconds + execution.wall_seconds, 6)  # microseconds: all that the clock gives
        verdict = execution.failure
        if verdict is None and not is_correct(problem, test_index, execution.output):
            verdict = Verdict.wrong
        if verdict is not None:
            return replace(
                result,
                verdict=verdict,
                failed_test=test_index,
                actual=_shorten(execution.output),
                detail=execution.stderr[-_OUTPUT_LENGTH:],
                seconds=seconds,
            )
    return replace(result, verdict=Verdict.passed, seconds=seconds)


def _shorten(output: bytes) -> str:
    """The beginning of an output as text, with its size if it goes on."""
    # A character has at most four bytes: decoding more of an output of 16 MiB would be for nothing.
    text = output[: 4 * _OUTPUT_LENGTH].decode("utf-8", "replace")
    return text if len(text) <= _OUTPUT_LENGTH else f"{text[:_OUTPUT_LENGTH]}… ({len(output):,} bytes)"
