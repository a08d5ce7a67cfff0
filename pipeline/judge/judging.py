"""Judges one program: runs its problem's tests in a sandbox, and compares what comes out."""

from dataclasses import replace
from threading import Event

from ...stages.judge.comparators import Verdict, same_text, same_value
from ...stages.judge.problems import Problem, expected_texts
from .results import SampleResult
from .sandbox import Execution, ProgramLimits, Sandbox

_CLIP = 2_000
"""Characters of an output or an error that are kept."""


class StoppedError(Exception):
    """The evaluation was asked to stop while a program ran."""


def judge(
    sandbox: Sandbox, problem: Problem, sample: int, code: str, limits: ProgramLimits, stop: Event
) -> SampleResult:
    """Run a program on its problem's tests, up to the first that fails.

    Args:
        code: its text; empty if an answer has none.

    Raises:
        SandboxError: the machine failed.
        StoppedError: `stop` was set meanwhile.
    """
    result = SampleResult(row=problem.row, sample=sample, id=problem.id, verdict=Verdict.no_code)
    if not code:
        return result
    seconds = 0.0
    for at, test in enumerate(problem.inputs):
        execution = sandbox.run(code, problem.function, test, limits, stop)
        if stop.is_set():
            raise StoppedError
        seconds = round(seconds + execution.wall_seconds, 6)
        failed = execution.failed or (None if _is_right(problem, at, execution) else Verdict.wrong)
        if failed is not None:
            said, detail = _shown(problem, execution), execution.stderr[-_CLIP:]
            return replace(result, verdict=failed, failed_test=at, actual=said, detail=detail, seconds=seconds)
    return replace(result, verdict=Verdict.passed, seconds=seconds)


def _is_right(problem: Problem, at: int, execution: Execution) -> bool:
    expected = problem.expected[at]
    if execution.value is not None:
        return same_value(expected, execution.value, wrapped=problem.wrapped)
    output = execution.output.decode("utf-8", "replace")
    return any(same_text(text, output) for text in expected_texts(expected))


def _shown(problem: Problem, execution: Execution) -> str | None:
    data = execution.output if problem.function is None else execution.value
    if data is None:
        return None
    text = data[: 4 * _CLIP].decode("utf-8", "replace")
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}… ({len(data):,} bytes)"
